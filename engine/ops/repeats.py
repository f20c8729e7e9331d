"""How a node of control flow holds its bodies and repeats one: a single form for loop and scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.bind_shapes import retyped
from trireme.ir.graph import Graph, Node, TensorType, Value
from trireme.ops.shapes import to_ints
from trireme.support.dtypes import Array, dtype_name, numpy_dtype
from trireme.support.errors import ShapeError
from trireme.support.records import dataclass

TURN, GOING = TensorType((), "int64"), TensorType((), "bool")
"""The first inputs of the body of a loop: the number of the iteration, and the condition."""
SAFE_FAMILIES = ("matmul", "conv", "pool", "reduce", "normalize")
"""Families whose nodes cannot fail on float operands of the right shapes."""


@dataclass(frozen=True)
class Repeat:
    """How a node repeats its body: one form for `loop` and `scan`.

    The body takes the turn and the condition where `counts`, then states, slices and captures. It
    returns the condition where `counts`, then states and rows, which are stacked.

    counts: whether a trip count and a condition end it; else the slices do
    slices, rows: of each the axis, and whether it goes backward
    """

    body: Graph
    counts: bool
    carried: int
    slices: tuple[tuple[int, bool], ...]
    rows: tuple[tuple[int, bool], ...]

    @property
    def first(self) -> int:
        """Which operand is the first state; the ones before are the trip count and condition."""
        return 2 if self.counts else 0

    @property
    def made(self) -> int:
        """Which output of the body is the first state."""
        return 1 if self.counts else 0


def bodies_of(node: Node) -> dict[str, Graph]:
    """Return the bodies of a node by attribute, in order: of an `if` both, of others the one."""
    return {key: value for key, value in node.attrs.items() if isinstance(value, Graph)}


def pinned_inside(graph: Graph) -> Node | None:
    """Return a node of a body, or of the bodies in it, that is pinned to a device; None if none is.

    A pin to the host is left out: the host runs what no device takes.
    """
    for node in graph.nodes:
        if node.pin not in (None, "host"):
            return node
        for body in bodies_of(node).values():
            if (found := pinned_inside(body)) is not None:
                return found
    return None


def repeat_of(attrs: Mapping[str, Any]) -> Repeat | None:
    """Return how a node with these attributes repeats its body; None if it is an `if`."""
    if "body" not in attrs:
        return None
    body: Graph = attrs["body"]
    carried: int = attrs["carried"]
    if "num_scan_inputs" not in attrs:
        rows = ((0, False),) * (len(body.outputs) - 1 - carried)
        return Repeat(body, True, carried, (), rows)
    slices, count = attrs["num_scan_inputs"], len(body.outputs) - carried
    return Repeat(
        body, False, carried, _ways(attrs, "input", slices), _ways(attrs, "output", count)
    )


def turns_of(graph: Graph, node: Node) -> int | None:
    """Return how often a node repeats its body; None if only a run knows."""
    form = repeat_of(node.attrs)
    if form is None:
        return 1
    if form.slices:
        dim = graph.type(node.used[form.carried]).shape[form.slices[0][0]]
        return dim if isinstance(dim, int) else None
    trips, condition = (
        None if value is None else graph.values[value] for value in (*node.inputs, None, None)[:2]
    )
    if (
        trips is None
        or trips.data is None
        or not form.counts
        or not runs_all_turns(condition, form.body)
    ):
        return None
    return max(to_ints(trips.data)[0], 0)


def _ways(attrs: Mapping[str, Any], end: str, count: int) -> tuple[tuple[int, bool], ...]:
    axes = attrs[f"scan_{end}_axes"] or (0,) * count
    turns = attrs[f"scan_{end}_directions"] or (0,) * count
    return tuple((axis, bool(turn)) for axis, turn in zip(axes, turns, strict=True))


def body_types(attrs: Mapping[str, Any], given: Sequence[TensorType]) -> list[TensorType]:
    """Return what a body is given in the first turn.

    given: the types of the operands but for condition and trip count
    """
    form = repeat_of(attrs)
    if form is None:
        return list(given)
    types = list(given)
    for k, (axis, _) in enumerate(form.slices, form.carried):
        types[k] = cut(types[k], axis % len(types[k].shape))
    return [TURN, GOING, *types] if form.counts else types


def cut(type: TensorType, axis: int) -> TensorType:
    """Return the type of a slice along an axis, which goes."""
    return TensorType((*type.shape[:axis], *type.shape[axis + 1 :]), type.dtype)


def row_types(
    form: Repeat,
    values: Sequence[Array],
    retype: Callable[[Graph, Sequence[TensorType]], Graph] = retyped,
) -> list[TensorType]:
    """Return the types of the rows of a first turn, given states, what is cut, and captures.

    retype: returns a body for the types of its inputs
    """
    outs = form.body.outputs[form.made + form.carried :]
    types = [form.body.type(out) for out in outs]
    if all(type.is_static for type in types):
        return types
    given = [TensorType(array.shape, dtype_name(array.dtype)) for array in values]
    for k, (axis, _) in enumerate(form.slices, form.carried):
        given[k] = cut(given[k], axis % len(given[k].shape))
    try:
        made = retype(form.body, [*((TURN, GOING) if form.counts else ()), *given])
    except ShapeError:
        return types
    return [made.type(out) for out in made.outputs[form.made + form.carried :]]


def no_rows(type: TensorType, axis: int) -> Array:
    """Return no row of a type along a new axis; an unknown dimension has length 0."""
    shape = [dim if isinstance(dim, int) else 0 for dim in type.shape]
    shape.insert(axis % (len(shape) + 1), 0)
    return np.zeros(shape, numpy_dtype(type.dtype))


def runs_all_turns(condition: Value | None, body: Graph) -> bool:
    """Whether a loop runs its whole trip count: neither condition can end it."""
    if condition is not None and (condition.data is None or not condition.data.reshape(-1)[0]):
        return False
    last = body.values[body.outputs[0]]
    kept = last.id == body.inputs[1]
    return kept or (last.data is not None and bool(last.data.reshape(-1)[0]))
