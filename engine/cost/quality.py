"""Decide which measured figures are good enough to price with.

`calibrate` judges every figure that it fits. A figure is not used with too few samples, outside
physical limits, or with too large a residual. The device's description then prices it, and the
calibration says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from trireme.support.records import dataclass
from trireme.support.units import rate_text, time_text

Verdict = Literal["used", "too few samples", "outside physical limits", "residual too large"]
Quantity = Literal[
    "launch", "issue", "kernels", "reference", "copy latency", "copy bandwidth", "overlap"
]


@dataclass(frozen=True)
class FigureLimits:
    """The requirements on a figure.

    samples: the fewest measurements
    low, high: limits of the value, in `unit`
    error: the largest median error of the fit, relative to the measurement
    """

    samples: int
    low: float
    high: float
    unit: str
    error: float = 0.5


LIMITS: Mapping[Quantity, FigureLimits] = {
    # A driver that takes more than 2 ms to launch a task was disturbed: slow ones take 50 us.
    "launch": FigureLimits(3, 0.0, 2e-3, "s"),
    "issue": FigureLimits(1, 0.0, 1e-3, "s"),
    # The fixed seconds of a kernel.
    "kernels": FigureLimits(3, 0.0, 2e-3, "s"),
    # Ops of one family differ in speed; the interval covers the difference.
    "reference": FigureLimits(3, 0.0, 1e-2, "s", error=1.0),
    "copy latency": FigureLimits(3, 0.0, 5e-3, "s"),
    # No bus and no memory of one socket is faster; a fit without large copies gives 1,000 GB/s.
    "copy bandwidth": FigureLimits(3, 1e6, 4e11, "B/s"),
    # Two devices at once cannot take less than half of one after the other.
    "overlap": FigureLimits(1, 0.45, 2.5, ""),
}


FAR_OFF = 30.0
"""A launch above this many times the description's was disturbed by other work."""


@dataclass(frozen=True)
class Judgement:
    """The verdict on one measured figure.

    figure: its kind and owner: "launch", "copy bandwidth to opencl", "kernels gemm/float32"
    value: as measured, in `unit`
    samples: the number of measurements
    error: median relative error of the fit
    low, high: the limits of the value
    """

    figure: str
    value: float
    unit: str
    samples: int
    error: float
    verdict: Verdict

    @property
    def used(self) -> bool:
        """Whether estimates use the figure; otherwise they use the description."""
        return self.verdict == "used"

    def __str__(self) -> str:
        what = f"{self.figure}: measured {_text(self.value, self.unit)}"
        sure = f"{self.samples} samples, median error {self.error:.0%}"
        if self.used:
            return f"{what} ({sure})"
        return f"{what} is not used, {self.verdict} ({sure}): the description's figure is kept"


def judge(
    quantity: Quantity,
    value: float,
    samples: int,
    error: float = 0.0,
    of: str = "",
    described: float = math.inf,
) -> Judgement:
    """Return the verdict on a figure.

    of: the owner of the figure: a family of kernels or a device
    described: the description's figure; a value above FAR_OFF times it was disturbed
    """
    limits = LIMITS[quantity]
    high = min(limits.high, FAR_OFF * described)
    verdict: Verdict = "used"
    if samples < limits.samples:
        verdict = "too few samples"
    elif not limits.low <= value <= high:
        verdict = "outside physical limits"
    elif not error <= limits.error:
        verdict = "residual too large"
    return Judgement(f"{quantity} {of}".strip(), value, limits.unit, samples, error, verdict)


def _text(value: float, unit: str) -> str:
    """Return a value with a unit that a person reads."""
    if unit == "s":
        return time_text(value) if math.isfinite(value) else "no time"
    return rate_text(value, "B/s") if unit == "B/s" else f"{value:.0%}"
