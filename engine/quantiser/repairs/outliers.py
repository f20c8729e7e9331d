"""Clipping of outlier channels: a range ends where all but a few channels end.

A value whose largest channels are several times the others spends its steps on them. Its range is
cut to the peak of the others, which is good where these few channels seldom say much.

Source: Zhao et al., Improving Neural Network Quantization without Retraining using Outlier
Channel Splitting, 2019 (clipping is the alternative that they compare with)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from trireme.quantiser.statistics import ValueStatistics
from trireme.support.dtypes import Array

_SHARE = 0.02
"""The most channels that may be outliers, one at least."""
_TIMES = 2.5
"""An outlier is so many times as large as the largest other channel."""


def outlier_cut(peaks: Array) -> float | None:
    """Return where to cut a range by the peaks of its channels; None where none is an outlier."""
    if peaks.size < 8:
        return None
    ordered = np.sort(peaks)
    for count in range(1, max(1, int(_SHARE * peaks.size)) + 1):
        if ordered[-count] > _TIMES * ordered[-count - 1] > 0:
            return float(ordered[-count - 1])
    return None


def outlier_cuts(peaks: Mapping[int, Array]) -> dict[int, float]:
    """Return where to cut the range of each value that has outlier channels."""
    return {value: cut for value, own in peaks.items() if (cut := outlier_cut(own)) is not None}


def clipped(
    statistics: Mapping[int, ValueStatistics], cuts: Mapping[int, float]
) -> dict[int, ValueStatistics]:
    """Return the statistics with the ends of ranges cut."""
    return {
        value: _clipped(one, cuts[value]) if value in cuts else one
        for value, one in statistics.items()
    }


def _clipped(one: ValueStatistics, cut: float) -> ValueStatistics:
    return replace(
        one,
        low=max(one.low, -cut),
        high=min(one.high, cut),
        lows=[max(low, -cut) for low in one.lows],
        highs=[min(high, cut) for high in one.highs],
    )
