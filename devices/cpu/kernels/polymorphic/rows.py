"""Reductions, softmax and layer normalisation for every shape.

Rows whose length varies are walked in the order of the kernel of one shape: vectors in turn by
accumulator, and the end of the row, masked, in the accumulator that is next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.reductions import (
    REDUCTIONS,
    RowKernel,
    kernel_of,
    layer_norm_reason,
    reduce_reason,
    reduced_rows,
    reduced_span,
    softmax_reason,
    softmax_rows,
)
from trireme.devices.cpu.kernels.f32.rows import Rows, emit_rows, row_items, rows_s
from trireme.devices.cpu.kernels.lowering import Context, finish
from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly, generalised, varies
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    begin_sized,
    dims_of,
)
from trireme.ir.graph import Graph, Node

Reason = Callable[[Graph, Node], str | None]
RowsOf = Callable[[Graph, Node], Rows]


def sized_row_kernel(isa: Isa, kernel: RowKernel, rows: Rows, words: int) -> Code:
    """Return the kernel of rows for every shape; the last words are a chunk's items, and all."""
    name = f"{kernel.op}_f32"
    fn, operands, chunk, _ = begin_sized(name, isa, kernel.operands, words + 2)
    size, items = fn.words[words:]
    known = fn.known(rows)
    first = chunk * size
    span = first, fn.minimum(first + size, items)
    emit_rows(fn, known, span, kernel.body(fn, known, operands))
    return finish(fn)


def _lower(context: Context, node: Node, rows_of: RowsOf) -> list[PolymorphicStep]:
    isa = context.isa
    kernel, reads, family = kernel_of(context.graph, node)
    if node.op in REDUCTIONS:  # an axis of 1 is reduced like a longer one
        rows_of = partial(reduced_rows, span=reduced_span(context.graph, node))
    known, count, words = generalised(rows_of(context.graph, node), node.label)
    code = context.kernel(sized_row_kernel, kernel, known, count)

    def size(graph: Graph) -> Sized:
        rows = rows_of(graph, node)
        items, each = row_items(rows, isa.lanes)
        seconds = rows_s(isa, items, each, kernel.cost)
        part, chunks = deal_evenly(items, seconds)
        return Sized((*words(rows), part, items), chunks, seconds)

    operands = tuple(context.operand(i) for i in reads)
    return [PolymorphicStep((code,), operands, (node.outputs[0],), size, (node.id,), family)]


def _rule(reason: Reason, rows_of: RowsOf) -> PolymorphicRule:
    def sized_reason(graph: Graph, node: Node) -> str | None:
        found = reason(graph, node)
        if found is None and varies(rows_of(graph, node).inner):
            return f"{node.op} has no kernel for every shape where the axes behind it vary"
        return found

    def lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
        return _lower(context, node, rows_of)

    return PolymorphicRule(sized_reason, lower)


def _norm_rows(graph: Graph, node: Node) -> Rows:
    """Return a norm's tensor as rows; a scale or a bias tells the size of an open axis."""
    shape = dims_of(graph, node.used[0])
    axis = node.attrs["axis"] % len(shape)
    sizes = list(shape[axis:])
    for value in node.used[1:]:
        for k, told in enumerate(reversed(dims_of(graph, value)[-len(sizes) :]), 1):
            if varies(sizes[-k]) and not varies(told) and told != 1:
                sizes[-k] = told
    return Rows(math.prod(shape[:axis]), math.prod(sizes), 1)


def _norm_reason(graph: Graph, node: Node) -> str | None:
    return layer_norm_reason(graph, node, _norm_rows)


POLYMORPHIC.add(REDUCTIONS, _rule(reduce_reason, reduced_rows), ["float32"])
POLYMORPHIC.add(("softmax", "log_softmax"), _rule(softmax_reason, softmax_rows), ["float32"])
POLYMORPHIC.add(
    ("layer_normalization", "rms_normalization"), _rule(_norm_reason, _norm_rows), ["float32"]
)
