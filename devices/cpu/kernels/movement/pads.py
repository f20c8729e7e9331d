"""pad: a fill and a strided copy; the other modes are gathers by known indices, axis by axis.

In open graphs the pads may be numbers that a shape decides, none of them below 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.kernels.copies import Copy, copy_step, dense
from trireme.devices.cpu.kernels.lowering import (
    HUGE,
    TABLE,
    Context,
    KernelFault,
    Operand,
    Rule,
    SizedTemp,
    Step,
    Temp,
    dims_of,
    varies,
)
from trireme.devices.cpu.kernels.movement.gather import Lookup, lookup_kernel, lookup_work
from trireme.devices.cpu.kernels.movement.move import (
    Move,
    const_ints,
    copy_steps,
    item_bytes,
    move_reason,
)
from trireme.devices.cpu.kernels.spans import Planned, Wiring, planned_step
from trireme.ir.graph import Graph, Node
from trireme.ops.slicing import NUMPY_MODES
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import CompileError

Edges = Sequence[tuple[int, int]]
"""Elements added before and after each axis; below zero they are cut off."""


def _is_known(graph: Graph, node: Node) -> bool:
    return graph.values[node.used[1]].is_constant


def _reason(graph: Graph, node: Node) -> str | None:
    ends = (*dims_of(graph, node.used[0]), *dims_of(graph, node.outputs[0]))
    is_open = any(map(varies, ends))  # then the pads may be numbers that a shape decides
    for position in (2, 3) if is_open else (1, 2, 3):
        value = node.inputs[position] if position < len(node.inputs) else None
        if value is not None and not graph.values[value].is_constant:
            return "pad has native kernels for constant pads and values only"
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if graph.type(node.used[0]).quant is not None and value is not None:
        return "pad has no native kernel for a given value of a quantised tensor"
    return move_reason(graph, node)


def _open_reason(graph: Graph, node: Node) -> str | None:
    axes = node.inputs[3] if len(node.inputs) > 3 else None
    if axes is not None and not _is_known(graph, node) and not const_ints(graph, node, 3):
        return "pad has no kernel for every shape where no axis is named"
    return None


def _pad_edges(graph: Graph, node: Node) -> Edges:
    """Return the pads of each axis."""
    rank = len(graph.type(node.used[0]).dims)
    pads = const_ints(graph, node, 1) or ()
    axes = const_ints(graph, node, 3) or tuple(range(len(pads) // 2))
    edges = [(0, 0)] * rank
    for k, axis in enumerate(axes):
        edges[axis % rank] = pads[k], pads[k + len(axes)]
    return edges


def _sampled_edges(graph: Graph, node: Node) -> Edges:
    """Return the pads of a graph; in a sample huge ones stand for those that a shape decides."""
    if _is_known(graph, node):
        return _pad_edges(graph, node)
    x, y = dims_of(graph, node.used[0]), dims_of(graph, node.outputs[0])
    grows = [before != after for before, after in zip(x, y, strict=True)]
    return [(HUGE + 4 * k + 1, HUGE + 4 * k + 3) if g else (0, 0) for k, g in enumerate(grows)]


def _edges_at(graph: Graph, node: Node, sample: Edges) -> Edges:
    """Return the pads of a shape.

    Errors: CompileError, if they are not those of the sample
    """
    if not _is_known(graph, node):
        raise CompileError(f"cpu: {node.label}: its pads are not constant in this shape")
    edges = _pad_edges(graph, node)
    for found, expected in zip(edges, sample, strict=True):
        if found != expected and (expected == (0, 0) or min(found) < 0):
            raise CompileError(
                f"cpu: {node.label}: pads {found} in this shape", fix="compile this shape by itself"
            )
    return edges


def _lower(context: Context, node: Node) -> list[Step]:
    edges = _sampled_edges(context.graph, node)
    if node.attrs["mode"] != "constant":
        return _by_index(context, node, edges)
    copy, fill = _pad_copy(context.graph, node, edges), _pad_fill(context.graph, node)
    steps = [_fill_step(context, node, fill)]
    if min(copy.shape, default=1) < 1:
        return steps

    def copies(graph: Graph, node: Node) -> list[Move]:
        found = edges if graph is context.graph else _edges_at(graph, node, edges)
        return [Move(_pad_copy(graph, node, found), node.used[0], node.outputs[0])]

    return [*steps, *copy_steps(context, node, copies(context.graph, node), copies)]


def _pad_copy(graph: Graph, node: Node, edges: Edges) -> Copy:
    """Return the copy of what stays of the input to its place in the output."""
    x, y = graph.type(node.used[0]).dims, graph.type(node.outputs[0]).dims
    pairs = zip(x, edges, strict=True)
    kept = tuple(max(size + min(before, 0) + min(after, 0), 0) for size, (before, after) in pairs)
    source, target = dense(x), dense(y)
    return Copy(
        kept,
        source,
        target,
        item_bytes(graph, node),
        sum(max(-b, 0) * s for (b, _), s in zip(edges, source, strict=True)),
        sum(max(b, 0) * t for (b, _), t in zip(edges, target, strict=True)),
    )


def _by_index(context: Context, node: Node, edges: Edges) -> list[Step]:
    """Gather along each padded axis, the first first; what lies between is as large as needed."""
    axes = [axis for axis, edge in enumerate(edges) if edge != (0, 0)] or [0]
    source, steps = context.operand(node.used[0]), []
    for axis in axes:
        is_last = axis == axes[-1]
        target: Operand = node.outputs[0] if is_last else _between(context, node, axis)
        steps.append(_edge_step(context, node, axis, edges, (source, target)))
        source = target
    return steps


def _padded_to(graph: Graph, node: Node, axis: int) -> tuple[int, ...]:
    """Return the sizes of the input with the axes up to one padded."""
    x, y = dims_of(graph, node.used[0]), dims_of(graph, node.outputs[0])
    return (*y[: axis + 1], *x[axis + 1 :])


def _between(context: Context, node: Node, axis: int) -> Temp:
    item, key = item_bytes(context.graph, node), f"pad {node.id} to axis {axis}"

    def bytes_at(graph: Graph) -> int:
        return math.prod(_padded_to(graph, node, axis)) * item

    if context.is_open:
        return SizedTemp(key, item << 12, bytes_at)
    return Temp(key, bytes_at(context.graph))


def _edge_step(
    context: Context, node: Node, axis: int, edges: Edges, ends: tuple[Operand, Operand]
) -> Step:
    """Return the gather along a padded axis."""
    item = item_bytes(context.graph, node)

    def lookup_of(graph: Graph) -> Lookup:
        dims = _padded_to(graph, node, axis)
        outer, inner = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
        return Lookup(1, outer, dims_of(graph, node.used[0])[axis], inner, dims[axis], item, 64)

    def planned(graph: Graph) -> Planned[Lookup]:
        lookup, edge = lookup_of(graph), _edges_at(graph, node, edges)[axis]
        table = _taken_elements(lookup.size, edge, node.attrs["mode"])
        return Planned(lookup, lookup_work(lookup), (table,))

    # The indices are made here, so that none is ever wrong.
    inside = KernelFault(lambda bad: f"{node.label}: index {bad} is wrong")
    wiring = Wiring((ends[0], inside), (ends[1],), (node.id,), "gather")
    samples = (lookup_of(context.graph),) if context.is_open else ()
    return planned_step(context, wiring, planned, samples, lookup_kernel)


def _taken_elements(size: int, edge: tuple[int, int], mode: str) -> Array:
    """Return which elements of an axis make the padded axis."""
    before, after = edge
    places = np.arange(size, dtype=np.int64)[max(-before, 0) : size + min(after, 0)]
    grow = (max(before, 0), max(after, 0))
    padded: Array = np.pad(places, grow, mode=NUMPY_MODES[mode])  # type: ignore[call-overload]
    return padded


def _pad_fill(graph: Graph, node: Node) -> Array:
    """Return the value of a pad as an array of one item."""
    type = graph.type(node.used[0])
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is not None:
        return np.asarray(graph.values[value].data).reshape(1)
    if type.quant is None:
        return np.zeros(1, numpy_dtype(type.dtype))  # a cast of 0 is NaN where a dtype has no 0
    return np.full(1, type.quant.zero_point, numpy_dtype(type.dtype))


def _fill_step(context: Context, node: Node, fill: Array) -> Step:
    def copy_at(graph: Graph) -> Copy:
        return Copy((math.prod(dims_of(graph, node.outputs[0])),), (0,), (1,), fill.itemsize)

    wiring = Wiring((fill,), node.outputs, (node.id,))
    return copy_step(context, wiring, copy_at(context.graph), "fill", copy_at)


TABLE.add("pad", Rule(_reason, _lower, _open_reason))
