"""layout: channels last everywhere, with as few transposes as possible.

A node with layout NCHW becomes one with layout NHWC between transposes. Transposes then sink: a
node that reads transposed values works on the untransposed ones, its axes renumbered. Its output is
transposed instead. A transpose that meets its opposite goes. A transpose that remains is a visible
node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.ir.rewriter import GraphRewriter, Rule
from trireme.ir.rules import Rewritten, Roots, apply, rules_by_op
from trireme.passes.axes import renumber_of
from trireme.passes.views import (
    Perm,
    add_untransposed,
    channels_first,
    existing_untransposed,
    inverse,
    nbytes,
    transposed,
    untransposed,
    view_of,
)
from trireme.passes.views_reshape import flatten_into_weights, reshape_under


def layout(graph: Graph) -> Rewritten:
    """Turn NCHW nodes into NHWC ones; sink and cancel transposes."""
    return apply(graph, rules_by_op(*LAYOUT))


def channels_last(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """op of layout NCHW -> transpose(op of layout NHWC)."""
    if root.attrs.get("layout") != "NCHW" or len(root.outputs) > 1:
        return None
    perm = channels_first(len(g.type(root.used[0]).shape))
    if len(perm) < 3:
        return None
    inputs = list(root.inputs)
    for position in get_op(root.op).layout_inputs:
        value = inputs[position] if position < len(inputs) else None
        if value is not None:
            inputs[position] = untransposed(g, value, perm, root)
    return add_untransposed(g, root, inputs, dict(root.attrs) | {"layout": "NHWC"}, perm)


def transpose_of_view(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """transpose(transpose(u)) -> transpose(u), or u."""
    if root.pin is not None:
        return None
    view = view_of(g, root.outputs[0]) or (root.used[0], _perm(g, root))
    if view_of(g, root.used[0]) is not None:
        return (transposed(g, root.used[0], view[1], root),)
    g.memo.setdefault(("transposed", root.used[0], view[1]), root.outputs[0])
    return None


def _perm(g: GraphRewriter, root: Node) -> Perm:
    perm = root.attrs["perm"]
    return tuple(range(len(g.type(root.used[0]).shape)))[::-1] if perm is None else tuple(perm)


def sink_elementwise(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """op(transpose(u), ...) -> transpose(op(u, ...)), for ops on each element by itself."""
    rank = len(g.type(root.outputs[0]).shape)
    if len(root.outputs) != 1 or not all(_widens(g, value, rank) for value in root.used):
        return None
    full = [v for v in root.used if len(g.type(v).shape) == rank and not _is_single(g, v)]
    perm = perm_to_sink(g, root, full)
    if perm is None:
        return None
    inputs = [None if v is None else _operand(g, v, perm, root) for v in root.inputs]
    return add_untransposed(g, root, inputs, dict(root.attrs), perm)


def _is_single(g: GraphRewriter, value: int) -> bool:
    return all(dim == 1 for dim in g.type(value).shape)


def _widens(g: GraphRewriter, value: int, rank: int) -> bool:
    """Whether leading ones can give a value the rank of the output."""
    type = g.type(value)
    if type.quant is not None and type.quant.axis is not None and len(type.shape) != rank:
        return False
    return len(type.shape) == rank or type.is_static or g.data(value) is not None


def _operand(g: GraphRewriter, value: int, perm: Perm, root: Node) -> int:
    type, data = g.type(value), g.data(value)
    if _is_single(g, value):
        return value
    if data is None:
        if len(type.shape) < len(perm):
            shape = np.array([1] * (len(perm) - len(type.shape)) + list(type.dims), np.int64)
            as_said = {"allowzero": 1} if 0 in type.dims else {}  # 0 is a size here, no copy
            value = g.add("reshape", [value, g.constant(shape)], as_said, [root], type.quant)
        return untransposed(g, value, perm, root)
    if type.quant is not None and type.quant.axis is not None:
        return untransposed(g, value, perm, root)
    wide = data.reshape((1,) * (len(perm) - data.ndim) + data.shape).transpose(inverse(perm))
    while wide.ndim > 1 and wide.shape[0] == 1:
        wide = wide[0]
    return g.constant(wide, g.values[value].name, type.quant)


def sink_axes(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """op along axes of transpose(u) -> transpose(op along the same axes of u)."""
    op = get_op(root.op)
    joins = op.axes is not None and op.axes.does == "joins"
    values = root.used if joins else root.used[:1]
    perm, renumber = perm_to_sink(g, root, values), renumber_of(op)
    renumbered = renumber(g, root, perm) if perm and renumber else None
    if perm is None or renumbered is None:
        return None
    inputs = list(renumbered.inputs)
    for position in range(len(values)):
        inputs[position] = untransposed(g, values[position], perm, root)
    return add_untransposed(g, root, inputs, dict(renumbered.attrs), renumbered.perm)


def perm_to_sink(g: GraphRewriter, root: Node, values: Sequence[int]) -> Perm | None:
    """Return the perm whose transposes should sink past the root, None when none should.

    They should if fewer bytes are then transposed. With as many bytes, they should if this pass
    added the transpose after a node of layout NCHW, or if it may meet its opposite further on.
    """
    views = {value: view for value in values if (view := view_of(g, value)) is not None}
    perms = dict.fromkeys(perm for _, perm in views.values())
    bills = [(*_transposed_bytes(g, root, values, views, perm), perm) for perm in perms]
    if not bills:
        return None
    saved, new, perm = max(bills, key=lambda bill: bill[0] - bill[1])
    first = perm == channels_first(len(perm)) and len(perm) > 2
    if saved < new or not saved or (saved == new and not (first and perm != inverse(perm))):
        return None  # a perm that is its own inverse would go back and forth
    made = sum(nbytes(g, out) for out in root.outputs)
    if made < saved - new or (made <= saved and first) or may_cancel(g, root):
        return perm
    return None


def _transposed_bytes(
    g: GraphRewriter,
    root: Node,
    values: Sequence[int],
    views: Mapping[int, tuple[int, Perm]],
    perm: Perm,
) -> tuple[int, int]:
    """Return the bytes of transposes that disappear, and that appear, if `perm` sinks.

    A transpose with a reader before the root stays. Where some must appear, only transposes with
    the root as single reader count as disappearing.
    """
    others = [v for v in dict.fromkeys(values) if v not in views or views[v][1] != perm]
    there = {v: existing_untransposed(g, v, perm) for v in others}
    new = sum(nbytes(g, v) for v in others if there[v] is None)
    going = [v for v in views if v not in there.values() and not g.is_read(v)]
    if new:
        going = [v for v in going if g.uses(v) == root.inputs.count(v)]
    return sum(nbytes(g, v) for v in going), new


def may_cancel(g: GraphRewriter, root: Node) -> bool:
    """Whether a transpose that sinks past the root may reach one that it cancels."""
    found: set[int] | None = g.memo.get("may_cancel")
    if found is None:
        found = g.memo["may_cancel"] = _before_transposes(g.graph)
    return any(out in found for out in root.outputs)


def _before_transposes(graph: Graph) -> set[int]:
    """Return the values from which movable nodes lead to a transpose or to a node of NCHW."""
    found: set[int] = set()
    for node in reversed(graph.nodes):
        op = get_op(node.op)
        movable = op.elementwise or renumber_of(op) or node.op == "reshape"
        if node.op == "transpose" or node.attrs.get("layout") == "NCHW":
            found.add(node.used[0])
        elif movable and any(out in found for out in node.outputs):
            found.update(node.used)
    return found


def sink_reshape(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """reshape(transpose(u)) -> transpose(reshape(u)) when whole groups of axes move."""
    view = view_of(g, root.used[0])
    if view is None:
        return None
    cancels = may_cancel(g, root) and g.uses(root.used[0]) == 1
    return reshape_under(g, root, *view, cancels)


def sink_rows(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """fully_connected(transpose(u)) -> transpose(fully_connected(u)), the last axis staying."""
    view = view_of(g, root.used[0])
    if view is None or len(root.inputs) > 3 or not may_cancel(g, root):
        return None
    u, perm = view
    if perm[-1] != len(perm) - 1:
        return None
    return add_untransposed(g, root, [u, *root.inputs[1:]], dict(root.attrs), perm)


LAYOUT: tuple[tuple[Roots, Rule], ...] = (
    (lambda op: op.layout_inputs, channels_last),
    (["transpose"], transpose_of_view),
    (lambda op: op.elementwise, sink_elementwise),
    (renumber_of, sink_axes),
    (["reshape"], sink_reshape),
    (["fully_connected"], flatten_into_weights),
    (["fully_connected"], sink_rows),
)
