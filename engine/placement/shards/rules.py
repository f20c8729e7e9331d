"""The needs of a stretch of a node's output: a stretch of each input, and the attributes.

A rule a kind of op. Given a node and a stretch of its outputs along one axis, it returns the node
that makes that stretch alone: its attributes, and for every input the stretch to read, None for all
of it, or a constant to put in its place. No rule changes the order of the sum of an output element.
So integers come out the same. Floats do where a device's kernel sums in the same order for another
shape. Source: the ops' own definitions, whose shapes are meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

import numpy as np

from trireme.ir.graph import Graph, Node, TensorType
from trireme.ir.op import Axes, get_op
from trireme.support.dtypes import Array
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass


class Span(NamedTuple):
    """The elements from `start` to before `stop` along one axis of a value."""

    axis: int
    start: int
    stop: int


@dataclass(frozen=True)
class Piece:
    """A node that makes a stretch of another's outputs.

    inputs: for each input of the node, the stretch to read, None for all, or a constant instead
    changed: attributes that differ
    """

    inputs: tuple[Span | Array | None, ...]
    changed: Mapping[str, Any] = field(default_factory=dict)


Rule = Callable[[Graph, Node, Span], Piece]


def piece(graph: Graph, node: Node, span: Span) -> Piece:
    """Return the node that makes the stretch `span` of every output of a node.

    Errors: PlacementError, saying why the node cannot be sharded so
    """
    if (span.start, span.stop) == (0, graph.type(node.outputs[0]).dims[span.axis]):
        return Piece((None,) * len(node.inputs))
    return stretched(graph, node, span)


def stretched(graph: Graph, node: Node, span: Span) -> Piece:
    """Do the same for a stretch that may be all of the outputs, or more of them.

    Errors: PlacementError, as `piece`
    """
    rule = _rule_of(node.op)
    if rule is None:
        raise refusal(node, f"no part of {node.op} can be made alone")
    return rule(graph, node, span)


def refusal(node: Node, why: str) -> PlacementError:
    """Return the error of a node that cannot be sharded as was asked."""
    return PlacementError(f"{node.label} cannot be sharded: {why}")


def alignment(graph: Graph, node: Node, axis: int) -> int:
    """Return what cuts of a node's output along an axis must be multiples of."""
    if node.op == "conv" and axis == len(graph.type(node.outputs[0]).shape) - 1:
        groups = int(node.attrs["groups"])
        return graph.type(node.inputs[1] or 0).dims[0] // groups if groups > 1 else 1
    return 1


def _rank(graph: Graph, value: int | None) -> int:
    return len(graph.type(value or 0).shape)


def _broadcast(graph: Graph, value: int | None, span: Span, rank: int) -> Span | None:
    """Return the stretch of an input that is broadcast, from the right, to an output of `rank`."""
    if value is None:
        return None
    dims = graph.type(value).dims
    axis = span.axis - (rank - len(dims))
    return None if axis < 0 or dims[axis] == 1 else Span(axis, span.start, span.stop)


def _elementwise(graph: Graph, node: Node, span: Span) -> Piece:
    rank = _rank(graph, node.outputs[0])
    return Piece(tuple(_broadcast(graph, i, span, rank) for i in node.inputs))


def _window(
    node: Node, size: int, axis: int, kernel: int, start: int, stop: int
) -> tuple[Span, tuple[int, int]]:
    """Return the input rows that output rows start:stop see, and the pads that are left of them."""
    i, rank = axis - 1, len(node.attrs["strides"])
    stride, dilation = node.attrs["strides"][i], node.attrs["dilations"][i]
    before, after = node.attrs["pads"][i], node.attrs["pads"][i + rank]
    first = start * stride - before
    last = (stop - 1) * stride - before + dilation * (kernel - 1) + 1
    low, high = max(first, 0), min(last, size)
    if low >= high or last - size > max(after, 0):
        raise refusal(node, f"rows {start}:{stop} see nothing but padding")
    return Span(axis, low, high), (low - first, max(last - size, 0))


def _with_pads(node: Node, axis: int, pads: tuple[int, int]) -> dict[str, Any]:
    changed, rank = list(node.attrs["pads"]), len(node.attrs["strides"])
    changed[axis - 1], changed[axis - 1 + rank] = pads
    return {"pads": tuple(changed)}


def _check_layout(node: Node) -> None:
    if node.attrs["layout"] != "NHWC":
        raise refusal(node, "its layout is NCHW; the layout pass makes it NHWC")


def _conv(graph: Graph, node: Node, span: Span) -> Piece:
    _check_layout(node)
    axis, start, stop = span
    x, w = node.inputs[0] or 0, node.inputs[1] or 0
    given = len(node.inputs)
    if axis == _rank(graph, x) - 1:
        return _conv_channels(graph, node, span)
    if axis == 0:
        return Piece(_first((span, None, None, span), given))
    sides = graph.type(w).dims[1:-1]
    rows, pads = _window(node, graph.type(x).dims[axis], axis, sides[axis - 1], start, stop)
    return Piece(_first((rows, None, None, span), given), _with_pads(node, axis, pads))


