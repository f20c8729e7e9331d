"""Follow dimensions through small integer values: what a shape tensor holds, as numbers or symbols.

A model computes shapes with ordinary nodes: shape, gather, concat, mul. Their elements are known
before a run as expressions of symbols, so that a reshape to them has a shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from trireme.ir.dims import (
    Bounds,
    add,
    common_factor,
    exact_divide,
    floor_divide,
    larger,
    multiply,
    range_of,
    simplified,
    smaller,
    subtract,
)
from trireme.ir.graph import UNKNOWN, Dim, Graph, Node, TensorType, Value
from trireme.ir.op import OpDef, get_op
from trireme.ir.verify import infer_types
from trireme.support.dtypes import BOOL, INTS, Array
from trireme.support.errors import TriremeError

MOST_ELEMENTS = 256
"""The most elements of a value that is followed."""
FOLLOWED = INTS | BOOL
"""The dtypes of a value that is followed; a bool is 0 or 1."""
_WHOLE = frozenset({"float32", "float64"})
"""Dtypes of whole numbers that were cast: exact below 2^24, and followed to ranges and back."""


def _divided(a: Dim, b: Dim) -> Dim:
    """Return ONNX's integer division, which rounds towards 0."""
    if isinstance(a, int) and isinstance(b, int) and b:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    whole = exact_divide(a, b)
    if whole != UNKNOWN or not isinstance(b, int):
        return whole
    if range_of(a, {})[1] <= 0:
        return subtract(0, floor_divide(subtract(0, a), b))
    return floor_divide(a, b)


def _remainder(symbols: Mapping[str, Bounds], a: Dim, b: Dim) -> Dim:
    """Return ONNX's Mod of integers, which has the sign of the divisor."""
    if isinstance(b, int):
        return subtract(a, multiply(b, floor_divide(a, b))) if b else UNKNOWN
    low = max(range_of(b, symbols)[0], common_factor(b))  # a divisor of 0 has no remainder
    if b == UNKNOWN or not isinstance(a, int) or range_of(b, symbols)[0] < 0:
        return UNKNOWN
    if -low <= a < low:
        return a if a >= 0 else add(b, a)
    return smaller(1, subtract(b, 1)) if a == 1 else UNKNOWN


_ARITHMETIC = {
    "mul": multiply,
    "add": add,
    "sub": subtract,
    "div": _divided,
    "min": smaller,
    "max": larger,
}
_CALLS = {name: np.frompyfunc(function, 2, 1) for name, function in _ARITHMETIC.items()}
_REDUCTIONS = {
    "reduce_prod": _CALLS["mul"],
    "reduce_sum": _CALLS["add"],
    "reduce_min": _CALLS["min"],
    "reduce_max": _CALLS["max"],
}


def _compared(op: OpDef, symbols: Mapping[str, Bounds], a: Dim, b: Dim) -> Dim:
    """Return 1 where a comparison is true, 0 where it is false, "?" where only a run can tell."""
    difference = subtract(a, b)
    if difference == UNKNOWN:
        return UNKNOWN
    low, high = range_of(difference, symbols)
    answers = {bool(op.reference(np.array(d), np.array(0.0))) for d in (low, high)}
    if low < 0 < high:
        answers.add(bool(op.reference(np.array(0.0), np.array(0.0))))
    return UNKNOWN if len(answers) > 1 else int(answers.pop())


def _chosen(condition: Dim, a: Dim, b: Dim) -> Dim:
    return a if condition == 1 else b if condition == 0 else UNKNOWN


