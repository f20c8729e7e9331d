"""gather: slices of a tensor picked by indices, known at compile time or not.

x [batch, outer, size, inner] and indices [batch, picks] give y [batch, outer, picks, inner], copied
slice by slice. An index outside -size..size-1 reads slice 0 and ends the run with an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import Copy, copy_row
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    KernelFault,
    Rule,
    Step,
    finish,
    in_every_shape,
    varies,
)
from trireme.devices.cpu.kernels.movement.move import Move, copy_steps
from trireme.devices.cpu.kernels.spans import SpanCut, SpanWork, Wiring, begin_span, span_step
from trireme.ir.graph import Graph, Node
from trireme.ops.bounds import outside_axis
from trireme.support.dtypes import itemsize
from trireme.support.records import dataclass

_FEW = 4
"""Constant indices that are copied one by one, as slices."""


@dataclass(frozen=True)
class Lookup:
    """A gather: sizes as in the module's text, bytes of an item, bits of an index."""

    batch: int
    outer: int
    size: int
    inner: int
    picks: int
    item: int
    index_bits: int


def _lookup_of(graph: Graph, node: Node) -> Lookup:
    """Return a gather's sizes."""
    x, indices = (graph.type(i) for i in node.used)
    axis, lead = node.attrs["axis"] % len(x.dims), node.attrs["batch_dims"]
    return Lookup(
        math.prod(x.dims[:lead]),
        math.prod(x.dims[lead:axis]),
        x.dims[axis],
        math.prod(x.dims[axis + 1 :]),
        math.prod(indices.dims[lead:]),
        itemsize(x.dtype),
        8 * itemsize(indices.dtype),
    )


def lookup_work(lookup: Lookup) -> SpanWork:
    """Return the slices that a gather copies, and about how many seconds that takes."""
    rows = lookup.batch * lookup.outer * lookup.picks
    return SpanWork(rows, rows * (lookup.inner * lookup.item / 4e9 + 2e-9))


def lookup_kernel(isa: Isa, lookup: Lookup, cut: SpanCut) -> Code:
    """Return the kernel of a gather. Operands: indices, x, fault, y."""
    name = f"gather_b{8 * lookup.item}"
    fn, operands, chunk, _, span = begin_span(name, isa, 4, cut)
    _emit_lookup(fn, fn.known(lookup), operands, span, None if cut.is_sole else chunk)
    return finish(fn)


def _emit_lookup(
    fn: Function,
    lookup: Lookup,
    operands: Sequence[Value],
    span: tuple[Index, Index],
    chunk: Value | None,
) -> None:
    """Emit the copy of some slices, and in chunk 0 a look at all indices."""
    (indices, x, fault, y), bits = operands, 8 * lookup.item
    if chunk is None:
        _check(fn, lookup, indices, fault)
    else:
        with fn.when(fn.compare("eq", chunk, 0)):
            _check(fn, lookup, indices, fault)
    along = Copy((lookup.inner,), (1,), (1,), lookup.item)
    for row in fn.range(*span):
        pick, before = (fn.integer(op, row, lookup.picks) for op in ("urem", "udiv"))
        batch = fn.integer("udiv", before, lookup.outer)
        at = fn.as_value("i64", batch) * lookup.picks + pick
        place, is_wrong = _place(fn, lookup, indices, at)
        place = fn.select(is_wrong, fn.as_value("i64", 0), place)
        source = fn.as_value("i64", before) * lookup.size + place
        copy_row(
            fn,
            along,
            fn.at(x, source * lookup.inner, f"i{bits}"),
            fn.at(y, row * lookup.inner, f"i{bits}"),
            f"i{bits}",
            lookup.inner,
        )


def _place(fn: Function, lookup: Lookup, indices: Value, at: Index) -> tuple[Value, Value]:
    """Return an index counted from the front, and whether it lies outside."""
    index = _index(fn, lookup, indices, at)
    place = fn.select(fn.compare("slt", index, 0), index + lookup.size, index)
    return place, fn.compare("uge", place, lookup.size)


def _index(fn: Function, lookup: Lookup, indices: Value, at: Index) -> Value:
    element = f"i{lookup.index_bits}"
    index = fn.load(element, fn.at(indices, at, element), lookup.index_bits // 8)
    return index if lookup.index_bits == 64 else fn.convert("sext", index, "i64")


def _check(fn: Function, lookup: Lookup, indices: Value, fault: Value) -> None:
    """Emit a look at all indices; the first that is outside is reported."""
    total = lookup.batch * lookup.picks
    for back in fn.range(0, total):
        at = fn.as_value("i64", total - 1) - back  # backwards: the first is the last to be written
        _, is_wrong = _place(fn, lookup, indices, at)
        with fn.when(is_wrong):
            fn.store(fn.as_value("i64", 1), fault, 8)
            fn.store(_index(fn, lookup, indices, at), fn.at(fault, 1, "i64"), 8)


def _reason(graph: Graph, node: Node) -> str | None:
    """Say why a gather has no native kernel, None when it has."""
    types = [graph.type(i) for i in (node.used[0], *node.outputs)]
    if types[0].quant != types[1].quant:
        return "gather has no native kernel between different quantisations"
    if not all(graph.type(i).elements for i in (*node.used, *node.outputs)):
        return "gather has no native kernel for empty tensors"
    if types[0].dtype == "string" or itemsize(types[0].dtype) not in (1, 2, 4, 8):
        return f"gather has no native kernel for {types[0].dtype}"
    return None


def _lower(context: Context, node: Node) -> list[Step]:
    sample = _lookup_of(context.graph, node)
    moves = _slice_moves(context.graph, node, sample)
    if moves is not None:
        return copy_steps(context, node, moves, _moves_in)
    x, indices = map(context.operand, node.used)
    reads = (indices, x, index_fault(node, sample.size))
    wiring = Wiring(reads, node.outputs, (node.id,), "gather")
    return [span_step(context, wiring, partial(_lookup_of, node=node), lookup_work, lookup_kernel)]


def index_fault(node: Node, axis: int) -> KernelFault:
    """Return the fault of an index outside an axis; the size of one that varies is not told."""
    label = node.label

    def message(bad: int) -> str:
        outside = f"index {bad} lies outside its axis" if varies(axis) else outside_axis(bad, axis)
        return f"{label}: {outside}"

    return KernelFault(message)


def _moves_in(graph: Graph, node: Node) -> list[Move]:
    return _slice_moves(graph, node, _lookup_of(graph, node)) or []


def _slice_moves(graph: Graph, node: Node, lookup: Lookup) -> list[Move] | None:
    """Return a gather of a few known indices as copies, one an index; None for any other."""
    data = graph.values[node.used[1]].data
    if data is None or data.size > _FEW or lookup.batch != 1:
        return None
    outer, size, inner = lookup.outer, lookup.size, lookup.inner
    picked = [int(i) for i in data.reshape(-1)]
    if not all(-size <= i < size for i in picked):
        return None
    return [
        Move(
            Copy(
                (outer, inner),
                (size * inner, 1),
                (len(picked) * inner, 1),
                lookup.item,
                index % size * inner,
                k * inner,
            ),
            node.used[0],
            node.outputs[0],
        )
        for k, index in enumerate(picked)
    ]


TABLE.add("gather", Rule(_reason, _lower, in_every_shape))
