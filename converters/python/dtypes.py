"""Which dtype a Python number takes when it becomes a tensor.

A number beside a tensor takes the tensor's dtype (a float beside integers makes float64, as in
numpy 2). A number alone is int64 or float64, as wide as Python's own; it stays weak: the next
tensor beside it decides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trireme.converters.python.scope import Recorder, RowList, Traced
from trireme.ir.graph import UNKNOWN, TensorType
from trireme.runtime.eager.operands import cast, dtype_of, promoted
from trireme.support.dtypes import FLOATS, INTS, dtype_name, numpy_dtype

_WEAK = {"int64": 1, "float64": 1.0}
"""The dtypes of weak values, with a Python number that is promoted as they are."""


def is_weak(value: Any) -> bool:
    """Whether a value is a Python number or stands for one."""
    return value.weak if isinstance(value, Traced) else type(value) in (int, float, bool)


def adopt(first: Any, second: Any) -> tuple[Any, Any]:
    """Return two operands: a weak one beside a tensor is cast to the dtype it takes there."""
    if _is_weak_number(first) and not is_weak(second):
        return _beside(first, second), second
    if _is_weak_number(second) and not is_weak(first):
        return first, _beside(second, first)
    return first, second


def _is_weak_number(value: Any) -> bool:
    """Whether a traced value stands for a number of Python; a list of them is an array to numpy."""
    return isinstance(value, Traced) and value.weak and not isinstance(value, RowList)


def _beside(number: Traced, tensor: Any) -> Any:
    if not isinstance(tensor, (Traced, np.generic, np.ndarray)):
        return number
    strong = tensor if isinstance(tensor, Traced) else number.recorder.lift(np.asarray(tensor))
    if strong.type.dtype == "bool":
        return number
    made, _ = promoted(np.add, _WEAK[number.type.dtype], strong)
    return replace(cast(number, dtype_of(made)), weak=False)


def as_weak(result: Any, *operands: Any) -> Any:
    """Return a result, weak where all its operands stand for Python numbers."""
    weak = isinstance(result, Traced) and result.type.dtype in _WEAK and all(map(is_weak, operands))
    return replace(result, weak=True) if weak else result


def type_of(value: Any) -> TensorType:
    """Return the type that a leaf has as a tensor."""
    if isinstance(value, Traced):
        return value.type
    array = np.asarray(value)
    return TensorType(array.shape, dtype_name(array.dtype))


def typed(value: Any) -> tuple[TensorType, bool]:
    """Return the type that a leaf has as a tensor, and whether it stands for a Python number."""
    type = type_of(value).without_quant()
    return type, is_weak(value) and type.dtype != "bool"


def common(
    first: tuple[TensorType, bool], second: tuple[TensorType, bool]
) -> tuple[TensorType, bool] | None:
    """Return the type that holds two versions of a variable; None when there is none."""
    (a, weak_a), (b, weak_b) = first, second
    dtype = _common_dtype(a.dtype, weak_a, b.dtype, weak_b)
    if dtype is None or len(a.shape) != len(b.shape):
        return None
    dims = tuple(x if x == y else UNKNOWN for x, y in zip(a.shape, b.shape, strict=True))
    return TensorType(dims, dtype), weak_a and weak_b


def _common_dtype(a: str, weak_a: bool, b: str, weak_b: bool) -> str | None:
    if a == b:
        return a
    if weak_a and weak_b:
        return "float64" if {a, b} == {"int64", "float64"} else None
    if weak_a == weak_b:
        return None
    weak, strong = (a, b) if weak_a else (b, a)
    return strong if strong in FLOATS or (weak == "int64" and strong in INTS) else None


def to_type(recorder: Recorder, value: Any, dtype: str) -> Traced:
    """Return a leaf as a Traced of a dtype in the open scope."""
    if isinstance(value, Traced):
        made: Traced = cast(value, numpy_dtype(dtype))
        return made
    array = np.asarray(value)
    return recorder.lift(array if dtype_name(array.dtype) == dtype else array.astype(dtype))


def zeros(recorder: Recorder, type: TensorType) -> Traced:
    """Return zeros of a type, which stand for a variable that is not set; never read."""
    dims = [dim if isinstance(dim, int) else 0 for dim in type.shape]
    return recorder.lift(np.zeros(dims, numpy_dtype(type.dtype)))
