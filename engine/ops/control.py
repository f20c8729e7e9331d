"""Control flow: if, loop and scan. Their bodies are Graphs, given as attributes.

A body reads nothing but its inputs. Outside values that it uses, the captures, are extra inputs of
the node. They are the body's last inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence

import numpy as np

from trireme.ir.graph import UNKNOWN, Dim, Graph, TensorType, Value
from trireme.ir.interpreter import interpret
from trireme.ir.op import Attr, Call, define
from trireme.ir.partial_types import common_type
from trireme.ops.repeats import (
    GOING,
    TURN,
    Repeat,
    cut,
    no_rows,
    repeat_of,
    row_types,
    runs_all_turns,
)
from trireme.ops.shapes import Types, axis_of, expect, to_ints
from trireme.support.dtypes import ANY, BOOL, INDICES, Array
from trireme.support.errors import ShapeError

_GRAPH = Attr("graph")


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
        if inner.dtype != outer.dtype or not _may_be_of_one_rank(inner, outer):
            raise ShapeError(f"{subject}: input {i} is {inner}, {outer} is given")


def _may_be_of_one_rank(a: TensorType, b: TensorType) -> bool:
    return not (a.has_rank and b.has_rank) or len(a.shape) == len(b.shape)


def _common(subject: str, a: TensorType, b: TensorType) -> TensorType:
    """Return the type that holds values of both; raise ShapeError when none does."""
    if a.dtype != b.dtype:
        raise ShapeError(f"{subject} is {a} or {b}: not of one dtype")
    return common_type(a, b).without_quant()


def _carried(subject: str, before: TensorType, after: TensorType) -> TensorType:
    """Return the type of a state; raise ShapeError where turns may change its rank."""
    common = _common(subject, before, after)
    if not common.has_rank:
        raise ShapeError(
            f"{subject} is {before} before a turn and {after} after it: of no one rank"
        )
    return common


def _stacked_type(subject: str, row: TensorType, axis: int, count: Dim) -> TensorType:
    """Return the type of the rows of all turns; raise ShapeError for rows of unknown rank."""
    if not row.has_rank:
        raise ShapeError(f"{subject} is {row}: rows are of one rank")
    shape = list(row.shape)
    shape.insert(axis_of(axis, len(shape) + 1, "scan output axis"), count)
    return TensorType(tuple(shape), row.dtype)


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
    final = [_carried(f"carried value {i}", values[i].type, made[i]) for i in range(carried)]
    count: Dim = UNKNOWN
    if trip_count is not None and trip_count.data is not None and runs_all_turns(condition, body):
        count = max(to_ints(trip_count.data)[0], 0)
    rows = enumerate(made[carried:])
    scans = [_stacked_type(f"scan output {k}", type, 0, count) for k, type in rows]
    return tuple(final + scans)


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
        length = type.shape[axis]
        named = f"the length of scanned input {i}"
        count = expect(named, length, count, "as of those before it") if i else length
        given[carried + i] = cut(type, axis)
    _check_body("body", body, given)
    made = _out_types(body)
    final = [_carried(f"state {i}", values[i].type, made[i]) for i in range(carried)]
    places = scan_output_axes or (0,) * (len(made) - carried)
    for k, (type, place) in enumerate(zip(made[carried:], places, strict=True)):
        final.append(_stacked_type(f"scan output {k}", type, place, count))
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