def followed(
    op: str,
    arrays: Sequence[Array | None],
    attrs: Mapping[str, Any],
    symbols: Mapping[str, Bounds],
) -> Array | None:
    """Return the elements that a node makes of elements, some of them symbols; else None.

    arrays: of objects, a bool as 0 or 1; None for an input that is left out
    """
    first = arrays[0] if arrays else None
    if first is None:
        return None
    if op in ("cast", "identity"):
        return first if attrs.get("to", "int64") in INTS else None
    try:
        if op == "mod":
            low = min((range_of(one, symbols)[0] for one in first.reshape(-1)), default=0)
            of_sign = attrs.get("fmod") and low < 0  # the remainder has the dividend's sign
            return None if of_sign else _each(partial(_remainder, symbols), arrays)
        if op in _CALLS:
            return _computed(op, arrays)
        if op == "neg":
            return _each(partial(subtract, 0), arrays)
        if get_op(op).compares:
            return _each(partial(_compared, get_op(op), symbols), arrays)
        if op == "where":
            return _each(_chosen, arrays)
        if op in _REDUCTIONS:
            return _reduced(op, first, arrays[1] if len(arrays) > 1 else None, attrs)
        if get_op(op).rearranges or op == "concat":
            return _moved(op, arrays, attrs)
    except (TriremeError, ValueError, TypeError, IndexError):
        return None
    return None


def _each(function: Callable[..., Dim], arrays: Sequence[Array | None]) -> Array:
    """Return a function of the elements of broadcast arrays."""
    operands = [array for array in arrays if array is not None]
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*operands), object)


def _moved(op: str, arrays: Sequence[Array | None], attrs: Mapping[str, Any]) -> Array:
    """Return moved elements. All operands of a concat are elements, elsewhere the first alone."""
    plain = [
        a if a is None or op == "concat" or not position else a.astype(np.int64)
        for position, a in enumerate(arrays)
    ]
    made = get_op(op).reference(*plain, **get_op(op).bind(attrs))
    return np.asarray(made[0] if isinstance(made, tuple) else made, object)


def _computed(op: str, arrays: Sequence[Array | None]) -> Array | None:
    made: Array | None = None
    for array in arrays:
        if array is None:
            return None
        made = array if made is None else np.asarray(_CALLS[op](made, array), object)
    return made


def _reduced(op: str, x: Array, axes: Array | None, attrs: Mapping[str, Any]) -> Array | None:
    """Return the elements of a reduction; None where it reduces nothing, or no elements."""
    over = range(x.ndim) if axes is None or not axes.size else [int(a) for a in axes.reshape(-1)]
    if not x.size or (attrs.get("noop_with_empty_axes") and not (axes is not None and axes.size)):
        return None
    for axis in sorted({axis % x.ndim for axis in over}, reverse=True):
        x = np.asarray(_REDUCTIONS[op].reduce(x, axis=axis, keepdims=True), object)
        if not attrs.get("keepdims", 1):
            x = x.squeeze(axis)
    return x


def contents_of(graph: Graph, node: Node, known: Mapping[int, Array]) -> Array | None:
    """Return the elements of the first output of a node as an array of objects, where they follow.

    known: elements of values, as arrays of objects
    """
    if node.op in ("shape", "size"):
        return _of_shape(graph, node)
    if not any(value in known for value in node.used):
        return None
    arrays = []
    for value in node.inputs:
        array = None if value is None else elements_of(graph.values[value], known)
        if value is not None and array is None:
            return None
        arrays.append(array)
    if graph.type(node.outputs[0]).dtype in _WHOLE:
        return _whole(node, arrays, graph.symbols)
    return followed(node.op, arrays, node.attrs, graph.symbols)


def _whole(
    node: Node, arrays: Sequence[Array | None], symbols: Mapping[str, Bounds]
) -> Array | None:
    """Return the elements that a node of whole numbers in a float dtype makes."""
    if node.op in ("cast", "floor"):
        return arrays[0]
    return None if node.op == "div" else followed(node.op, arrays, node.attrs, symbols)


def elements_of(value: Value, known: Mapping[int, Array]) -> Array | None:
    """Return the elements of a value as an array of objects, where they are known or constant."""
    if value.id in known:
        return known[value.id]
    data = value.data
    if data is None or data.size > MOST_ELEMENTS:
        return None
    is_whole = value.dtype in _WHOLE and bool(np.all(np.trunc(data) == data))  # no NaN
    if value.dtype not in FOLLOWED and not (is_whole and np.all(np.abs(data) < 2**24)):
        return None
    return np.array([int(one) for one in data.reshape(-1)], object).reshape(data.shape)


