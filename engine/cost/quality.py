"""Decide which measured figures are good enough to price with.

`calibrate` asks for every figure that it fitted. A figure with too few samples, outside physical
limits or with too large a residual is not used: the device's description prices it, and the
calibration says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trireme.support.units import rate_text, time_text

Verdict = Literal["used", "too few samples", "outside physical limits", "residual too large"]
Quantity = Literal[
    "launch", "issue", "kernels", "reference", "copy latency", "copy bandwidth", "overlap"
]


@dataclass(frozen=True)
class Limits:
    """What a figure needs to be used.

    samples: the fewest measurements; low, high: of its value, in `unit`
    error: the largest median error of the fit, relative to what was measured
    """

    samples: int
    low: float
    high: float
    unit: str
    error: float = 0.5


LIMITS: Mapping[Quantity, Limits] = {
    # A driver that takes more than 2 ms to launch a task was disturbed: slow ones take 50 us.
    "launch": Limits(3, 0.0, 2e-3, "s"),
    "issue": Limits(1, 0.0, 1e-3, "s"),
    # Seconds of a kernel of no work.
    "kernels": Limits(3, 0.0, 2e-3, "s"),
    # Curves of a family are of ops that differ: their interval says by how much.
    "reference": Limits(3, 0.0, 1e-2, "s", error=1.0),
    "copy latency": Limits(3, 0.0, 5e-3, "s"),
    # No bus and no memory of one socket is faster; a fit that sees no bytes says 1,000 GB/s.
    "copy bandwidth": Limits(3, 1e6, 4e11, "B/s"),
    # Two devices at once cannot take less than half of one after the other.
    "overlap": Limits(1, 0.45, 2.5, ""),
}


FAR_OFF = 30.0
"""A launch that takes this many times what the description says was measured while others ran."""


@dataclass(frozen=True)
class Judgement:
    """What became of one measured figure.

    figure: what it is, and of what: "launch", "copy bandwidth to opencl", "kernels gemm/float32"
    value: as measured, in `unit`; samples: measurements behind it
    error: median error of its fit, relative; low, high: the limits of the value
    """

    figure: str
    value: float
    unit: str
    samples: int
    error: float
    verdict: Verdict

    @property
    def used(self) -> bool:
        """Whether estimates are priced by the figure; by the description otherwise."""
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

    of: what the figure belongs to: a family of kernels or a device
    described: the description's figure; what is more than FAR_OFF times as large was disturbed
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
    """Return a value as people read it."""
    if unit == "s":
        return time_text(value) if math.isfinite(value) else "no time"
    return rate_text(value, "B/s") if unit == "B/s" else f"{value:.0%}"
