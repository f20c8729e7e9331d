"""Functions of numpy that are several ops: sorting, rearranging, comparing, small algebra.

`calls.py` has the table of functions that are one op or a method, and joins this one to it. Each
function here is called with the recorder, then with numpy's arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trireme.converters.python.dtypes import as_weak
from trireme.converters.python.lifting import Known, concatenate, lifted
from trireme.converters.python.scope import Recorder, Traced
from trireme.runtime.eager.operands import cast
from trireme.support.errors import ShapeError


def _length(x: Traced, axis: int) -> int:
    dim = x.shape[x._axis(axis)]
    if not isinstance(dim, int):
        raise ShapeError(f"axis {axis} of {x.type} has no length before a run")
    return dim


def in_order(x: Traced, axis: int | None) -> tuple[Traced, Traced]:
    """Return the elements in ascending order along an axis, and where they were; ties in order."""
    x = x.ravel() if axis is None else x
    axis = -1 if axis is None else axis
    count = np.array([_length(x, axis)], np.int64)
    options = {"axis": x._axis(axis), "largest": 0, "sorted": 1}
    values, places = x.recorder.apply("top_k", [x, count], options, 2)
    return values, places


def _sort(recorder: Recorder, x: Any, axis: int | None = -1, kind: Any = None) -> Any:
    return in_order(lifted(recorder, x), axis)[0]


def _argsort(recorder: Recorder, x: Any, axis: int | None = -1, kind: Any = None) -> Any:
    return in_order(lifted(recorder, x), axis)[1]


def _searchsorted(recorder: Recorder, x: Any, v: Any, side: str = "left") -> Any:
    edges, found = lifted(recorder, x), lifted(recorder, v)
    column = found.reshape(*found.shape, 1)
    is_nan = column != column  # which numpy sorts behind all numbers
    if side == "left":
        below = np.less(edges, column) | (is_nan & (edges == edges))
    else:
        below = np.less_equal(edges, column) | is_nan
    return _count(below, -1)


def _count(truth: Any, axis: Any) -> Any:
    return cast(truth, np.dtype(np.int64)).sum(axis=axis)


def _flip(recorder: Recorder, x: Any, axis: Any = None) -> Any:
    value = lifted(recorder, x)
    axes = range(value.ndim) if axis is None else np.atleast_1d(axis).tolist()
    back = {value._axis(one) for one in axes}
    return value[tuple(slice(None, None, -1 if i in back else 1) for i in range(value.ndim))]


def _roll(recorder: Recorder, x: Any, shift: Any, axis: Any = None) -> Any:
    value = lifted(recorder, x)
    if axis is None:
        return _roll(recorder, value.ravel(), shift, 0).reshape(value.shape)
    for by, at in np.broadcast(shift, axis):
        at = value._axis(int(at))
        split = -int(by) % max(_length(value, at), 1)
        before = (slice(None),) * at
        parts = [value[(*before, slice(split, None))], value[(*before, slice(None, split))]]
        value = concatenate(recorder, parts, axis=at)
    return value


def _split(recorder: Recorder, x: Any, parts: Any, axis: int = 0) -> list[Any]:
    value = lifted(recorder, x)
    at, length = value._axis(axis), _length(value, axis)
    if isinstance(parts, int):
        if length % parts:
            raise ShapeError(f"axis {axis} of {value.type} is split in {parts} parts")
        parts = range(length // parts, length, length // parts)
    ends = [0, *parts, length]
    before = (slice(None),) * at
    return [value[(*before, slice(a, b))] for a, b in zip(ends, ends[1:], strict=False)]


def _tile(recorder: Recorder, x: Any, reps: Any) -> Any:
    value, times = lifted(recorder, x), np.atleast_1d(reps)
    rank = max(value.ndim, len(times))
    value = value.reshape(*(1,) * (rank - value.ndim), *value.shape)
    times = np.concatenate([np.ones(rank - len(times), np.int64), times]).astype(np.int64)
    return recorder.apply("tile", [value, times], {})


def _repeat(recorder: Recorder, x: Any, repeats: int, axis: int | None = None) -> Any:
    value = lifted(recorder, x)
    value, axis = (value.ravel(), 0) if axis is None else (value, value._axis(axis))
    where = np.repeat(np.arange(_length(value, axis)), repeats)
    return recorder.apply("gather", [value, where], {"axis": axis})


def _stacked(rank: int, axis: int) -> Known:
    def whole(recorder: Recorder, parts: Any) -> Any:
        values = [lifted(recorder, part) for part in parts]
        wide = [v.reshape(*(1,) * (rank - v.ndim), *v.shape) for v in values]
        return concatenate(recorder, wide, axis=0 if wide[0].ndim == 1 else axis)

    return whole


def _column_stack(recorder: Recorder, parts: Any) -> Any:
    values = [lifted(recorder, part) for part in parts]
    return concatenate(recorder, [v if v.ndim > 1 else v.reshape(-1, 1) for v in values], axis=1)


def _broadcast_to(recorder: Recorder, x: Any, shape: Any) -> Any:
    target = np.atleast_1d(np.array(shape, np.int64))
    return recorder.apply("expand", [lifted(recorder, x), target], {})


def _moveaxis(recorder: Recorder, x: Any, source: Any, destination: Any) -> Any:
    value = lifted(recorder, x)
    sizes = np.empty(range(value.ndim))  # the size of an axis is its number
    return value.transpose(*np.moveaxis(sizes, source, destination).shape)


def _isfinite(recorder: Recorder, x: Any) -> Any:
    value = lifted(recorder, x)
    if value.dtype.kind in "biu":
        return value == value
    return abs(value) < np.array(np.inf, value.dtype)


def _isclose(recorder: Recorder, x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Any:
    a, b = (lifted(recorder, one) for one in (x, y))
    wide = np.result_type(a.dtype, b.dtype, np.float64)
    a, b = cast(a, wide), cast(b, wide)
    near = abs(a - b) <= atol + rtol * abs(b)
    return np.logical_or(np.logical_and(near, _isfinite(recorder, b)), a == b)


def _allclose(recorder: Recorder, *args: Any, **options: Any) -> Any:
    return _isclose(recorder, *args, **options).all()


def _array_equal(recorder: Recorder, x: Any, y: Any) -> Any:
    a, b = (lifted(recorder, one) for one in (x, y))
    return (a == b).all() if a.shape == b.shape else False


def _count_nonzero(recorder: Recorder, x: Any, axis: Any = None) -> Any:
    value = lifted(recorder, x)
    return _count(value if value.dtype.kind == "b" else value != 0, axis)


def _diff(recorder: Recorder, x: Any, n: int = 1, axis: int = -1) -> Any:
    value = lifted(recorder, x)
    before = (slice(None),) * value._axis(axis)
    for _ in range(n):
        later, earlier = value[(*before, slice(1, None))], value[(*before, slice(None, -1))]
        value = later != earlier if value.dtype.kind == "b" else later - earlier
    return value


def _outer(recorder: Recorder, x: Any, y: Any) -> Any:
    return lifted(recorder, x).reshape(-1, 1) * lifted(recorder, y).reshape(1, -1)


def _inner(recorder: Recorder, x: Any, y: Any) -> Any:
    a, b = lifted(recorder, x), lifted(recorder, y)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"inner of {a.type} and {b.type}", fix="x @ y.T")
    return a @ b


def _vdot(recorder: Recorder, x: Any, y: Any) -> Any:
    return _inner(recorder, x, y)


def _diagonal(recorder: Recorder, x: Any, offset: int = 0) -> Any:
    value = lifted(recorder, x)
    if value.ndim != 2:
        raise ShapeError(f"the diagonal of {value.type}, which is no matrix")
    rows, columns = _length(value, 0), _length(value, 1)
    at = np.arange(max(0, -offset), min(rows, columns - offset))
    return value[at, at + offset]


def _diag(recorder: Recorder, x: Any, k: int = 0) -> Any:
    value = lifted(recorder, x)
    if value.ndim != 1:
        return _diagonal(recorder, value, k)
    size = _length(value, 0) + abs(k)
    where = np.flatnonzero(np.eye(size, k=k)).reshape(-1, 1)
    zeros = np.zeros(size * size, value.dtype)
    return recorder.apply("scatter_nd", [zeros, where, value], {}).reshape(size, size)


def _trace(recorder: Recorder, x: Any, offset: int = 0) -> Any:
    return _diagonal(recorder, x, offset).sum()


def _triangle(upper: int) -> Known:
    def part(recorder: Recorder, m: Any, k: int = 0) -> Any:
        return recorder.apply("trilu", [lifted(recorder, m), np.array(k)], {"upper": upper})

    return part


def _norm(recorder: Recorder, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    value = lifted(recorder, x)
    if value.dtype.kind in "biu":
        value = value.astype(np.float64)
    return as_weak(np.sqrt((value * value).sum(axis=axis, keepdims=keepdims)), value)


def _ptp(recorder: Recorder, x: Any, axis: Any = None) -> Any:
    value = lifted(recorder, x)
    return value.max(axis) - value.min(axis)


def _polyval(recorder: Recorder, p: Any, x: Any) -> Any:
    value = lifted(recorder, x)
    made: Any = 0.0
    for one in p if isinstance(p, (list, tuple)) else list(lifted(recorder, p)):
        made = made * value + one
    return made


SEVERAL_OPS: dict[Any, Known] = {
    np.sort: _sort,
    np.argsort: _argsort,
    np.searchsorted: _searchsorted,
    np.flip: _flip,
    np.roll: _roll,
    np.split: _split,
    np.tile: _tile,
    np.repeat: _repeat,
    np.hstack: _stacked(1, 1),
    np.vstack: _stacked(2, 0),
    np.column_stack: _column_stack,
    np.broadcast_to: _broadcast_to,
    np.moveaxis: _moveaxis,
    np.isfinite: _isfinite,
    np.isclose: _isclose,
    np.allclose: _allclose,
    np.array_equal: _array_equal,
    np.count_nonzero: _count_nonzero,
    np.diff: _diff,
    np.outer: _outer,
    np.inner: _inner,
    np.vdot: _vdot,
    np.diag: _diag,
    np.diagonal: _diagonal,
    np.trace: _trace,
    np.triu: _triangle(1),
    np.tril: _triangle(0),
    np.linalg.norm: _norm,
    np.ptp: _ptp,
    np.polyval: _polyval,
}
"""How functions of numpy that are several ops are recorded."""
