"""What known functions become when a traced value is among their arguments.

A table, a line per function of numpy: the function, and how it is recorded. `python_calls.py` has
those of Python and math. The dtypes are numpy's (`operands.promoted`). `trace` and `capture` read
the same table.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from trireme.converters.python.arguments import mapped
from trireme.converters.python.array_calls import numpys_own
from trireme.converters.python.dtypes import adopt
from trireme.converters.python.lifting import (
    Known,
    concatenate,
    lifted,
    logical,
    pair,
    stack,
    unary,
    where,
)
from trireme.converters.python.numpy_calls import SEVERAL_OPS
from trireme.converters.python.numpy_making import MAKING
from trireme.converters.python.numpy_statistics import STATISTICS
from trireme.converters.python.python_calls import (
    PYTHON,
    UFUNCS,
    one_of,
    operator_of,
    real,
    rows_of,
    whole,
)
from trireme.converters.python.scope import Recorder, Traced
from trireme.ir.python_op import PythonOp
from trireme.runtime.eager.eager import Eager
from trireme.runtime.eager.operators import Operators

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
    np.dot: operator.matmul,
}
_METHODS = (
    *("sum", "mean", "max", "min", "prod", "any", "all", "argmax", "argmin", "cumsum", "var"),
    *("std", "clip", "reshape", "transpose", "squeeze", "ravel", "round", "swapaxes", "take"),
)
"""Functions of numpy that are methods of a tensor, by name."""


def _append(recorder: Recorder, arr: Any, values: Any, axis: int | None = None) -> Any:
    parts = [lifted(recorder, arr), lifted(recorder, values)]
    if axis is None:
        parts, axis = [one.ravel() for one in parts], 0
    return concatenate(recorder, parts, axis)


def _like(fill: float, recorder: Recorder, x: Any, dtype: Any = None) -> Any:
    value = lifted(recorder, x)
    dtype = value.dtype if dtype is None else dtype
    if value.type.is_static:
        return np.full(value.type.dims, fill, dtype)
    shape = recorder.apply("shape", [value], {})
    return recorder.apply("constant_of_shape", [shape], {"value": np.full(1, fill, dtype)})


def _as_array(
    recorder: Recorder, x: Any, dtype: Any = None, order: Any = None, *, copy: Any = None
) -> Any:
    """np.asarray: a value has no order in memory."""
    if copy:
        return copied(recorder, x, dtype)
    value = lifted(recorder, x)
    return replace(value if dtype is None else value.astype(dtype), weak=False)


def copied(
    recorder: Recorder, x: Any, dtype: Any = None, *, copy: Any = True, order: Any = None
) -> Any:
    """np.array: a value that shares its elements with no other variable, unless `copy` is False."""
    if not copy:
        return _as_array(recorder, x, dtype)
    return recorder.apply("identity", [_as_array(recorder, x, dtype)], {})


def _copy(recorder: Recorder, x: Any) -> Any:
    """copy.copy: another array; a number, and a list with its items, as they are."""
    if not isinstance(x, Traced):
        return copy.copy(x)
    return copied(recorder, x) if x.shape and type(x) is Traced else x


def _deep_copy(recorder: Recorder, x: Any) -> Any:
    """copy.deepcopy: each array and list anew; what is one array in two places stays one."""
    made: dict[int, Any] = {}

    def leaf(name: str, value: Any) -> Any:
        if id(value) not in made:
            own = _copy(recorder, value) if isinstance(value, Traced) else copy.deepcopy(value)
            made[id(value)] = own
        return made[id(value)]

    return mapped(leaf, "", x)


def _expand_dims(recorder: Recorder, x: Any, axis: int) -> Any:
    return recorder.apply("unsqueeze", [lifted(recorder, x), np.array([axis], np.int64)], {})


def _method(name: str, recorder: Recorder, x: Any, *args: Any, **options: Any) -> Any:
    return getattr(lifted(recorder, x), name)(*args, **options)


def _table() -> dict[Any, Known]:
    table: dict[Any, Known] = {
        np.where: where,
        np.stack: stack,
        np.concatenate: concatenate,
        np.append: _append,
        np.zeros_like: partial(_like, 0),
        np.ones_like: partial(_like, 1),
        np.empty_like: partial(_like, 0),
        np.array: copied,
        np.asarray: _as_array,
        np.asanyarray: _as_array,
        np.copy: lambda recorder, x, order=None: copied(recorder, x),
        copy.copy: _copy,
        copy.deepcopy: _deep_copy,
        np.expand_dims: _expand_dims,
        np.logical_and: partial(logical, "and"),
        np.logical_or: partial(logical, "or"),
        np.logical_not: partial(logical, "not"),
        np.logical_xor: partial(logical, "xor"),
        np.maximum: partial(pair, np.maximum, "max"),
        np.minimum: partial(pair, np.minimum, "min"),
        np.arctan2: partial(pair, np.arctan2, "atan2"),
        **{function: partial(operator_of, own) for function, own in _BINARY.items()},
        **{ufunc: partial(unary, ufunc, op) for op, ufunc in UFUNCS.items()},
        **{getattr(np, name): partial(_method, name) for name in _METHODS},
    }
    several = MAKING | STATISTICS | SEVERAL_OPS
    for function, own in several.items():
        own.__qualname__ = function.__name__  # what a TypeError calls it
    return table | PYTHON | several


_KNOWN = _table()


class TensorMethod(partial[Any]):
    """A method of a tensor, which is recorded."""


def _item(recorder: Recorder, x: Traced) -> Any:
    one = one_of(x)
    kinds = {"f": real, "i": whole, "u": whole}
    return kinds[one.dtype.kind](recorder, one) if one.dtype.kind in kinds else one


def _listed(recorder: Recorder, x: Traced) -> Any:
    """x.tolist(): numbers of Python in nested lists."""
    return [_listed(recorder, row) for row in rows_of(x)] if x.shape else _item(recorder, x)


METHODS: dict[str, Known] = {
    "copy": copied,
    "item": _item,
    "tolist": _listed,
    **{
        name: _KNOWN[getattr(np, name)]
        for name in ("argsort", "diagonal", "ptp", "repeat", "round", "searchsorted", "trace")
        if getattr(np, name) in _KNOWN
    },
}
"""Methods of numpy's arrays that a tensor of a graph has beside its own, by name."""


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
        return _KNOWN.get(numpys_own(function))
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
