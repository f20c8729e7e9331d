"""What known functions become when a traced value is among their arguments.

Tables, a line per function of Python, math and numpy: the function, and how it is recorded. The
dtypes are numpy's (`operands.promoted`). `trace` and `capture` read the same tables.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, Sequence, ValuesView
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np

from trireme.converters.python.dtypes import adopt, as_weak
from trireme.converters.python.numpy_calls import several_ops
from trireme.converters.python.scope import Recorder, Traced
from trireme.ir.python_op import PythonOp
from trireme.runtime.eager import Eager
from trireme.runtime.operands import cast, promoted
from trireme.runtime.operators import Operators
from trireme.support.errors import ShapeError

Known = Callable[..., Any]

_UNARY: dict[Any, str] = {
    np.absolute: "abs",
    np.ceil: "ceil",
    np.cos: "cos",
    np.cosh: "cosh",
    np.exp: "exp",
    np.floor: "floor",
    np.isinf: "is_inf",
    np.isnan: "is_nan",
    np.log: "log",
    np.negative: "neg",
    np.reciprocal: "reciprocal",
    np.rint: "round",
    np.sign: "sign",
    np.sin: "sin",
    np.sinh: "sinh",
    np.sqrt: "sqrt",
    np.square: "square",
    np.tan: "tan",
    np.tanh: "tanh",
    np.arctan: "atan",
    np.arcsin: "asin",
    np.arccos: "acos",
}
_MATH: dict[Any, Any] = {
    math.sqrt: np.sqrt,
    math.exp: np.exp,
    math.log: np.log,
    math.sin: np.sin,
    math.cos: np.cos,
    math.tan: np.tan,
    math.tanh: np.tanh,
    math.fabs: np.absolute,
    math.isnan: np.isnan,
    math.isinf: np.isinf,
    math.atan: np.arctan,
}
_BINARY: dict[Any, Known] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.true_divide: operator.truediv,
    np.floor_divide: operator.floordiv,
    np.remainder: operator.mod,
    np.power: operator.pow,
    np.matmul: operator.matmul,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    math.pow: operator.pow,
}
_PAIRS: dict[Any, tuple[np.ufunc, str]] = {
    np.maximum: (np.maximum, "max"),
    np.minimum: (np.minimum, "min"),
    np.arctan2: (np.arctan2, "atan2"),
}
_METHODS: dict[Any, str] = {
    np.sum: "sum",
    np.mean: "mean",
    np.max: "max",
    np.min: "min",
    np.prod: "prod",
    np.any: "any",
    np.all: "all",
    np.argmax: "argmax",
    np.argmin: "argmin",
    np.cumsum: "cumsum",
    np.var: "var",
    np.std: "std",
    np.clip: "clip",
    np.reshape: "reshape",
    np.transpose: "transpose",
    np.squeeze: "squeeze",
    np.ravel: "ravel",
    np.round: "round",
    np.swapaxes: "swapaxes",
    np.take: "take",
}


def binary(function: Known, first: Any, second: Any) -> Any:
    """Return an operator of two operands; Python numbers take the dtype of a tensor beside them."""
    return as_weak(function(*adopt(first, second)), first, second)


def lifted(recorder: Recorder, value: Any) -> Traced:
    """Return a value as a tensor; a list of tensors is stacked."""
    if isinstance(value, (list, tuple)) and contains_traced(value):
        return stack(recorder, value)
    return recorder.lift(np.asarray(value) if isinstance(value, (list, tuple)) else value)


def contains_traced(value: Any) -> bool:
    """Whether a traced value is somewhere in a value."""
    if isinstance(value, dict):
        return any(map(contains_traced, value.values()))
    if isinstance(value, (list, tuple, deque, ValuesView, ItemsView)):
        return any(map(contains_traced, value))
    if isinstance(value, slice):
        return any(map(contains_traced, (value.start, value.stop, value.step)))
    return isinstance(value, Traced)


def stack(recorder: Recorder, parts: Sequence[Any], axis: int = 0) -> Traced:
    """Return tensors of one shape side by side along a new axis."""
    if isinstance(parts, Traced):  # its rows are side by side already
        order = list(range(1, len(parts.shape)))
        order.insert(axis % len(parts.shape), 0)
        whole = recorder.traced_like(parts)
        return whole.transpose(*order) if axis else whole
    tensors = _alike([lifted(recorder, part) for part in parts])
    rank = len(tensors[0].shape) + 1
    where = np.array([axis % rank if -rank <= axis < rank else axis], np.int64)
    columns = [recorder.apply("unsqueeze", [one, where], {}) for one in tensors]
    made: Traced = recorder.apply("concat", columns, {"axis": int(where[0])})
    return as_stacked(made, parts)


def as_stacked(made: Traced, parts: Sequence[Any]) -> Traced:
    """Return a stack, weak where all its parts stand for Python numbers."""
    found: Traced = as_weak(made, *parts)
    return replace(found, weak=False)


def _alike(tensors: Sequence[Traced]) -> list[Traced]:
    """Return tensors in the dtype that holds them all."""
    pairs = [adopt(one, other) for one in tensors for other in tensors]
    width = len(tensors)
    firsts = [
        reduce(_better, (a for a, _ in pairs[i * width : (i + 1) * width])) for i in range(width)
    ]
    dtype = np.result_type(*(one.dtype for one in firsts))
    return [cast(one, dtype) for one in firsts]


def _better(a: Traced, b: Traced) -> Traced:
    return b if a.weak and not b.weak else a


def _concatenate(recorder: Recorder, parts: Any, axis: int = 0) -> Any:
    if isinstance(parts, Traced):
        if axis != 0:
            raise ShapeError("items of a list that a loop made are joined along axis 0 only")
        return parts.reshape(-1, *parts.shape[2:])
    tensors = _alike([lifted(recorder, part) for part in parts])
    return recorder.apply("concat", tensors, {"axis": axis})


def _unary(ufunc: np.ufunc, op: str, recorder: Recorder, x: Any) -> Any:
    value = lifted(recorder, x)
    dtype, _ = ufunc.resolve_dtypes((value.dtype, None))
    return as_weak(recorder.apply(op, [cast(value, dtype)], {}), value)


def _pair(ufunc: np.ufunc, op: str, recorder: Recorder, x: Any, y: Any) -> Any:
    first, second = adopt(x, y)
    values = promoted(ufunc, first, second)
    return as_weak(recorder.apply(op, list(values), {}), x, y)


def _where(recorder: Recorder, condition: Any, x: Any, y: Any) -> Any:
    values = (
        promoted(np.add, *adopt(x, y)) if contains_traced([x, y]) else np.broadcast_arrays(x, y)
    )
    truth = cast(lifted(recorder, condition), np.dtype(bool))
    return as_weak(recorder.apply("where", [truth, *values], {}), x, y)


def _logical(op: str, recorder: Recorder, *values: Any) -> Any:
    truths = [cast(lifted(recorder, value), np.dtype(bool)) for value in values]
    return recorder.apply(op, truths, {})


def _like(fill: float, recorder: Recorder, x: Any) -> Any:
    value = lifted(recorder, x)
    if value.type.is_static:
        return np.full(value.type.dims, fill, value.dtype)
    shape = recorder.apply("shape", [value], {})
    return recorder.apply("constant_of_shape", [shape], {"value": np.full(1, fill, value.dtype)})


def _as_array(recorder: Recorder, x: Any, dtype: Any = None) -> Any:
    value = lifted(recorder, x)
    return replace(value if dtype is None else value.astype(dtype), weak=False)


def copied(recorder: Recorder, x: Any, dtype: Any = None) -> Any:
    """Return a value that shares its elements with no other variable."""
    return recorder.apply("identity", [_as_array(recorder, x, dtype)], {})


def _expand_dims(recorder: Recorder, x: Any, axis: int) -> Any:
    return recorder.apply("unsqueeze", [lifted(recorder, x), np.array([axis], np.int64)], {})


def _method(name: str, recorder: Recorder, x: Any, *args: Any, **options: Any) -> Any:
    return getattr(lifted(recorder, x), name)(*args, **options)


def _whole(recorder: Recorder, x: Any) -> Any:
    """int(x): cut toward zero."""
    value = lifted(recorder, x)
    return replace(cast(_one(value), np.dtype(np.int64)), weak=True)


def _real(recorder: Recorder, x: Any) -> Any:
    return replace(cast(_one(lifted(recorder, x)), np.dtype(np.float64)), weak=True)


def _one(value: Traced) -> Traced:
    """Return the one element of a tensor; raise ShapeError where there may be several."""
    if value.shape == ():
        return value
    if value.type.is_static and value.type.elements == 1:
        made: Traced = value.reshape(())
        return made
    raise ShapeError(f"a Python number is made of {value.type}, which has more than one element")


def truth(recorder: Recorder, value: Any) -> Any:
    """Return whether a value counts as true: a bool, or a Traced of bool without axes.

    Errors: ShapeError, if the tensor has more than one element
    """
    if not isinstance(value, Traced):
        return len(value) > 0 if isinstance(value, (list, tuple, dict)) else bool(value)
    one = _one(value)
    return one if one.type.dtype == "bool" else one != np.zeros((), one.dtype)


def _round(recorder: Recorder, x: Any) -> Any:
    return _whole(recorder, recorder.apply("round", [_one(lifted(recorder, x))], {}))


def _least(op: str, ufunc: np.ufunc, reduction: str, recorder: Recorder, *values: Any) -> Any:
    """min and max of Python: of numbers, of a list, or of a vector."""
    if len(values) == 1 and isinstance(values[0], Traced):
        (x,) = values
        if len(x.shape) != 1:
            raise ShapeError(f"{op} of {x.type}: Python compares its rows", fix=f"x.{op}()")
        return x._reduced(reduction, None, False)
    many = values[0] if len(values) == 1 else values
    for one in many:
        _one(lifted(recorder, one))
    return reduce(partial(_pair, ufunc, op, recorder), many)


def _sum(recorder: Recorder, values: Any, start: Any = 0) -> Any:
    if isinstance(values, Traced):
        made = values.sum(axis=0)
        return made if type(start) is int and start == 0 else binary(operator.add, start, made)
    return reduce(partial(binary, operator.add), values, start)


def _any_of(op: str, recorder: Recorder, values: Any) -> Any:
    if isinstance(values, Traced):
        return getattr(values, "any" if op == "or" else "all")()
    return reduce(partial(_logical, op, recorder), [truth(recorder, one) for one in values])


def _length(recorder: Recorder, x: Any) -> Any:
    if not isinstance(x, Traced):
        return len(x)
    return dimensions(x)[0]


def dimensions(x: Traced) -> tuple[Any, ...]:
    """Return the shape: ints, and a traced number for each dimension that a run decides."""
    if x.type.is_static:
        return x.type.dims
    whole = x.recorder.apply("shape", [x], {})
    return tuple(
        dim if isinstance(dim, int) else replace(whole[i], weak=True)
        for i, dim in enumerate(x.type.shape)
    )


def _divmod(recorder: Recorder, x: Any, y: Any) -> Any:
    return binary(operator.floordiv, x, y), binary(operator.mod, x, y)


def _absolute(recorder: Recorder, x: Any) -> Any:
    return as_weak(abs(x), x)


def _rows(recorder: Recorder, values: Any) -> list[Any]:
    return list(rows_of(values)) if isinstance(values, Traced) else list(values)


def rows_of(x: Traced) -> Iterator[Any]:
    """Yield the rows of a tensor whose first dimension is known."""
    return (x[i] for i in range(len(x)))


def _table() -> dict[Any, Known]:
    table: dict[Any, Known] = {
        abs: _absolute,
        int: _whole,
        float: _real,
        bool: truth,
        len: _length,
        sum: _sum,
        round: _round,
        divmod: _divmod,
        list: _rows,
        any: partial(_any_of, "or"),
        all: partial(_any_of, "and"),
        tuple: lambda r, x: tuple(_rows(r, x)),
        max: partial(_least, "max", np.maximum, "reduce_max"),
        min: partial(_least, "min", np.minimum, "reduce_min"),
        math.floor: lambda r, x: _whole(r, _unary(np.floor, "floor", r, x)),
        math.ceil: lambda r, x: _whole(r, _unary(np.ceil, "ceil", r, x)),
        np.where: _where,
        np.stack: stack,
        np.concatenate: _concatenate,
        np.zeros_like: partial(_like, 0),
        np.ones_like: partial(_like, 1),
        np.array: copied,
        np.asarray: _as_array,
        np.copy: copied,
        np.expand_dims: _expand_dims,
        np.logical_and: partial(_logical, "and"),
        np.logical_or: partial(_logical, "or"),
        np.logical_not: partial(_logical, "not"),
        np.logical_xor: partial(_logical, "xor"),
        np.dot: lambda r, x, y: binary(operator.matmul, lifted(r, x), y),
    }
    for ufunc, op in _UNARY.items():
        table[ufunc] = partial(_unary, ufunc, op)
    for function, ufunc in _MATH.items():
        table[function] = partial(_unary, ufunc, _UNARY[ufunc])
    for function, own in _BINARY.items():
        table[function] = lambda r, x, y, own=own: binary(own, lifted(r, x), y)
    for function, pair in _PAIRS.items():
        table[function] = partial(_pair, *pair)
    for function, name in _METHODS.items():
        table[function] = partial(_method, name)
    return table | several_ops(lifted, _concatenate)


_KNOWN = _table()


def known_call(function: Any) -> Known | None:
    """Return how a function is recorded, to be called with the recorder first; None if unknown."""
    if isinstance(function, partial) and isinstance(function.func, Eager):
        return partial(_eager, function.args[0])
    if isinstance(function, PythonOp):
        return lambda recorder, *inputs, **attrs: function(*_lift_first(recorder, inputs), **attrs)
    if isinstance(function, Eager):
        return lambda recorder, op, *inputs, **attrs: _eager(op, recorder, *inputs, **attrs)
    if isinstance(function, type) and issubclass(function, np.generic):
        return lambda recorder, x: _as_array(recorder, x, function)
    try:
        return _KNOWN.get(function)
    except TypeError:  # not hashable
        return None


def _eager(op: str, recorder: Recorder, *inputs: Any, **attrs: Any) -> Any:
    """Record an op of `trireme.eager`; a Python number takes the dtype of a tensor beside it."""
    outputs, attrs = attrs.pop("outputs", None), dict(attrs)
    pin, quants = attrs.pop("device", None), attrs.pop("quants", ())
    tensors = [each for each in inputs if isinstance(each, (Operators, np.ndarray, np.generic))]
    values = [
        adopt(recorder.lift(each), tensors[0])[0] if _is_weak_beside(each, tensors) else each
        for each in inputs
    ]
    return recorder.apply(op, values, attrs, outputs, pin, quants)


def _lift_first(recorder: Recorder, inputs: Sequence[Any]) -> list[Any]:
    """Return inputs with the first one as a tensor, which has the operator recorded."""
    return [recorder.lift(inputs[0]), *inputs[1:]] if inputs else []


def _is_weak_beside(value: Any, tensors: Sequence[Any]) -> bool:
    return bool(tensors) and type(value) in (int, float)
