"""Functions of numpy that make arrays, where a run decides their shapes or ends.

`calls.py` joins this table to its own. Each function is called with the recorder, then with numpy's
arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from trireme.converters.python.lifting import lifted, where
from trireme.converters.python.scope import Recorder, Traced
from trireme.runtime.eager.operands import cast, int_vector
from trireme.support.errors import ShapeError

_INT64 = np.dtype(np.int64)


def _shape(shape: Any) -> Any:
    """Return a shape as a vector: an array, or a tensor where a run decides a part."""
    if isinstance(shape, Traced):
        return cast(shape, _INT64).reshape(-1)
    parts = shape if isinstance(shape, (tuple, list)) else np.atleast_1d(shape).tolist()
    traced = next((one for one in parts if isinstance(one, Traced)), None)
    return np.array(parts, np.int64) if traced is None else int_vector(traced, parts)


def _filled(fill: float, recorder: Recorder, shape: Any, dtype: Any = float) -> Any:
    value = np.full(1, fill, float if dtype is None else dtype)
    return recorder.apply("constant_of_shape", [_shape(shape)], {"value": value})


def _full(recorder: Recorder, shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    value = recorder.traced_like(lifted(recorder, fill_value))
    value = value if dtype is None else value.astype(dtype)
    return recorder.apply("expand", [value, _shape(shape)], {})


def _full_like(recorder: Recorder, x: Any, fill_value: Any, dtype: Any = None) -> Any:
    like = lifted(recorder, x)
    shape = like.type.dims if like.type.is_static else recorder.apply("shape", [like], {})
    return _full(recorder, shape, fill_value, like.dtype if dtype is None else dtype)


def _arange(
    recorder: Recorder, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None
) -> Any:
    ends = (0, start) if stop is None else (start, stop)
    values = [lifted(recorder, one) for one in (*ends, 1 if step is None else step)]
    if any(one.ndim for one in values):
        raise ShapeError("the ends of arange are numbers")
    if all(one.dtype.kind in "iu" for one in values):
        made = recorder.apply("range", [cast(one, _INT64) for one in values], {})
    else:
        first, last, by = (cast(one, np.dtype(np.float64)) for one in values)
        count = cast(np.ceil((last - first) / by), _INT64)
        turns = recorder.apply("range", [np.array(0), count, np.array(1)], {})
        made = first + cast(turns, np.dtype(np.float64)) * ((first + by) - first)
    return made if dtype is None else made.astype(dtype)


def _linspace(
    recorder: Recorder, start: Any, stop: Any, num: Any = 50, endpoint: bool = True
) -> Any:
    first, last = (cast(lifted(recorder, x), np.dtype(np.float64)) for x in (start, stop))
    count = cast(lifted(recorder, num), _INT64)
    if first.ndim or last.ndim or count.ndim:
        raise ShapeError("the ends of linspace are numbers")
    turns = recorder.apply("range", [np.array(0), count, np.array(1)], {})
    gaps = np.maximum(count - 1, 1) if endpoint else count
    made = cast(turns, first.dtype) * ((last - first) / gaps) + first
    is_last = (turns == count - 1) & (turns > 0)
    return where(recorder, is_last, last, made) if endpoint else made


def _eye(recorder: Recorder, N: Any, M: Any = None, k: Any = 0, dtype: Any = float) -> Any:  # noqa: N803
    rows = _arange(recorder, N)
    columns = rows if M is None else _arange(recorder, M)
    return (rows.reshape(-1, 1) + k == columns).astype(dtype)


def _identity(recorder: Recorder, n: Any, dtype: Any = float) -> Any:
    return _eye(recorder, n, dtype=dtype)


def _bincount(recorder: Recorder, x: Any, weights: Any = None, minlength: Any = 0) -> Any:
    """Return how often each number comes, or the sum of its weights."""
    value = cast(lifted(recorder, x), _INT64)
    if value.ndim != 1 or value.shape == (0,):
        raise ShapeError(f"bincount of {value.type}")
    most = np.maximum(value.max() + 1, minlength)
    ones = np.ones(value.shape, np.int64) if value.type.is_static else value * 0 + 1
    added = lifted(recorder, ones if weights is None else weights)
    added = added if weights is None else cast(added, np.dtype(np.float64))
    zeros = _filled(0, recorder, most, added.dtype)
    column = value.reshape(-1, 1)
    return recorder.apply("scatter_nd", [zeros, column, added], {"reduction": "add"})


MAKING: dict[Any, Callable[..., Any]] = {
    np.zeros: partial(_filled, 0),
    np.ones: partial(_filled, 1),
    np.empty: partial(_filled, 0),
    np.full: _full,
    np.full_like: _full_like,
    np.arange: _arange,
    np.linspace: _linspace,
    np.eye: _eye,
    np.identity: _identity,
    np.bincount: _bincount,
}
