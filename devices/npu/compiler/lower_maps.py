"""Lower elementwise ops, tables, softmax and requantisation to map jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from trireme.backend.kernel_table import STORED_8
from trireme.devices.npu.compiler.jobs import MapJob
from trireme.devices.npu.compiler.layout import RankedBox, axes_of, broadcast, permuted
from trireme.devices.npu.compiler.lower import (
    FLOATS,
    LoweringRow,
    NpuLowering,
    function_name,
    is_integer,
)
from trireme.devices.npu.compiler.lower_moves import copy_axes, place_part
from trireme.devices.npu.stream.commands import Binary, Softmax, Table, Unary, View, Work
from trireme.ir.graph import Node
from trireme.ir.op import Call, ops_with
from trireme.ops import integer as q
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError


def lower_binary(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower add, sub, mul, div with broadcasting and a fused clamp or function."""
    fields: dict[str, Any] = {"kind": node.op}
    if is_integer(call):
        fields |= _INTEGER_PARAMS[node.op](call)
    else:
        fields["function"] = function_name(str(call.attrs.get("activation", "")))
    pair = [value for value in node.inputs if value is not None]
    _map_binary(state, pair, node.outputs[0], fields)


def _add_fields(params: q.AddParams) -> dict[str, Any]:
    return {"kind": "add", **vars(params)}


def _mul_fields(params: q.MulParams) -> dict[str, Any]:
    fields = dict(vars(params))
    return {"y_multiplier": fields.pop("multiplier"), "y_shift": fields.pop("shift"), **fields}


_INTEGER_PARAMS: dict[str, Callable[[Call], dict[str, Any]]] = {
    "add": lambda call: _add_fields(q.add_params(call)),
    "sub": lambda call: _add_fields(q.sub_params(call)),
    "mul": lambda call: _mul_fields(q.mul_params(call)),
}


def _map_binary(
    state: NpuLowering, pair: Sequence[int], out: int, fields: dict[str, Any], accumulate: int = -1
) -> None:
    shape = state.graph.type(out).dims if accumulate < 0 else state.graph.type(accumulate).dims
    operands = [(value, broadcast(_dims(state, value, shape), shape)) for value in pair]

    def make(xs: Sequence[View], y: View, table: int) -> Work:
        return Binary(a=xs[0], b=xs[1], y=y, **fields)

    parts = state.parts([*operands, (out, axes_of(shape))])
    reads = tuple(operand.value for operand in parts[0][0])
    state.jobs.append(MapJob(state.node, reads, parts[0][1].value, parts, make))


