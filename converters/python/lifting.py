"""Values as tensors: how operands of recorded calls are lifted, joined and promoted.

`calls.py`, `numpy_calls.py` and `python_calls.py` build what functions become from these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, ItemsView, Iterator, Sequence, ValuesView
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from trireme.converters.python.dtypes import adopt, as_weak
from trireme.converters.python.scope import Recorder, RowList, Traced
from trireme.runtime.eager.operands import cast, promoted
from trireme.support.errors import ShapeError

Known = Callable[..., Any]


def binary(function: Known, first: Any, second: Any) -> Any:
    """Return an operator of two operands; Python numbers take the dtype of a tensor beside them."""
    return as_weak(function(*adopt(first, second)), first, second)


def lifted(recorder: Recorder, value: Any) -> Traced:
    """Return a value as a tensor; a list is the array that numpy makes of it."""
    if isinstance(value, RowList):
        return recorder.traced_like(value)
    if isinstance(value, (list, tuple)) and contains_traced(value):
        dtype = np.array([_zero(leaf) for leaf in leaves_of(value)]).dtype
        return side_by_side(recorder, value, dtype)
    return recorder.lift(np.asarray(value) if isinstance(value, (list, tuple)) else value)


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield what nested lists hold."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves_of(part)
    else:
        yield value


def _zero(leaf: Any) -> Any:
    """Return a number from which numpy takes the dtype of an array with a leaf."""
    is_array = isinstance(leaf, (Traced, np.ndarray))
    return leaf.dtype.type() if is_array else leaf


def side_by_side(recorder: Recorder, value: Any, dtype: np.dtype[Any]) -> Traced:
    """Return nested lists of tensors and numbers as one tensor."""
    if isinstance(value, (list, tuple)):
        return stack(recorder, [side_by_side(recorder, part, dtype) for part in value])
    made: Traced = cast(recorder.lift(value), dtype)
    return made


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
    tensors = alike([lifted(recorder, part) for part in parts])
    rank = len(tensors[0].shape) + 1
    where = np.array([axis % rank if -rank <= axis < rank else axis], np.int64)
    columns = [recorder.apply("unsqueeze", [one, where], {}) for one in tensors]
    made: Traced = recorder.apply("concat", columns, {"axis": int(where[0])})
    return made


def concatenate(recorder: Recorder, parts: Any, axis: int = 0) -> Any:
    """Return tensors one after another along an axis, in the dtype that holds them all."""
    if isinstance(parts, Traced):
        if axis != 0:
            raise ShapeError("items of a list that a loop made are joined along axis 0 only")
        return parts.reshape(-1, *parts.shape[2:])
    tensors = alike([lifted(recorder, part) for part in parts])
    return recorder.apply("concat", tensors, {"axis": axis})


def alike(tensors: Sequence[Traced]) -> list[Traced]:
    """Return tensors in the dtype that holds them all, as numpy joins arrays."""
    dtype = np.result_type(*(one.dtype for one in tensors))
    return [replace(cast(one, dtype), weak=False) for one in tensors]


def weakly_alike(tensors: Sequence[Traced]) -> list[Traced]:
    """Return tensors in one dtype; a weak one takes that of the others."""
    pairs = [adopt(one, other) for one in tensors for other in tensors]
    width = len(tensors)
    firsts = [
        reduce(_better, (a for a, _ in pairs[i * width : (i + 1) * width])) for i in range(width)
    ]
    return alike(firsts)


def _better(a: Traced, b: Traced) -> Traced:
    return b if a.weak and not b.weak else a


def unary(ufunc: np.ufunc, op: str, recorder: Recorder, x: Any) -> Any:
    """Return an op of one operand, in the dtype in which numpy computes the ufunc."""
    value = lifted(recorder, x)
    dtype, _ = ufunc.resolve_dtypes((value.dtype, None))
    return as_weak(recorder.apply(op, [cast(value, dtype)], {}), value)


def pair(ufunc: np.ufunc, op: str, recorder: Recorder, x: Any, y: Any) -> Any:
    """Return an op of two operands, in the dtype in which numpy computes the ufunc."""
    first, second = adopt(x, y)
    values = promoted(ufunc, first, second)
    return as_weak(recorder.apply(op, list(values), {}), x, y)


def where(recorder: Recorder, condition: Any, x: Any, y: Any) -> Any:
    """Return np.where, recorded."""
    values = (
        promoted(np.add, *adopt(x, y)) if contains_traced([x, y]) else np.broadcast_arrays(x, y)
    )
    truth = cast(lifted(recorder, condition), np.dtype(bool))
    return as_weak(recorder.apply("where", [truth, *values], {}), x, y)


def logical(op: str, recorder: Recorder, *values: Any) -> Any:
    """Return an op on truths."""
    truths = [cast(lifted(recorder, value), np.dtype(bool)) for value in values]
    return recorder.apply(op, truths, {})
