"""Renumber the axes of an op for an untransposed input, for the layout pass.

Each function gets a node that reads y = transpose(u, perm) as its first input. It returns the
inputs and attributes of the same node on u: axis a of y is axis perm[a] of u.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.graph import Node
from trireme.ir.op import OpDef
from trireme.ir.rewriter import GraphRewriter
from trireme.passes.views import Perm
from trireme.support.dtypes import Array
from trireme.support.records import dataclass


@dataclass(frozen=True)
class Renumbered:
    """Inputs and attributes for the untransposed input, and the perm of the outputs."""

    inputs: Sequence[int | None]
    attrs: Mapping[str, Any]
    perm: Perm


Renumber = Callable[[GraphRewriter, Node, Perm], Renumbered | None]


def _without(perm: Perm, axes: set[int]) -> Perm:
    """Return the perm of the axes left when these axes of y (and theirs of u) are removed."""
    left = [perm[a] for a in range(len(perm)) if a not in axes]
    order = sorted(left)
    return tuple(order.index(axis) for axis in left)


def _axis_attr(g: GraphRewriter, node: Node, perm: Perm) -> Renumbered:
    attrs = dict(node.attrs) | {"axis": perm[node.attrs["axis"]]}
    return Renumbered(node.inputs, attrs, perm)


def _axes_attr(g: GraphRewriter, node: Node, perm: Perm) -> Renumbered:
    attrs = dict(node.attrs) | {"axes": tuple(perm[a] for a in node.attrs["axes"])}
    return Renumbered(node.inputs, attrs, perm)


def _arg(g: GraphRewriter, node: Node, perm: Perm) -> Renumbered:
    axis = node.attrs["axis"] % len(perm)
    attrs = dict(node.attrs) | {"axis": perm[axis]}
    out = perm if node.attrs["keepdims"] else _without(perm, {axis})
    return Renumbered(node.inputs, attrs, out)


def _reduce(g: GraphRewriter, node: Node, perm: Perm) -> Renumbered | None:
    given = node.inputs[1] if len(node.inputs) > 1 else None
    axes = g.data(given)
    if given is not None and axes is None:
        return None
    if axes is None or not axes.size:
        same = bool(node.attrs["noop_with_empty_axes"]) or bool(node.attrs["keepdims"])
        return Renumbered(node.inputs, node.attrs, perm if same else ())
    named = {int(a) % len(perm) for a in axes.ravel()}
    moved = g.constant(np.array(sorted(perm[a] for a in named), np.int64))
    out = perm if node.attrs["keepdims"] else _without(perm, named)
    return Renumbered([node.used[0], moved], node.attrs, out)


def _gather(g: GraphRewriter, node: Node, perm: Perm) -> Renumbered | None:
    axis, indices = node.attrs["axis"] % len(perm), g.type(node.used[1])
    if len(indices.shape) > 1 or node.attrs["batch_dims"]:
        return None
    out = perm if len(indices.shape) == 1 else _without(perm, {axis})
    return Renumbered(node.inputs, dict(node.attrs) | {"axis": perm[axis]}, out)


def _slice(g: GraphRewriter, node: Node, perm: Perm) -> Renumbered | None:
    inputs = [*node.inputs, None, None][:5]
    axes = _axes_or_all(g, inputs[3], inputs[1], perm)
    if axes is None:
        return None
    inputs[3] = g.constant(np.array([perm[a] for a in axes], np.int64))
    return Renumbered(inputs, node.attrs, perm)


def _axes_or_all(
    g: GraphRewriter, axes: int | None, counted: int | None, perm: Perm
) -> list[int] | None:
    """Return the axes in an input, or the first ones, as many as another input counts."""
    data = g.data(axes)
    if data is not None:
        return [int(a) % len(perm) for a in data.ravel()]
    count = g.type(counted).shape[0] if counted is not None else None
    return list(range(count)) if axes is None and isinstance(count, int) else None


def _pad(g: GraphRewriter, node: Node, perm: Perm) -> Renumbered | None:
    inputs = [*node.inputs, None, None][:4]
    axes, pads = g.data(inputs[3]), g.data(inputs[1])
    if axes is not None:
        inputs[3] = g.constant(np.array([perm[int(a)] for a in axes.ravel()], np.int64))
        return Renumbered(inputs, node.attrs, perm)
    if inputs[3] is not None or pads is None:
        return None
    before, after = pads.reshape(2, -1)
    inputs[1] = g.constant(np.concatenate([_moved(before, perm), _moved(after, perm)]))
    return Renumbered(inputs, node.attrs, perm)


def _moved(numbers: Array, perm: Perm) -> Array:
    """Return one number an axis of u, given one an axis of y."""
    out = np.empty_like(numbers)
    out[list(perm)] = numbers
    return out


def _number_an_axis(g: GraphRewriter, node: Node, perm: Perm) -> Renumbered | None:
    numbers = g.data(node.used[1])
    if numbers is None or numbers.size != len(perm):
        return None
    inputs = [node.inputs[0], g.constant(_moved(numbers, perm))]
    return Renumbered(inputs, node.attrs, perm)


def _resize(g: GraphRewriter, node: Node, perm: Perm) -> Renumbered | None:
    if _leaves_integer_form(g, node, perm):
        return None
    inputs = [*node.inputs, None, None, None][:4]
    roi = g.data(inputs[1])
    if inputs[1] is not None and (roi is None or roi.size):
        return None
    if node.attrs["axes"]:
        attrs = dict(node.attrs) | {"axes": tuple(perm[a] for a in node.attrs["axes"])}
        return Renumbered(inputs, attrs, perm)
    for position in (2, 3):
        numbers = g.data(inputs[position])
        if numbers is not None and numbers.size == len(perm):
            inputs[position] = g.constant(_moved(numbers, perm))
        elif inputs[position] is not None and (numbers is None or numbers.size):
            return None
    return Renumbered(inputs, node.attrs, perm)


def _leaves_integer_form(g: GraphRewriter, node: Node, perm: Perm) -> bool:
    """Whether a resize has an integer form here, but none behind the perm."""
    x, y = g.type(node.used[0]), g.type(node.outputs[0])
    axes = [
        a for a, (before, after) in enumerate(zip(x.shape, y.shape, strict=True)) if before != after
    ]
    inside = {1, 2}.issuperset
    stored = x.quant is not None and node.attrs["mode"] != "nearest"
    return stored and inside(axes) and not inside(perm[a] for a in axes)


def _axis_input(g: GraphRewriter, node: Node, perm: Perm) -> Renumbered | None:
    axis = g.data(node.used[1])
    if axis is None or axis.size != 1:
        return None
    moved = np.asarray(perm[int(axis.ravel()[0])], axis.dtype).reshape(axis.shape)
    return Renumbered([node.inputs[0], g.constant(moved)], node.attrs, perm)


_OWN: Mapping[str, Renumber] = {
    "gather": _gather,
    "pad": _pad,
    "resize": _resize,
    "slice": _slice,
}
"""Ops whose axes the trait `axes` cannot express."""
_NAMED: Mapping[str, Renumber] = {
    "axis": _axis_attr,
    "axes": _axes_attr,
    "input": _axis_input,
    "number each": _number_an_axis,
}
_REDUCED: Mapping[str, Renumber] = {"axis": _arg, "input": _reduce}


def renumber_of(op: OpDef) -> Renumber | None:
    """Return the function that renumbers the axes of an op's nodes, None where there is none."""
    if op.name in _OWN or op.axes is None:
        return _OWN.get(op.name)
    return (_REDUCED if op.axes.does == "reduces" else _NAMED).get(op.axes.named)
