"""Predicted seconds with their source and interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from trireme.support.records import dataclass

Source = Literal["calibration", "device", "roofline", "reference", "assumed", "function"]

SPREAD: Mapping[Source, tuple[float, float]] = {
    "calibration": (0.8, 1.25),
    "device": (1.0, 1.0),
    "roofline": (0.3, 3.0),
    "reference": (0.1, 10.0),
    "assumed": (0.1, 10.0),
    "function": (0.1, 10.0),
}
"""Interval factors of estimates without a measurement, by source."""


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds of a node's own work, without launch and copies.

    low_s, high_s: the interval; by default the source's factors
    """

    seconds: float
    source: Source
    low_s: float = -1.0
    high_s: float = -1.0

    def __post_init__(self) -> None:
        low, high = SPREAD[self.source]
        if self.low_s < 0:
            object.__setattr__(self, "low_s", self.seconds * low)
        if self.high_s < 0:
            object.__setattr__(self, "high_s", self.seconds * high)


_SHARED = 0.3
"""The share of a relative error that kernels have in common (a phase of the machine, say). This
share adds up over the nodes of a region; the rest averages out."""


def interval(estimates: Iterable[Estimate], plus_s: float = 0.0) -> tuple[float, float]:
    """Return the low and high seconds of several nodes one after another, and of plus_s more."""
    rows = list(estimates)
    total = plus_s + sum(one.seconds for one in rows)
    ends = []
    for sign, away in (
        (-1, [one.seconds - one.low_s for one in rows]),
        (1, [one.high_s - one.seconds for one in rows]),
    ):
        apart = math.sqrt(sum(each * each for each in away))
        ends.append(total + sign * (_SHARED * sum(away) + (1 - _SHARED) * apart))
    return max(ends[0], 0.0), ends[1]


_SOURCE_TEXTS: Mapping[Source, str] = {
    "device": "the device's own model",
    "roofline": "the description",
    "reference": "the numpy reference's price",
    "assumed": "an assumed number of turns",
    "function": "the cost rules of Python functions",
}


def sources_text(sources: Mapping[Source, float]) -> list[str]:
    """Return what the predicted time is made of, in a line; none where nothing runs here."""
    if not sources:
        return []
    measured = sources.get("calibration", 0.0)
    others = {source: share for source, share in sources.items() if source != "calibration"}
    rows = [f", {share:.0%} from {_SOURCE_TEXTS[source]}" for source, share in others.items()]
    return [f"  {measured:.0%} of the predicted time is from measured kernels{''.join(rows)}"]
