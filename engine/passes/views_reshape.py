"""Reshapes of transposed views, for the layout pass: whole groups of axes move together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trireme.ir.graph import Node
from trireme.ir.rewriter import GraphRewriter
from trireme.passes.views import Perm, inverse, is_identity, transposed, untransposed_quant, view_of
from trireme.support.records import dataclass


@dataclass(frozen=True)
class AxisGroup:
    """Neighbouring axes of a reshape's input that become neighbouring axes of its output."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def groups_of(before: Sequence[int], after: Sequence[int]) -> list[AxisGroup]:
    """Return the smallest groups that a reshape between static shapes keeps apart."""
    groups, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        first_i, first_j = i, j
        i, j = min(i + 1, len(before)), min(j + 1, len(after))
        while math.prod(before[first_i:i]) != math.prod(after[first_j:j]):
            if math.prod(before[first_i:i]) < math.prod(after[first_j:j]):
                i += 1
            else:
                j += 1
        groups.append(AxisGroup(tuple(range(first_i, i)), tuple(range(first_j, j))))
    return groups


def reshape_under(
    g: GraphRewriter, root: Node, u: int, perm: Perm, sorts: bool
) -> tuple[int, ...] | None:
    """Return the values that replace reshape(transpose(u, perm)), None to leave it.

    `sorts`: it pays to transpose u inside a group and leave the groups in place, as a channel
    shuffle does to channels that come last.
    """
    y, out = g.type(root.used[0]), g.type(root.outputs[0])
    if not (y.is_static and out.is_static) or 0 in y.dims or out.quant != y.quant:
        return None
    if y.quant is not None and y.quant.axis is not None:
        return None
    groups = groups_of(y.dims, out.dims)
    groups.sort(key=lambda group: _place(group, y.dims, perm))
    if not _whole(groups, y.dims, perm):
        order = tuple(perm[i] for group in groups for i in group.before)
        if not sorts or order == perm:
            return None
        u, perm = transposed(g, u, order, root), tuple(order.index(i) for i in perm)
    axes = [axis for group in groups for axis in group.after]
    moved = inverse(tuple(axes))
    if not (sorts or is_identity(moved)):
        return None
    shape = g.constant(np.array([out.dims[axis] for axis in axes], np.int64))
    made = g.add("reshape", [u, shape], {}, [root], untransposed_quant(out.quant, moved))
    return (transposed(g, made, moved, root),)


def _place(group: AxisGroup, dims: Sequence[int], perm: Perm) -> int:
    """Return where in u a group begins; an axis of length 1 can be anywhere."""
    long = [perm[i] for i in group.before if dims[i] != 1]
    return min(long or [perm[i] for i in group.before] or [len(perm)])


def _whole(groups: Sequence[AxisGroup], dims: Sequence[int], perm: Perm) -> bool:
    """Whether each group's axes are neighbours, in the same order, in u too."""
    order = [perm[i] for group in groups for i in group.before if dims[i] != 1]
    return order == sorted(order)


def flatten_into_weights(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """fully_connected(reshape(transpose(u))) that flattens rows -> the same on u, weights moved."""
    flat = g.only_for(root.used[0], root, "reshape")
    view = view_of(g, flat.used[0]) if flat else None
    weights, quant = g.data(root.used[1]), g.type(root.used[1]).quant
    if flat is None or view is None or weights is None or (quant is not None and quant.axis == 1):
        return None
    u, perm = view
    y, out = g.type(flat.used[0]), g.type(root.used[0])
    rows = y.shape[1:]
    if len(out.shape) != 2 or perm[0] != 0 or not all(isinstance(d, int) for d in rows):
        return None
    if out.shape[1] != math.prod(int(d) for d in rows) or out.shape[0] != y.shape[0]:
        return None
    if y.quant is not None and y.quant.axis is not None:
        return None
    wide = weights.reshape(len(weights), *rows).transpose(inverse(perm))
    turned_weights = g.constant(
        np.ascontiguousarray(wide).reshape(weights.shape), g.values[root.used[1]].name, quant
    )
    x = g.add("reshape", [u, flat.inputs[1]], flat.attrs, [flat], out.quant)
    inputs = [x, turned_weights, *root.inputs[2:]]
    return (g.add(root.op, inputs, root.attrs, [root], g.type(root.outputs[0]).quant),)
