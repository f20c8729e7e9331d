"""Attention kernels that read sizes and strides when they run.

A polymorphic program has one for every shape. A program of one shape has one for all its attentions
that differ in batches and strides alone: compiling one takes LLVM a tenth of a second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trireme.devices.cpu.codegen.index import plus
from trireme.devices.cpu.codegen.ir import Word
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.attention import AttentionEmitter
from trireme.devices.cpu.kernels.f32.attention_row import RowAttentionEmitter
from trireme.devices.cpu.kernels.f32.attention_shape import (
    AttentionShape,
    OperandStrides,
    attention_name,
    attention_work,
    block_vectors,
    local_bytes,
)
from trireme.devices.cpu.kernels.lowering import Context, Operand, Step, deal, finish
from trireme.devices.cpu.kernels.polymorphic.step import begin_sized


def sized_attention_kernel(isa: Isa, shape: AttentionShape, vectors: int, words: int) -> Code:
    """Return the kernel; the last words are the items of a chunk, and all."""
    fn, operands, chunk, local = begin_sized(
        attention_name(isa, vectors), isa, 4 + (shape.mask is not None), words + 2
    )
    size, items = fn.words[words:]
    known = fn.known(shape)
    emitter = AttentionEmitter(fn, known, vectors, operands, local)
    blocks = fn.integer("udiv", plus(fn, known.queries, emitter.block - 1), emitter.block)
    first = chunk * size
    for item in fn.range(first, fn.minimum(first + size, items)):
        emitter.item(item, blocks)
    return finish(fn)


def sized_row_attention_kernel(isa: Isa, shape: AttentionShape, words: int) -> Code:
    """Return the kernel of few queries; the last words are the items of a chunk, and all."""
    fn, operands, chunk, local = begin_sized(
        "attention_f32_row", isa, 4 + (shape.mask is not None), words + 2
    )
    size, items = fn.words[words:]
    emitter = RowAttentionEmitter(fn, fn.known(shape), operands, local)
    first = chunk * size
    for item in fn.range(first, fn.minimum(first + size, items)):
        emitter.item(item)
    return finish(fn)


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


def with_words(shape: AttentionShape) -> tuple[AttentionShape, list[int]]:
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
    plan, words = with_words(shape)
    code = context.kernel(sized_attention_kernel, plan, vectors, len(words))
    items, seconds = attention_work(context.isa, shape, vectors)
    part, chunks = deal(items, seconds)
    return Step(
        code,
        (np.array([*words, part, items], np.int64), *reads),
        (output,),
        chunks,
        local_bytes(context.isa, shape, vectors),
        seconds,
        family="attention_f32",
    )
