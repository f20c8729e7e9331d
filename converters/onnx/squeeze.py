"""Squeeze without axes takes those of size 1 away; a run tells which of open size these are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.converters.onnx.scope import NodeUse
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType


def squeeze(use: NodeUse) -> Sequence[int]:
    """Squeeze; without axes, each axis of open size is an `if` that takes it away where it is 1.

    torch.onnx.export writes `x.squeeze()` so. The last axis goes first: the places before it hold.
    """
    x, type = use.need(0), use.type()
    if use.input(1) is not None or not type.has_rank or type.is_static:
        return (use.add("squeeze", *use.inputs),)
    made = x
    for axis, dim in reversed(list(enumerate(type.shape))):
        if dim == 1:
            made = use.add("squeeze", made, use.constant([axis], "int64"))
        elif isinstance(dim, str):
            size = use.add("shape", x, start=axis, end=axis + 1)
            is_one = use.add("equal", size, use.constant([1], "int64"))
            made = _where_one(use, is_one, made, axis)
    return (made,)


def _where_one(use: NodeUse, is_one: int, x: int, axis: int) -> int:
    """Return x without an axis where a condition is true, else x."""
    type = use.scope.builder.type(x)
    branches = {"then_branch": _body(type, axis), "else_branch": _body(type, None)}
    return use.add_node("if", [is_one, x], branches)[0]


def _body(type: TensorType, axis: int | None) -> Graph:
    """Return a branch that gives its input, without an axis unless that is None."""
    builder = GraphBuilder("kept" if axis is None else "squeezed")
    x = builder.input("x", type)
    if axis is None:
        return builder.finish(x)
    return builder.finish(builder.add("squeeze", x, builder.constant("axis", np.array([axis]))))
