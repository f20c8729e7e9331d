"""Functions of Python and math, recorded: numbers, lengths, and what compares or adds values.

Each is called with the recorder, then with Python's arguments. `calls.py` joins the table to
numpy's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np

from trireme.converters.python.dtypes import as_weak
from trireme.converters.python.lifting import Known, binary, lifted, logical, pair, unary
from trireme.converters.python.scope import Recorder, Traced
from trireme.runtime.eager.operands import cast
from trireme.support.errors import GraphError, ShapeError

_OF_NUMPY = (
    *("ceil", "cos", "cosh", "exp", "floor", "log", "reciprocal", "sign", "sin", "sinh", "sqrt"),
    *("square", "tan", "tanh"),
)
UFUNCS: dict[str, np.ufunc] = {op: getattr(np, op) for op in _OF_NUMPY} | {
    "abs": np.absolute,
    "neg": np.negative,
    "round": np.rint,
    "is_inf": np.isinf,
    "is_nan": np.isnan,
    "atan": np.arctan,
    "asin": np.arcsin,
    "acos": np.arccos,
}
"""The ops of one operand, each with the function of numpy that computes it."""
_MATH = ("sqrt", "exp", "sin", "cos", "tan", "tanh", "atan", "asin", "acos", "sinh", "cosh")
"""The functions of math that are ops of their names."""
_OPERATORS = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.pow, operator.matmul, operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.eq, operator.ne, operator.and_, operator.or_, operator.xor),
)


def operator_of(function: Known, recorder: Recorder, x: Any, y: Any) -> Any:
    """Return an operator of Python, of two operands."""
    return binary(function, lifted(recorder, x), y)


def whole(recorder: Recorder, x: Any) -> Any:
    """int(x): cut toward zero."""
    value = lifted(recorder, x)
    return replace(cast(one_of(value), np.dtype(np.int64)), weak=True)


def real(recorder: Recorder, x: Any) -> Any:
    """float(x)."""
    return replace(cast(one_of(lifted(recorder, x)), np.dtype(np.float64)), weak=True)


def one_of(value: Traced) -> Traced:
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
    one = one_of(value)
    return one if one.type.dtype == "bool" else one != np.zeros((), one.dtype)


def _round(recorder: Recorder, x: Any, ndigits: int | None = None) -> Any:
    value = one_of(lifted(recorder, x))
    if ndigits is None:
        return whole(recorder, recorder.apply("round", [value], {}))
    if value.weak and value.dtype.kind == "f":
        raise GraphError("Python rounds the decimal digits of a float, and no op does")
    return as_weak(value.round(ndigits), value)


def _on_real(op: str, recorder: Recorder, x: Any) -> Any:
    """A function of math: of a float of Python, whatever the dtype of its operand is."""
    return unary(UFUNCS[op], op, recorder, real(recorder, x))


def _logarithm(recorder: Recorder, x: Any, *base: Any) -> Any:
    made = _on_real("log", recorder, x)
    return binary(operator.truediv, made, _logarithm(recorder, *base)) if base else made


def _times(factor: float, recorder: Recorder, x: Any) -> Any:
    return binary(operator.mul, real(recorder, x), factor)


def _angle(recorder: Recorder, y: Any, x: Any) -> Any:
    return pair(np.arctan2, "atan2", recorder, real(recorder, y), real(recorder, x))


def _product(recorder: Recorder, values: Any, *, start: Any = 1) -> Any:
    rows = rows_of(values) if isinstance(values, Traced) else values
    return reduce(partial(binary, operator.mul), rows, start)


def _sum(recorder: Recorder, values: Any, start: Any = 0) -> Any:
    if isinstance(values, Traced):
        made = values.sum(axis=0)
        return made if type(start) is int and start == 0 else binary(operator.add, start, made)
    return reduce(partial(binary, operator.add), values, start)


def _any_of(op: str, recorder: Recorder, values: Any) -> Any:
    if isinstance(values, Traced):
        return values.any() if op == "or" else values.all()
    return reduce(partial(logical, op, recorder), [truth(recorder, one) for one in values])


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


def _rows(recorder: Recorder, values: Any) -> Any:
    if not isinstance(values, Traced):
        return list(values)
    known = values.shape and isinstance(values.shape[0], int)
    return list(rows_of(values)) if known else recorder.rows(values)


def rows_of(x: Traced) -> Iterator[Any]:
    """Yield the rows of a tensor whose first dimension is known."""
    return (x[i] for i in range(len(x)))


PYTHON: dict[Any, Known] = {
    abs: _absolute,
    operator.neg: lambda r, x: as_weak(-x, x),
    int: whole,
    float: real,
    bool: truth,
    len: _length,
    sum: _sum,
    round: _round,
    divmod: _divmod,
    list: _rows,
    any: partial(_any_of, "or"),
    all: partial(_any_of, "and"),
    tuple: lambda r, x: tuple(_rows(r, x)),
    math.floor: lambda r, x: whole(r, unary(np.floor, "floor", r, x)),
    math.ceil: lambda r, x: whole(r, unary(np.ceil, "ceil", r, x)),
    pow: partial(operator_of, operator.pow),
    math.trunc: whole,
    math.log: _logarithm,
    math.atan2: _angle,
    math.prod: _product,
    math.degrees: partial(_times, 180 / math.pi),
    math.radians: partial(_times, math.pi / 180),
    math.pow: lambda r, x, y: binary(operator.pow, real(r, x), real(r, y)),
    math.fabs: partial(_on_real, "abs"),
    math.isnan: partial(_on_real, "is_nan"),
    math.isinf: partial(_on_real, "is_inf"),
    **{getattr(math, op): partial(_on_real, op) for op in _MATH},
    **{function: partial(operator_of, function) for function in _OPERATORS},
}