def _of_shape(graph: Graph, node: Node) -> Array | None:
    type = graph.type(node.used[0])
    if not type.has_rank:
        return None
    dims = type.shape
    if node.op == "size":
        whole: Dim = 1
        for dim in dims:
            whole = multiply(whole, dim)
        return None if whole == UNKNOWN else np.array(whole, object)
    made = np.empty(len(dims[slice(node.attrs["start"], node.attrs["end"])]), object)
    made[:] = dims[slice(node.attrs["start"], node.attrs["end"])]
    return None if UNKNOWN in made.tolist() else made


def as_target(dims: list[Dim], x: TensorType) -> Array | None:
    """Return the constant sizes of a reshape of x to these dimensions; None when there are none.

    A symbol at the same place in the input is copied (0); one other dimension is inferred (-1).
    """
    target: list[int] = []
    shape = x.shape if x.has_rank else ()
    for axis, dim in enumerate(dims):
        if isinstance(dim, str):
            same = axis < len(shape) and dim == shape[axis] != UNKNOWN
            target.append(0 if same else -1)
        else:
            target.append(int(dim))
    if target.count(-1) > 1 or (0 in target and any(d == 0 for d in dims)):
        return None
    return np.array(target, np.int64)


def refined(
    graph: Graph, given: Mapping[int, Array] | None = None
) -> tuple[dict[int, TensorType], dict[int, Array]]:
    """Return types of values that follow from symbolic contents, and these contents, by value.

    A type is as the graph has it, or tells more of dimensions that are not numbers there.
    given: the elements of inputs that are numbers or symbols, as arrays of objects
    """
    types: dict[int, TensorType] = {}
    known: dict[int, Array] = dict(given or {})
    values = dict(graph.values)
    now = replace(graph, values=values)
    for node in graph.nodes:
        inputs = [
            None if i is None else _with_contents(values[i], known, node.op) for i in node.inputs
        ]
        for out, type in zip(node.outputs, _types(graph, node, inputs), strict=True):
            types[out] = _merged(values[out].type, type, graph.symbols)
            values[out] = replace(values[out], type=types[out])
        found = contents_of(now, node, known)
        out = node.outputs[0]
        if found is not None and UNKNOWN not in found.reshape(-1).tolist():
            small = found.size <= MOST_ELEMENTS and found.shape == types[out].shape
            if small and types[out].dtype in FOLLOWED | _WHOLE:
                known[out] = found
    return types, known


def _with_contents(value: Value, known: Mapping[int, Array], op: str) -> Value:
    """Return a value with its elements; floats have them where a range ends at them."""
    is_shape = value.id in known and (value.dtype in INTS or op == "range")
    return replace(value, data=known[value.id]) if is_shape else value


def _types(graph: Graph, node: Node, inputs: Sequence[Value | None]) -> Sequence[TensorType]:
    """Return inferred types; the graph's own where a rule knows no symbols as contents."""
    try:
        return infer_types(get_op(node.op), inputs, node.attrs, len(node.outputs), node.label)
    except TriremeError:
        return [graph.type(out) for out in node.outputs]


def _merged(old: TensorType, new: TensorType, symbols: Mapping[str, Bounds]) -> TensorType:
    """Return the old type with the dimensions of which the new one tells more.

    An expression tells more than "?", and a number more than an expression.
    """
    if not old.has_rank:
        return replace(old, shape=new.shape)
    if not new.has_rank or len(old.shape) != len(new.shape):
        return old
    shape = tuple(
        simplified(b, symbols) if a == UNKNOWN or (isinstance(a, str) and isinstance(b, int)) else a
        for a, b in zip(old.shape, new.shape, strict=True)
    )
    return old if shape == old.shape else replace(old, shape=shape)


def decided_by_shapes(graph: Graph) -> frozenset[int]:
    """Return the values that the shapes of inputs decide alone, whatever data is fed."""
    decided: set[int] = set()
    for node in graph.nodes:
        op = get_op(node.op)
        if op.effect or op.random or op.has_body or node.after or node.pin is not None:
            continue
        known = all(i in decided or graph.values[i].is_constant for i in node.used)
        if node.op in ("shape", "size") or (known and node.used):
            decided |= set(node.outputs)
    return frozenset(decided)
