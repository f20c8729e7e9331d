"""Ranges from statistics: the whole, of an average sample, of most elements, of least error.

A narrower range has finer steps and cuts what is beyond it. Each function returns (low, high).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trireme.quantiser.encode import per_tensor, range_of
from trireme.quantiser.statistics import ValueStatistics
from trireme.support.dtypes import Array

Range = tuple[float, float]
_SHARE = 0.9999
_SHRINKS = np.linspace(1.0, 0.3, 36)
_MOMENTUM = 0.9


def min_max(statistics: ValueStatistics, dtype: str) -> Range:
    """Return the least and the greatest element of all samples."""
    return statistics.low, statistics.high


def moving_average(statistics: ValueStatistics, dtype: str) -> Range:
    """Return the averages of the samples' ends, later samples at weight 0.1.

    Source: TensorFlow, MovingAverageQuantize
    """
    low, high = statistics.lows[0], statistics.highs[0]
    for a, b in zip(statistics.lows[1:], statistics.highs[1:], strict=True):
        low = low * _MOMENTUM + a * (1 - _MOMENTUM)
        high = high * _MOMENTUM + b * (1 - _MOMENTUM)
    return low, high


def percentile(statistics: ValueStatistics, dtype: str) -> Range:
    """Return the range of all but one in 10,000 elements, half of them at each end."""
    total = np.cumsum(statistics.counts)
    if not total[-1]:
        return min_max(statistics, dtype)
    beyond = (1 - _SHARE) / 2 * total[-1]
    step = statistics.top / (len(statistics.counts) // 2)
    first = int(np.searchsorted(total, beyond, side="right"))
    last = int(np.searchsorted(total, total[-1] - beyond))
    half = len(total) // 2
    low, high = (first - half) * step, (last + 1 - half) * step
    return max(low, statistics.low), min(high, statistics.high)


def mean_squared_error(statistics: ValueStatistics, dtype: str) -> Range:
    """Return the range, the whole one shrunk at either end, of least squared error."""
    found = (statistics.low, statistics.high)
    for end in (1, 0):
        found = _shrunk(statistics, dtype, found, end, _squared_error)
    return found


def entropy(statistics: ValueStatistics, dtype: str) -> Range:
    """Return the range of least divergence between the histogram and its quantised form.

    Source: TensorRT's calibration by Kullback-Leibler divergence (Migacz, GTC 2017)
    """
    found = (statistics.low, statistics.high)
    for end in (1, 0):
        found = _shrunk(statistics, dtype, found, end, _divergence)
    return found


Error = Callable[[ValueStatistics, Range, str], float]


def _shrunk(statistics: ValueStatistics, dtype: str, whole: Range, end: int, error: Error) -> Range:
    """Return the range with one end moved toward 0 to where the error is least."""
    candidates = []
    for share in _SHRINKS:
        ends = list(whole)
        ends[end] *= share
        candidates.append((ends[0], ends[1]))
    errors = [error(statistics, one, dtype) for one in candidates]
    return candidates[int(np.argmin(errors))]


def _squared_error(statistics: ValueStatistics, ends: Range, dtype: str) -> float:
    x = statistics.centres
    return float(np.dot(statistics.counts, (x - _rounded(x, ends, dtype)) ** 2))


def _rounded(x: Array, ends: Range, dtype: str) -> Array:
    """Return numbers quantised and made float again."""
    quant = per_tensor(*ends, dtype)
    low, high = range_of(quant, dtype)
    steps = np.rint(np.clip(x, low, high) / quant.scale)
    return np.asarray(steps * quant.scale)


def _divergence(statistics: ValueStatistics, ends: Range, dtype: str) -> float:
    counts, x = statistics.counts, statistics.centres
    if not counts.any():
        return 0.0
    quant = per_tensor(*ends, dtype)
    steps = np.rint(np.clip(x, *range_of(quant, dtype)) / quant.scale).astype(np.int64)
    steps -= steps.min()
    filled = counts > 0
    sums = np.bincount(steps, counts)
    bins = np.maximum(np.bincount(steps, filled), 1)
    p = counts[filled] / counts.sum()
    q = (sums / bins)[steps][filled] / counts.sum()
    return float(np.sum(p * np.log(p / q)))


METHODS: Mapping[str, Callable[[ValueStatistics, str], Range]] = {
    "min_max": min_max,
    "moving_average": moving_average,
    "percentile": percentile,
    "mean_squared_error": mean_squared_error,
    "entropy": entropy,
}
"""The methods by name."""
