"""pad for every shape: a fill and a copy, or a gather along each padded axis.

The pads may be numbers that a shape decides, none of them below 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import Copy
from trireme.devices.cpu.kernels.lowering import Context, KernelFault, Operand, finish
from trireme.devices.cpu.kernels.movement.gather import Lookup, emit_lookup, lookup_work
from trireme.devices.cpu.kernels.movement.move import Move, const_ints, item_bytes, move_reason
from trireme.devices.cpu.kernels.movement.pads import (
    Edges,
    pad_copy,
    pad_edges,
    pad_fill,
    taken_elements,
)
from trireme.devices.cpu.kernels.polymorphic.moves import copy_steps
from trireme.devices.cpu.kernels.polymorphic.sample import HUGE, deal_evenly, generalised
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    SizedTemp,
    begin_sized,
    dims_of,
)
from trireme.ir.graph import Graph, Node
from trireme.support.errors import CompileError


def _is_known(graph: Graph, node: Node) -> bool:
    return graph.values[node.used[1]].is_constant


def _sampled_edges(graph: Graph, node: Node) -> Edges:
    """Return the pads of a sample; huge ones stand for those that a shape decides."""
    if _is_known(graph, node):
        return pad_edges(graph, node)
    x, y = dims_of(graph, node.used[0]), dims_of(graph, node.outputs[0])
    grows = [before != after for before, after in zip(x, y, strict=True)]
    return [(HUGE + 4 * k + 1, HUGE + 4 * k + 3) if g else (0, 0) for k, g in enumerate(grows)]


def _edges_at(graph: Graph, node: Node, sample: Edges) -> Edges:
    """Return the pads of a shape.

    Errors: CompileError, if they are not those of the sample
    """
    if not _is_known(graph, node):
        raise CompileError(f"cpu: {node.label}: its pads are not constant in this shape")
    edges = pad_edges(graph, node)
    for found, expected in zip(edges, sample, strict=True):
        if found != expected and (expected == (0, 0) or min(found) < 0):
            raise CompileError(
                f"cpu: {node.label}: pads {found} in this shape", fix="compile this shape by itself"
            )
    return edges


def _constant(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    sample = _sampled_edges(context.graph, node)
    output, item = node.outputs[0], item_bytes(context.graph, node)

    def fills(graph: Graph, _: Node) -> Sequence[Move]:
        return [Move(Copy((math.prod(dims_of(graph, output)),), (0,), (1,), item), output, output)]

    def copies(graph: Graph, node: Node) -> Sequence[Move]:
        edges = sample if graph is context.graph else _edges_at(graph, node, sample)
        return [Move(pad_copy(graph, node, edges), node.used[0], output)]

    (fill,) = copy_steps(context, node, fills(context.graph, node), fills)
    fill = replace(fill, reads=(pad_fill(context.graph, node),))
    if min(pad_copy(context.graph, node, sample).shape, default=1) < 1:
        return [fill]
    return [fill, *copy_steps(context, node, copies(context.graph, node), copies)]


def sized_edge_kernel(isa: Isa, lookup: Lookup, words: int) -> Code:
    """Return the kernel of a gather; the last words are a chunk's slices, and all.

    Operands: indices, x, a fault, y
    """
    name = f"pad_b{8 * lookup.item}"
    fn, (indices, x, fault, y), chunk, _ = begin_sized(name, isa, 4, words + 2)
    size, rows = fn.words[words:]
    first = chunk * size
    span = first, fn.minimum(first + size, rows)
    emit_lookup(fn, fn.known(lookup), (x, indices, fault, y), span, chunk)
    return finish(fn)


def _by_index(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    sample = _sampled_edges(context.graph, node)
    axes = [axis for axis, edge in enumerate(sample) if edge != (0, 0)] or [0]
    source, steps = context.operand(node.used[0]), []
    for axis in axes:
        target: Operand = node.outputs[0]
        if axis != axes[-1]:
            target = _between(context, node, axis)
        steps.append(_edge_step(context, node, axis, sample, (source, target)))
        source = target
    return steps


def _between(context: Context, node: Node, axis: int) -> SizedTemp:
    item = item_bytes(context.graph, node)

    def bytes_at(graph: Graph) -> int:
        return math.prod(_padded_to(graph, node, axis)) * item

    return SizedTemp(f"pad {node.id} to axis {axis}", item << 12, bytes_at)


def _padded_to(graph: Graph, node: Node, axis: int) -> tuple[int, ...]:
    """Return the sizes of the input with the axes up to one padded."""
    x, y = dims_of(graph, node.used[0]), dims_of(graph, node.outputs[0])
    return (*y[: axis + 1], *x[axis + 1 :])


def _edge_step(
    context: Context, node: Node, axis: int, sample: Edges, ends: tuple[Operand, Operand]
) -> PolymorphicStep:
    item = item_bytes(context.graph, node)

    def lookup_of(graph: Graph) -> Lookup:
        dims = _padded_to(graph, node, axis)
        outer, inner = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
        size = dims_of(graph, node.used[0])[axis]
        return Lookup(1, outer, size, inner, dims[axis], item, 64)

    known, count, words = generalised(lookup_of(context.graph), node.label)
    code = context.kernel(sized_edge_kernel, known, count)

    def size(graph: Graph) -> Sized:
        lookup = lookup_of(graph)
        rows, seconds, _ = lookup_work(lookup)
        part, chunks = deal_evenly(rows, seconds)
        edge = _edges_at(graph, node, sample)[axis]
        taken = taken_elements(lookup.size, edge, node.attrs["mode"])
        return Sized((*words(lookup), part, rows), chunks, seconds, arrays=(taken,))

    inside = KernelFault(lambda bad: f"{node.label}: index {bad} is wrong")
    reads = (ends[0], inside)
    return PolymorphicStep((code,), reads, (ends[1],), size, (node.id,), "gather")


def _lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    make = _constant if node.attrs["mode"] == "constant" else _by_index
    return make(context, node)


def _reason(graph: Graph, node: Node) -> str | None:
    value, axes = (node.inputs[k] if k < len(node.inputs) else None for k in (2, 3))
    if any(one is not None and not graph.values[one].is_constant for one in (value, axes)):
        return "pad has kernels for every shape with a constant value and constant axes only"
    if axes is not None and not _is_known(graph, node) and not const_ints(graph, node, 3):
        return "pad has no kernel for every shape where no axis is named"
    if graph.type(node.used[0]).quant is not None and value is not None:
        return "pad has no native kernel for a given value of a quantised tensor"
    return move_reason(graph, node)


POLYMORPHIC.add("pad", PolymorphicRule(_reason, _lower))
