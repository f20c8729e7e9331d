"""Functions of numpy on sorted or padded elements: medians, quantiles, pad.

`numpy_calls.py` has its neighbours. Each function is called with the recorder, then with numpy's
arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trireme.converters.python.lifting import lifted, where
from trireme.converters.python.numpy_calls import in_order
from trireme.converters.python.scope import Recorder, Traced
from trireme.support.errors import GraphError, ShapeError

_PADS = ("constant", "edge", "reflect", "wrap")


def _columns(recorder: Recorder, x: Any, axis: int | None) -> tuple[Traced, Traced, int]:
    """Return elements sorted along the first axis, whether none is NaN, and how many there are."""
    value = lifted(recorder, x)
    value = value.astype(np.float64) if value.dtype.kind in "biu" else value
    value = value.ravel() if axis is None else value
    at = 0 if axis is None else value._axis(axis)
    count = value.shape[at]
    if not isinstance(count, int) or not count:
        raise ShapeError(f"axis {at} of {value.type} has no known length")
    order = [at, *(i for i in range(value.ndim) if i != at)]
    value = value.transpose(*order)
    found, _ = in_order(value, 0)
    return found, (value == value).all(axis=0), count


def _median(recorder: Recorder, a: Any, axis: int | None = None) -> Any:
    columns, whole, count = _columns(recorder, a, axis)
    high = columns[count // 2]
    middle = high if count % 2 else (columns[count // 2 - 1] + high) / 2
    return where(recorder, whole, middle, np.array(np.nan, middle.dtype))


def _quantile(recorder: Recorder, a: Any, q: Any, axis: int | None = None) -> Any:
    """Return the value below which a part of the elements is, by linear interpolation.

    Source: numpy, which goes from the nearer of the two neighbours
    """
    columns, whole, count = _columns(recorder, a, axis)
    part = lifted(recorder, q)
    if part.shape:
        raise ShapeError(f"a quantile of {part.type}: one number")
    place = part.astype(columns.dtype) * (count - 1)
    low = np.floor(place)
    below = low.astype(np.int64)
    above = np.minimum(below + 1, count - 1)
    first, second = columns[below], columns[above]
    share, gap = place - low, second - first
    found = where(recorder, share < 0.5, first + gap * share, second - gap * (1 - share))
    return where(recorder, whole, found, np.array(np.nan, found.dtype))


def _percentile(recorder: Recorder, a: Any, q: Any, axis: int | None = None) -> Any:
    return _quantile(recorder, a, lifted(recorder, q) / 100, axis)


def _pad(
    recorder: Recorder, array: Any, pad_width: Any, mode: str = "constant", **options: Any
) -> Any:
    value = lifted(recorder, array)
    fill = options.pop("constant_values", 0)
    if mode not in _PADS or options or np.ndim(fill):
        raise GraphError(f"pad in mode {mode!r} with {', '.join(options) or 'several values'}")
    widths = np.broadcast_to(np.asarray(pad_width, np.int64), (value.ndim, 2))
    inputs = [value, widths.T.reshape(-1)]
    if mode == "constant":
        inputs.append(lifted(recorder, fill).astype(value.dtype))
    return recorder.apply("pad", inputs, {"mode": mode})


STATISTICS: dict[Any, Callable[..., Any]] = {
    np.median: _median,
    np.quantile: _quantile,
    np.percentile: _percentile,
    np.pad: _pad,
}
