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
from trireme.runtime.operands import cast
from trireme.support.errors import ShapeError

_MATH: dict[Any, tuple[np.ufunc, str]] = {
    math.sqrt: (np.sqrt, "sqrt"),
    math.exp: (np.exp, "exp"),
    math.log: (np.log, "log"),
    math.sin: (np.sin, "sin"),
    math.cos: (np.cos, "cos"),
    math.tan: (np.tan, "tan"),
    math.tanh: (np.tanh, "tanh"),
    math.fabs: (np.absolute, "abs"),
    math.isnan: (np.isnan, "is_nan"),
    math.isinf: (np.isinf, "is_inf"),
    math.atan: (np.arctan, "atan"),
}


def _whole(recorder: Recorder, x: Any) -> Any:
    """int(x): cut toward zero."""
    value = lifted(recorder, x)
    return replace(cast(one_of(value), np.dtype(np.int64)), weak=True)


def _real(recorder: Recorder, x: Any) -> Any:
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


def _round(recorder: Recorder, x: Any) -> Any:
    return _whole(recorder, recorder.apply("round", [one_of(lifted(recorder, x))], {}))


def _least(op: str, ufunc: np.ufunc, reduction: str, recorder: Recorder, *values: Any) -> Any:
    """min and max of Python: of numbers, of a list, or of a vector."""
    if len(values) == 1 and isinstance(values[0], Traced):
        (x,) = values
        if len(x.shape) != 1:
            raise ShapeError(f"{op} of {x.type}: Python compares its rows", fix=f"x.{op}()")
        return x._reduced(reduction, None, False)
    many = values[0] if len(values) == 1 else values
    for one in many:
        one_of(lifted(recorder, one))
    return reduce(partial(pair, ufunc, op, recorder), many)


def _sum(recorder: Recorder, values: Any, start: Any = 0) -> Any:
    if isinstance(values, Traced):
        made = values.sum(axis=0)
        return made if type(start) is int and start == 0 else binary(operator.add, start, made)
    return reduce(partial(binary, operator.add), values, start)


def _any_of(op: str, recorder: Recorder, values: Any) -> Any:
    if isinstance(values, Traced):
        return getattr(values, "any" if op == "or" else "all")()
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


def _rows(recorder: Recorder, values: Any) -> list[Any]:
    return list(rows_of(values)) if isinstance(values, Traced) else list(values)


def rows_of(x: Traced) -> Iterator[Any]:
    """Yield the rows of a tensor whose first dimension is known."""
    return (x[i] for i in range(len(x)))


PYTHON: dict[Any, Known] = {
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
    math.floor: lambda r, x: _whole(r, unary(np.floor, "floor", r, x)),
    math.ceil: lambda r, x: _whole(r, unary(np.ceil, "ceil", r, x)),
    math.pow: lambda r, x, y: binary(operator.pow, lifted(r, x), y),
    **{function: partial(unary, *own) for function, own in _MATH.items()},
}