def _conv_channels(graph: Graph, node: Node, span: Span) -> Piece:
    _, start, stop = span
    groups, given = int(node.attrs["groups"]), len(node.inputs)
    rows = Span(0, start, stop)
    if groups == 1:
        return Piece(_first((None, rows, rows, span), given))
    outputs, depth = (graph.type(node.inputs[1] or 0).dims[i] for i in (0, -1))
    each = outputs // groups
    if start % each or stop % each:
        raise refusal(node, f"a cut must be a multiple of the {each} channels of a group")
    read = Span(span.axis, start // each * depth, stop // each * depth)
    changed = {"groups": (stop - start) // each}
    return Piece(_first((read, rows, rows, span), given), changed)


def _first(spans: Sequence[Span | None], count: int) -> tuple[Span | None, ...]:
    return tuple(spans[:count])


def _pool(graph: Graph, node: Node, span: Span) -> Piece:
    _check_layout(node)
    if len(node.outputs) > 1:
        raise refusal(node, "its indices count places in the whole tensor")
    axis, start, stop = span
    dims = graph.type(node.inputs[0] or 0).dims
    if axis in (0, len(dims) - 1):
        return Piece((span,))
    if node.attrs["ceil_mode"]:
        raise refusal(node, "with ceil_mode its last windows leave the padded input")
    rows, pads = _window(node, dims[axis], axis, node.attrs["kernel"][axis - 1], start, stop)
    return Piece((rows,), _with_pads(node, axis, pads))


def _fully_connected(graph: Graph, node: Node, span: Span) -> Piece:
    given = len(node.inputs)
    if span.axis < _rank(graph, node.inputs[0]) - 1:
        return Piece(_first((span, None, None, span), given))
    rows = Span(0, span.start, span.stop)
    return Piece(_first((None, rows, rows, span), given))


def _matmul(graph: Graph, node: Node, span: Span) -> Piece:
    a, b = node.inputs[0] or 0, node.inputs[1] or 0
    rank = _rank(graph, node.outputs[0])
    if min(_rank(graph, a), _rank(graph, b)) < 2:
        raise refusal(node, "an operand is a vector")
    columns, rows = rank - 1, rank - 2
    left = None if span.axis == columns else _broadcast(graph, a, span, rank)
    right = None if span.axis == rows else _broadcast(graph, b, span, rank)
    return Piece((left, right))


def _gemm(graph: Graph, node: Node, span: Span) -> Piece:
    _, start, stop = span
    added = [_broadcast(graph, i, span, 2) for i in node.inputs[2:]]
    if span.axis == 0:
        return Piece((Span(int(node.attrs["trans_a"]), start, stop), None, *added))
    return Piece((None, Span(1 - int(node.attrs["trans_b"]), start, stop), *added))


def _along(axis_of: Callable[[Graph, Node, int], bool], why: str) -> Rule:
    """Return the rule of an op that mixes elements along some axes, and treats others alike."""

    def rule(graph: Graph, node: Node, span: Span) -> Piece:
        if axis_of(graph, node, span.axis):
            raise refusal(node, why)
        return Piece((span, *[None] * (len(node.inputs) - 1)))

    return rule


def _same_axis(graph: Graph, node: Node, axis: int) -> bool:
    return bool(axis == node.attrs["axis"] % _rank(graph, node.inputs[0]))


def _from_axis(graph: Graph, node: Node, axis: int) -> bool:
    return bool(axis >= node.attrs["axis"] % _rank(graph, node.inputs[0]))


def _concat(graph: Graph, node: Node, span: Span) -> Piece:
    if _same_axis(graph, node, span.axis):
        raise refusal(node, "it joins its inputs along that axis")
    return Piece((span,) * len(node.inputs))


def _ints(graph: Graph, node: Node, position: int) -> tuple[int, ...] | None:
    """Return a constant input as numbers; None where it is left out."""
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None:
        return None
    data = graph.values[value].data
    if data is None:
        raise refusal(node, "its axes are known only when it runs")
    return tuple(int(i) for i in np.asarray(data).reshape(-1))


def _reduce(graph: Graph, node: Node, span: Span) -> Piece:
    rank, axes = _rank(graph, node.inputs[0]), _ints(graph, node, 1)
    if not axes and node.attrs["noop_with_empty_axes"]:
        reduced: set[int] = set()
    else:
        reduced = {axis % rank for axis in axes} if axes else set(range(rank))
    kept = list(range(rank)) if node.attrs["keepdims"] else sorted(set(range(rank)) - reduced)
    axis = kept[span.axis]
    if axis in reduced:
        raise refusal(node, "it sums up that axis")
    return Piece((Span(axis, span.start, span.stop), *[None] * (len(node.inputs) - 1)))


def _transpose(graph: Graph, node: Node, span: Span) -> Piece:
    perm = node.attrs["perm"] or tuple(reversed(range(_rank(graph, node.inputs[0]))))
    return Piece((Span(perm[span.axis], span.start, span.stop),))


def _axis_before(graph: Graph, node: Node, axis: int) -> int:
    """Return the input's axis that is an axis of the output: as long, with as much before it."""
    before, after = graph.type(node.inputs[0] or 0).dims, graph.type(node.outputs[0]).dims
    lead = math.prod(after[:axis])
    for i, dim in enumerate(before):
        if dim == after[axis] and math.prod(before[:i]) == lead:
            return i
    raise refusal(node, "it moves elements across that axis")


def _reshape(graph: Graph, node: Node, span: Span) -> Piece:
    axis, shape = _axis_before(graph, node, span.axis), list(graph.type(node.outputs[0]).dims)
    shape[span.axis] = span.stop - span.start
    return Piece((Span(axis, span.start, span.stop), np.array(shape, np.int64)))


def _renamed_axes(graph: Graph, node: Node, span: Span) -> Piece:
    axis = _axis_before(graph, node, span.axis)
    read = Span(axis, span.start, span.stop)
    return Piece((read, *[None] * (len(node.inputs) - 1)))


def _gather(graph: Graph, node: Node, span: Span) -> Piece:
    """Along the axes of the indices, other indices; along those of x, other stretches of it."""
    if node.attrs["batch_dims"]:
        raise refusal(node, "its indices are of one batch each")
    ranks = [_rank(graph, value) for value in node.inputs]
    first = node.attrs["axis"] % ranks[0]
    past = span.axis - first - ranks[1]
    if first <= span.axis and past < 0:
        return Piece((None, Span(span.axis - first, span.start, span.stop)))
    axis = span.axis if span.axis < first else first + 1 + past
    return Piece((Span(axis, span.start, span.stop), None))


def _resize(graph: Graph, node: Node, span: Span) -> Piece:
    """Axes that it leaves alone; the sizes, where they are given, say how long the stretch is."""
    x, y = graph.type(node.inputs[0] or 0).dims, graph.type(node.outputs[0]).dims
    axes = [a % len(x) for a in node.attrs["axes"] or range(len(x))]
    if x[span.axis] != y[span.axis]:
        raise refusal(node, "it resizes that axis")
    sizes = _ints(graph, node, 3)
    rest: list[Span | Array | None] = [None] * (len(node.inputs) - 1)
    if sizes and span.axis in axes:
        if node.attrs["keep_aspect_ratio_policy"] != "stretch":
            raise refusal(node, "its sizes depend on each other")
        given = list(sizes)
        given[axes.index(span.axis)] = span.stop - span.start
        rest[2] = np.array(given, np.int64)
    return Piece((span, *rest))


def _touched(position: int) -> Rule:
    """Return the rule of slice and pad: other axes than those it works on; they stand in input
    `position`, and are the first ones where that is left out."""

    def rule(graph: Graph, node: Node, span: Span) -> Piece:
        axes, rank = _ints(graph, node, position), _rank(graph, node.inputs[0])
        edges = _ints(graph, node, 1) or ()
        if node.op == "pad":
            count = len(edges) // 2
            places = [a % rank for a in axes] if axes is not None else list(range(count))
            worked = {p for i, p in enumerate(places) if edges[i] or edges[i + count]}
        else:
            worked = {a % rank for a in axes} if axes is not None else set(range(len(edges)))
        if span.axis in worked:
            raise refusal(node, "it works on that axis")
        return Piece((span, *[None] * (len(node.inputs) - 1)))

    return rule


_OWN: Mapping[str, Rule] = {
    "average_pool": _pool,
    "conv": _conv,
    "flatten": _renamed_axes,
    "fully_connected": _fully_connected,
    "gather": _gather,
    "gemm": _gemm,
    "lp_pool": _pool,
    "matmul": _matmul,
    "max_pool": _pool,
    "pad": _touched(3),
    "reshape": _reshape,
    "resize": _resize,
    "slice": _touched(3),
    "squeeze": _renamed_axes,
    "transpose": _transpose,
    "unsqueeze": _renamed_axes,
}
"""Ops whose axes are not as simple as the traits `elementwise` and `axes` say."""
_ALONG: Mapping[Axes, Rule] = {
    Axes("axis", "cuts"): _along(_same_axis, "it cuts along that axis"),
    Axes("axis", "joins"): _concat,
    Axes("axis", "normalises"): _along(_same_axis, "it normalises along that axis"),
    Axes("axis and after", "normalises"): _along(_from_axis, "it normalises along that axis"),
    Axes("input", "reduces"): _reduce,
}


def _rule_of(name: str) -> Rule | None:
    op = get_op(name)
    if op.elementwise:
        return _elementwise
    return _OWN.get(name) or (_ALONG.get(op.axes) if op.axes else None)


def can_be_sharded(op: str) -> bool:
    """Whether a stretch of the op's output can be made by itself."""
    return _rule_of(op) is not None


def type_of(type: TensorType, span: Span) -> TensorType:
    """Return the type of a stretch of a value, per-channel quantisation cut with it."""
    shape = list(type.shape)
    shape[span.axis] = span.stop - span.start
    quant = type.quant
    if quant is not None and quant.axis == span.axis:
        cut = slice(span.start, span.stop)
        quant = replace(quant, scales=quant.scales[cut], zero_points=quant.zero_points[cut])
    return TensorType(tuple(shape), type.dtype, quant)
