"""Control flow: if, loop and scan. Their bodies are Graphs, given as attributes.

A body reads nothing but its inputs. Outside values that it uses, the captures, are extra inputs of
the node. They are the body's last inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.ir.bind_shapes import retyped
from trireme.ir.graph import UNKNOWN, Dim, Graph, Node, TensorType, Value
from trireme.ir.interpreter import interpret
from trireme.ir.op import Attr, Call, define
from trireme.ops.shapes import Types, axis_of, fit, to_ints
from trireme.support.dtypes import ANY, BOOL, INDICES, Array, dtype_name, numpy_dtype
from trireme.support.errors import ShapeError

_GRAPH = Attr("graph")
TURN, GOING = TensorType((), "int64"), TensorType((), "bool")
"""What the body of a loop is given first: the number of the turn, and whether it goes on."""
SAFE_FAMILIES = ("matmul", "conv", "pool", "reduce", "normalize")
"""Families whose nodes cannot fail on float operands of the right shapes."""


def run_body(
    body: Graph, arrays: Sequence[Array], states: MutableMapping[str, Array] | None = None
) -> list[Array]:
    """Return the outputs of a body, in order, given its inputs in order.

    states: the states by name, which the body may change
    """
    results = interpret(body, dict(zip(body.inputs, arrays, strict=True)), states=states)
    return [results[value] for value in body.outputs]


def _check_body(subject: str, body: Graph, given: Sequence[TensorType]) -> None:
    wanted = [body.type(value) for value in body.inputs]
    if len(wanted) != len(given):
        raise ShapeError(f"{subject} takes {len(wanted)} inputs, {len(given)} are given")
    for i, (inner, outer) in enumerate(zip(wanted, given, strict=True)):
        if inner.dtype != outer.dtype or len(inner.shape) != len(outer.shape):
            raise ShapeError(f"{subject}: input {i} is {inner}, {outer} is given")


def _common(subject: str, a: TensorType, b: TensorType) -> TensorType:
    """Return the type that holds values of both; raise ShapeError when none does."""
    if a.dtype != b.dtype or len(a.shape) != len(b.shape):
        raise ShapeError(f"{subject} is {a} or {b}: not of one dtype and rank")
    dims = (x if x == y else UNKNOWN for x, y in zip(a.shape, b.shape, strict=True))
    return TensorType(tuple(dims), a.dtype)


def _out_types(body: Graph) -> list[TensorType]:
    return [body.type(value).without_quant() for value in body.outputs]


def _infer_if(condition: Value, *captures: Value, then_branch: Graph, else_branch: Graph) -> Types:
    given = [value.type for value in captures]
    _check_body("then_branch", then_branch, given)
    _check_body("else_branch", else_branch, given)
    then, other = _out_types(then_branch), _out_types(else_branch)
    if len(then) != len(other):
        raise ShapeError(f"the branches make {len(then)} and {len(other)} outputs")
    return tuple(
        _common(f"output {i}", a, b) for i, (a, b) in enumerate(zip(then, other, strict=True))
    )


def _if(
    condition: Array,
    *captures: Array,
    then_branch: Graph,
    else_branch: Graph,
    states: MutableMapping[str, Array] | None = None,
) -> tuple[Array, ...]:
    chosen = then_branch if bool(condition.reshape(-1)[0]) else else_branch
    return tuple(run_body(chosen, captures, states))


def _no_cost(call: Call) -> int:
    return sum(type.elements for type in call.outputs if type.is_static)


define(
    "if",
    "condition captures*",
    "ys = then_branch(captures) if condition, else else_branch(captures). Source: ONNX If-25",
    _infer_if,
    _if,
    outputs="ys*",
    flops=_no_cost,
    family="control",
    attrs={"then_branch": _GRAPH, "else_branch": _GRAPH},
    dtypes=(BOOL, ANY),
)


def _infer_loop(
    trip_count: Value | None = None,
    condition: Value | None = None,
    *values: Value,
    body: Graph,
    carried: int,
) -> Types:
    if not 0 <= carried <= len(values):
        raise ShapeError(f"carried is {carried}, {len(values)} values are given")
    _check_body(
        "body",
        body,
        [TURN, GOING, *(v.type for v in values)],
    )
    made = _out_types(body)[1:]
    if len(made) < carried:
        raise ShapeError(f"the body returns {len(made)} values after the condition, not {carried}")
    final = [_common(f"carried value {i}", values[i].type, made[i]) for i in range(carried)]
    count: Dim = UNKNOWN
    if trip_count is not None and trip_count.data is not None and _always(condition, body):
        count = max(to_ints(trip_count.data)[0], 0)
    scans = [TensorType((count, *t.shape), t.dtype) for t in made[carried:]]
    return tuple(final + scans)


def _always(condition: Value | None, body: Graph) -> bool:
    """Whether a loop runs its whole trip count: neither condition can end it."""
    if condition is not None and (condition.data is None or not condition.data.reshape(-1)[0]):
        return False
    last = body.values[body.outputs[0]]
    kept = last.id == body.inputs[1]
    return kept or (last.data is not None and bool(last.data.reshape(-1)[0]))


def _loop(
    trip_count: Array | None = None,
    condition: Array | None = None,
    *values: Array,
    body: Graph,
    carried: int,
    states: MutableMapping[str, Array] | None = None,
) -> tuple[Array, ...]:
    most = None if trip_count is None else int(trip_count.reshape(-1)[0])
    going = True if condition is None else bool(condition.reshape(-1)[0])
    state, captures = list(values[:carried]), values[carried:]
    scans: list[list[Array]] = [[] for _ in body.outputs[1 + carried :]]
    step = 0
    while going and (most is None or step < most):
        start = (np.array(step, np.int64), np.array(going, np.bool_))
        ended, *made = run_body(body, [*start, *state, *captures], states)
        going, state = bool(ended.reshape(-1)[0]), made[:carried]
        for kept, new in zip(scans, made[carried:], strict=True):
            kept.append(new)
        step += 1
    form = repeat_of({"body": body, "carried": carried})
    return (*state, *_stacked(form, values, scans))


def _stacked(
    form: Repeat | None, values: Sequence[Array], kept: Sequence[list[Array]]
) -> Iterable[Array]:
    """Yield the rows of each kind as one array; of length 0 without a turn."""
    if form is None:
        return
    for rows, type, (axis, backward) in zip(kept, row_types(form, values), form.rows, strict=True):
        if rows:
            yield np.stack(rows[::-1] if backward else rows, axis)
        else:
            yield no_rows(type, axis)


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


define(
    "loop",
    "trip_count? condition? values*",
    "values are `carried` states and captures; each turn runs body(turn, condition, *states, "
    "*captures) -> condition, *states, *scans until trip_count or a false condition; outputs "
    "are the last states and the scans stacked along a new first axis. Source: ONNX Loop-25",
    _infer_loop,
    _loop,
    outputs="ys*",
    flops=_no_cost,
    family="control",
    attrs={"body": _GRAPH, "carried": Attr("int", 0)},
    dtypes=(INDICES, BOOL, ANY),
)

_AXES = Attr("ints", None)
Ints = tuple[int, ...]


def _scan_parts(values: Sequence[Value], carried: int, scanned: int, axes: Ints | None) -> Ints:
    if carried + scanned > len(values):
        raise ShapeError(f"{carried} states and {scanned} scans, {len(values)} values are given")
    given = axes or (0,) * scanned
    if len(given) != scanned:
        raise ShapeError(f"scan_input_axes has {len(given)} entries, expected {scanned}")
    return tuple(
        axis_of(axis, len(values[carried + i].shape), "scan axis") for i, axis in enumerate(given)
    )


def cut(type: TensorType, axis: int) -> TensorType:
    """Return the type of a slice along an axis, which goes."""
    return TensorType((*type.shape[:axis], *type.shape[axis + 1 :]), type.dtype)


def _infer_scan(
    *values: Value,
    body: Graph,
    carried: int,
    num_scan_inputs: int,
    scan_input_axes: Ints | None,
    scan_output_axes: Ints | None,
    **attrs: object,
) -> Types:
    axes = _scan_parts(values, carried, num_scan_inputs, scan_input_axes)
    given = [v.type for v in values]
    count: Dim = UNKNOWN
    for i, axis in enumerate(axes):
        type = given[carried + i]
        count = fit(type.shape[axis], count) if i else type.shape[axis]
        given[carried + i] = cut(type, axis)
    _check_body("body", body, given)
    made = _out_types(body)
    final = [_common(f"state {i}", values[i].type, made[i]) for i in range(carried)]
    places = scan_output_axes or (0,) * (len(made) - carried)
    for type, place in zip(made[carried:], places, strict=True):
        shape = list(type.shape)
        shape.insert(axis_of(place, len(shape) + 1, "scan output axis"), count)
        final.append(TensorType(tuple(shape), type.dtype))
    return tuple(final)


def _scan(
    *values: Array,
    body: Graph,
    carried: int,
    num_scan_inputs: int,
    scan_input_axes: Ints | None,
    scan_input_directions: Ints | None,
    scan_output_axes: Ints | None,
    scan_output_directions: Ints | None,
    states: MutableMapping[str, Array] | None = None,
) -> tuple[Array, ...]:
    axes = scan_input_axes or (0,) * num_scan_inputs
    backward = scan_input_directions or (0,) * num_scan_inputs
    state = list(values[:carried])
    scanned = [
        np.flip(np.moveaxis(x, axis, 0), 0) if turn else np.moveaxis(x, axis, 0)
        for x, axis, turn in zip(values[carried:], axes, backward, strict=False)
    ]
    captures = values[carried + num_scan_inputs :]
    made: list[list[Array]] = [[] for _ in body.outputs[carried:]]
    for parts in zip(*scanned, strict=True):
        results = run_body(body, [*state, *map(np.asarray, parts), *captures], states)
        state = results[:carried]
        for kept, new in zip(made, results[carried:], strict=True):
            kept.append(new)
    attrs = {
        "body": body,
        "carried": carried,
        "num_scan_inputs": num_scan_inputs,
        "scan_input_axes": scan_input_axes,
        "scan_input_directions": scan_input_directions,
        "scan_output_axes": scan_output_axes,
        "scan_output_directions": scan_output_directions,
    }
    return (*state, *_stacked(repeat_of(attrs), values, made))


define(
    "scan",
    "values*",
    "values are `carried` states, num_scan_inputs tensors cut along their scan axes, and "
    "captures; each step runs body(*states, *slices, *captures) -> *states, *made; outputs "
    "are the last states and what was made, stacked. Source: ONNX Scan-25",
    _infer_scan,
    _scan,
    outputs="ys*",
    flops=_no_cost,
    family="control",
    attrs={
        "body": _GRAPH,
        "carried": Attr("int", 0),
        "num_scan_inputs": Attr("int"),
        "scan_input_axes": _AXES,
        "scan_input_directions": _AXES,
        "scan_output_axes": _AXES,
        "scan_output_directions": _AXES,
    },
    dtypes=(ANY,),
)


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
    if trips is None or trips.data is None or not form.counts or not _always(condition, form.body):
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
