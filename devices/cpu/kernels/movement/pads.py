"""pad: a fill and a strided copy; the other modes are gathers by known indices, axis by axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.kernels.copies import Copy, copy_kernel, dense
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    KernelFault,
    Operand,
    Rule,
    Step,
    Temp,
    deal,
)
from trireme.devices.cpu.kernels.movement.gather import Lookup, lookup_kernel, lookup_work
from trireme.devices.cpu.kernels.movement.move import const_ints, copy_step, item_bytes, move_reason
from trireme.devices.cpu.kernels.spans import Cut
from trireme.ir.graph import Graph, Node
from trireme.ops.slicing import NUMPY_MODES
from trireme.support.dtypes import Array, numpy_dtype

Edges = Sequence[tuple[int, int]]
"""Elements added before and after each axis; below zero they are cut off."""


def _pad_reason(graph: Graph, node: Node) -> str | None:
    for position in (1, 2, 3):
        value = node.inputs[position] if position < len(node.inputs) else None
        if value is not None and not graph.values[value].is_constant:
            return "pad has native kernels for constant pads and values only"
    if graph.type(node.used[0]).quant is not None and len(node.used) > 2:
        return "pad has no native kernel for a given value of a quantised tensor"
    return move_reason(graph, node)


def pad_edges(graph: Graph, node: Node) -> Edges:
    """Return the pads of each axis."""
    rank = len(graph.type(node.used[0]).dims)
    pads = const_ints(graph, node, 1) or ()
    axes = const_ints(graph, node, 3) or tuple(range(len(pads) // 2))
    edges = [(0, 0)] * rank
    for k, axis in enumerate(axes):
        edges[axis % rank] = pads[k], pads[k + len(axes)]
    return edges


def _lower_pad(context: Context, node: Node) -> list[Step]:
    edges = pad_edges(context.graph, node)
    if node.attrs["mode"] != "constant":
        return _by_index(context, node, edges)
    copy = pad_copy(context.graph, node, edges)
    steps = [_fill_step(context, node, pad_fill(context.graph, node))]
    if all(size > 0 for size in copy.shape):
        steps.append(copy_step(context, node, copy, node.outputs[0], "pad"))
    return steps


def pad_copy(graph: Graph, node: Node, edges: Edges) -> Copy:
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
    dims, item = list(context.type(node.used[0]).dims), item_bytes(context.graph, node)
    padded = [axis for axis, edge in enumerate(edges) if edge != (0, 0)] or [0]
    source, steps = context.operand(node.used[0]), []
    for axis in padded:
        taken = taken_elements(dims[axis], edges[axis], node.attrs["mode"])
        outer, inner = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
        lookup = Lookup(1, outer, dims[axis], inner, len(taken), item, 64)
        dims[axis] = len(taken)
        target: Operand = node.outputs[0]
        if axis != padded[-1]:
            target = Temp(f"pad {node.id} to axis {axis}", math.prod(dims) * item)
        rows, seconds, _ = lookup_work(lookup)
        size, chunks = deal(rows, seconds)
        code = context.kernel(lookup_kernel, lookup, Cut(size, rows, chunks == 1))
        # The indices are made here, so that none is ever wrong.
        inside = KernelFault(lambda bad: f"pad: index {bad} is wrong")
        steps.append(
            Step(
                code,
                (source, taken, inside),
                (target,),
                chunks,
                0,
                seconds,
                (node.id,),
                family="gather",
            )
        )
        source = target
    return steps


def taken_elements(size: int, edge: tuple[int, int], mode: str) -> Array:
    """Return which elements of an axis make the padded axis."""
    before, after = edge
    places = np.arange(size, dtype=np.int64)[max(-before, 0) : size + min(after, 0)]
    grow = (max(before, 0), max(after, 0))
    padded: Array = np.pad(places, grow, mode=NUMPY_MODES[mode])  # type: ignore[call-overload]
    return padded


def pad_fill(graph: Graph, node: Node) -> Array:
    """Return the value of a pad as an array of one item."""
    type = graph.type(node.used[0])
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is not None:
        return np.asarray(graph.values[value].data).reshape(1)
    if type.quant is None:
        return np.zeros(1, numpy_dtype(type.dtype))  # a cast of 0 is NaN where a dtype has no 0
    return np.full(1, type.quant.zero_point, numpy_dtype(type.dtype))


def _fill_step(context: Context, node: Node, fill: Array) -> Step:
    y = context.type(node.outputs[0]).dims
    copy = Copy((math.prod(y),), (0,), (1,), item_bytes(context.graph, node))
    code, chunks = context.kernel(copy_kernel, copy, "fill")
    return Step(code, (fill,), (node.outputs[0],), chunks, nodes=(node.id,))


TABLE.add("pad", Rule(_pad_reason, _lower_pad))
