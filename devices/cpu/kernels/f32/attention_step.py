"""The step of an attention: which kernel it has, how it is cut, and what kernels are shared.

Where sizes vary, there is a code for blocks of one vector of queries, of two, and for few queries,
each by itself. The order of sums is that of one shape, so results have its bits. A program of one
shape has one kernel for all its attentions that differ in batches and strides alone, which it
reads. Compiling one takes LLVM a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.devices.cpu.codegen.ir import Word
from trireme.devices.cpu.kernels.f32.attention import attention_kernel
from trireme.devices.cpu.kernels.f32.attention_shape import (
    REST_ROWS,
    AttentionPlan,
    AttentionShape,
    OperandStrides,
    block_vectors,
    block_work,
    is_by_row,
    row_work,
    walks_rows,
)
from trireme.devices.cpu.kernels.lowering import Context, Operand, Step, deal
from trireme.devices.cpu.kernels.spans import Planned, Wiring, planned_step, read_cut
from trireme.ir.graph import Graph

_VARIANTS = (1, 2)
"""Vectors of queries in a block."""


def attention_step(
    context: Context, wiring: Wiring, shape_at: Callable[[Graph], AttentionShape]
) -> Step:
    """Return the step of an attention; shape_at: gives its shape in a graph."""
    isa, by_rows = context.isa, True
    samples = []
    if context.is_open:
        sample = shape_at(context.graph)
        by_rows = walks_rows(sample)
        samples = [AttentionPlan(sample, k) for k in (*_VARIANTS, *([0] if by_rows else []))]
    spare = max(REST_ROWS, isa.lanes) if context.is_open else 0

    def planned(graph: Graph) -> Planned[AttentionPlan]:
        shape = shape_at(graph)
        if by_rows and is_by_row(shape):
            return Planned(AttentionPlan(shape, 0), row_work(isa, shape))
        vectors = block_vectors(isa, shape.queries)
        work = block_work(isa, shape, vectors, spare)
        return Planned(AttentionPlan(shape, vectors), work)

    return planned_step(context, wiring, planned, samples, attention_kernel)


class _Words:
    """Numbers that a kernel reads, in order; a plan holds a Word for each."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def word(self, value: int) -> Any:
        """Return a Word of a number."""
        self.values.append(value)
        return Word(len(self.values) - 1)

    def strides(self, of: OperandStrides, row: bool) -> OperandStrides:
        """Return strides whose batches, and whose rows if asked for, are Words."""
        batch = tuple(self.word(stride) for stride in of.batch)
        return replace(of, batch=batch, row=self.word(of.row) if row else of.row)


def _with_words(shape: AttentionShape) -> tuple[AttentionShape, list[int]]:
    """Return a shape with Words for what alike attentions differ in, and the numbers."""
    words = _Words()
    made = replace(
        shape,
        batch=tuple(map(words.word, shape.batch)),
        q=words.strides(shape.q, True),
        k=words.strides(shape.k, True),
        v=words.strides(shape.v, True),
        out=words.strides(shape.out, True),
        mask=None if shape.mask is None else words.strides(shape.mask, False),
    )
    return made, words.values


def alike_key(shape: AttentionShape) -> AttentionShape:
    """Return the same for shapes that one kernel serves."""

    def blank(of: OperandStrides) -> OperandStrides:
        return replace(of, batch=(0,) * len(of.batch), row=0)

    return replace(
        shape,
        batch=(0,) * len(shape.batch),
        q=blank(shape.q),
        k=blank(shape.k),
        v=blank(shape.v),
        out=blank(shape.out),
        mask=None if shape.mask is None else replace(blank(shape.mask), row=shape.mask.row),
    )


def shared_attention_step(
    context: Context, shape: AttentionShape, reads: tuple[Operand, ...], output: int
) -> Step:
    """Return the step of an attention on a kernel that alike ones share; bits are its own."""
    vectors = block_vectors(context.isa, shape.queries)
    known, words = _with_words(shape)
    plan = AttentionPlan(known, vectors)
    code = context.kernel(attention_kernel, plan, read_cut(len(words)))
    items, seconds, room, _ = block_work(context.isa, shape, vectors)
    part, chunks = deal(items, seconds)
    given = np.array([*words, part, items], np.int64)
    return Step(code, (given, *reads), (output,), chunks, room, seconds, family="attention_f32")