def _dims(state: NpuLowering, value: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if value < 0 else state.graph.type(value).dims


def lower_extremum(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower max and min of any number of inputs: a chain of pairs."""
    if is_integer(call):
        q.same_quant(call)
        for other in call.inputs:
            if other is not None and other.type.quant != call.type(0).quant:
                raise GraphError("the inputs must have the same quantisation")
    fields = {"kind": node.op}
    values = [value for value in node.inputs if value is not None]
    if len(values) == 1:
        values = values * 2
    held, out = values[0], node.outputs[0]
    for position, value in enumerate(values[1:]):
        if position == len(values) - 2:
            _map_binary(state, (held, value), out, fields)
        else:
            dtype = state.stored[state.value(values[0])][0]
            made = state.temporary(dtype, call.outputs[0].elements)
            _map_binary(state, (held, value), made, fields, accumulate=out)
            held = made


def lower_unary(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower an op of one tensor: a table of 256 entries for integers, a function for floats."""
    if is_integer(call):
        _table(state, node, q.unary_table(node.op, call))
        return
    function, alpha, beta = _function(node, call)

    def make(xs: Sequence[View], y: View, table: int) -> Work:
        return Unary(xs[0], y, function, alpha, beta)

    _map_unary(state, node, make, None)


def _table(state: NpuLowering, node: Node, table: Array) -> None:
    key = ("table", state.node, 0)
    _map_unary(state, node, _look_up, (key, table.nbytes, lambda: table))


def _look_up(xs: Sequence[View], y: View, table: int) -> Work:
    return Table(xs[0], y, table)


def _map_unary(state: NpuLowering, node: Node, make: Any, table: Any) -> None:
    x, y = node.inputs[0], node.outputs[0]
    if x is None:
        raise GraphError("the input is missing")
    parts = state.parts([state.whole(x), state.whole(y)])
    state.jobs.append(
        MapJob(state.node, (parts[0][0][0].value,), parts[0][1].value, parts, make, False, table)
    )


def _function(node: Node, call: Call) -> tuple[str, float, float]:
    """Return the engine's function for an op on floats, and its two parameters."""
    if node.op == "clip":
        low, high = (_limit(call, position) for position in (1, 2))
        return "clip", -np.inf if low is None else low, np.inf if high is None else high
    if node.op == "gelu":
        return ("gelu_tanh" if call.attrs["approximate"] == "tanh" else "gelu"), 0.0, 0.0
    default = 1.0 if node.op in ("swish", "elu") else 0.0
    alpha = call.attrs.get("alpha", default)
    return function_name(node.op), float(alpha), float(call.attrs.get("beta", 0.0))


def _limit(call: Call, position: int) -> float | None:
    value = call.input(position)
    if value is None:
        return None
    if value.data is None:
        raise GraphError("the limits of clip must be constants")
    return float(value.data.reshape(-1)[0])


def lower_softmax(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower softmax along any axis: rows are strided when it is not the last."""
    shape = call.type(0).dims
    axis = int(call.attrs["axis"]) % len(shape)
    order = (*(i for i in range(len(shape)) if i != axis), axis)
    turned: RankedBox = permuted(axes_of(shape), order)
    fields: dict[str, Any] = {"beta": float(call.attrs["beta"])}
    table = None
    if is_integer(call):
        params = q.softmax_params(call)
        fields |= {key: getattr(params, key) for key in ("gain", "y_zero", "low", "high")}
        table = (("softmax", state.node), 1024, lambda: params.table)

    def make(xs: Sequence[View], y: View, address: int) -> Work:
        return Softmax(xs[0], y, address, **fields)

    x, y = node.inputs[0], node.outputs[0]
    if x is None:
        raise GraphError("the input is missing")
    parts = state.parts([(x, turned), (y, turned)], keep_last=True)
    state.jobs.append(
        MapJob(state.node, (parts[0][0][0].value,), parts[0][1].value, parts, make, True, table)
    )


def lower_quantize(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower quantize from one quantisation to another: a table. Floats are for the host."""
    is_integer(call)
    _table(state, node, q.unary_table("quantize", call))


def lower_concat(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower concat: each input is copied, or requantised by a table, into its place."""
    integer = is_integer(call)
    if call.attrs["activation"]:
        raise GraphError("an activation fused into concat is not supported")
    tables = q.concat_tables(call) if integer else [None] * len(call.inputs)
    out = node.outputs[0]
    axis = int(call.attrs["axis"]) % len(call.outputs[0].shape)
    start = 0
    for position, (value, table) in enumerate(zip(node.inputs, tables, strict=True)):
        if value is None:
            raise GraphError("an input is missing")
        size = call.type(position).dims[axis]
        if size and call.type(position).elements:
            place = place_part(state, out, axis, start, size)
            if table is None:
                _copy(state, value, out, place)
            else:
                key = ("concat", state.node, position)
                blob = (key, table.nbytes, partial(np.asarray, table))
                parts = state.parts([state.whole(value), (out, place)])
                state.jobs.append(
                    MapJob(
                        state.node,
                        (parts[0][0][0].value,),
                        parts[0][1].value,
                        parts,
                        _look_up,
                        False,
                        blob,
                    )
                )
        start += size


def _copy(state: NpuLowering, value: int, out: int, place: RankedBox) -> None:
    _, whole = state.whole(value)
    copy_axes(state, value, out, [(whole, place)])


_UNARY = (
    "relu",
    "relu6",
    "relu_n1_to_1",
    "tanh",
    "sigmoid",
    "hard_sigmoid",
    "hard_swish",
    "swish",
    "gelu",
    "clip",
    "leaky_relu",
    "elu",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "abs",
    "neg",
    "erf",
    "square",
)
_TABLES = ops_with(lambda op: op.integer_form == "table")
_TABLE_ONLY = tuple(op for op in _TABLES if op not in (*_UNARY, "quantize"))
"""Ops with a table on stored integers, and no function of the vector engine."""
MAP_OPS = (
    LoweringRow(tuple(_INTEGER_PARAMS), lower_binary),
    LoweringRow(("div",), lower_binary, FLOATS),
    LoweringRow(("max", "min"), lower_extremum),
    LoweringRow(_UNARY, lower_unary),
    LoweringRow(_TABLE_ONLY, lower_unary, STORED_8),
    LoweringRow(("softmax",), lower_softmax),
    LoweringRow(("quantize",), lower_quantize, STORED_8),
    LoweringRow(("concat",), lower_concat),
)
