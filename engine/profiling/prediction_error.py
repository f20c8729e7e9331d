"""Whether a run took what it was predicted to take; if not, by how much, where, and what helps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trireme.cost.model import Source
from trireme.support.units import time_text

TOLERANCE = 0.15
"""Of the prediction: what a measurement may be off before it is reported."""


@dataclass(frozen=True)
class PredictionError:
    """What one device, or the way between two memory spaces, took beside its prediction.

    worst: what was furthest off, as (label, predicted seconds, measured seconds)
    remedy: what to do about it
    """

    what: str
    predicted_s: float
    measured_s: float
    worst: tuple[tuple[str, float, float], ...]
    remedy: str

    @property
    def change(self) -> float:
        """How far the measurement is off, of the prediction."""
        return self.measured_s / self.predicted_s - 1 if self.predicted_s else float("inf")

    @property
    def is_reported(self) -> bool:
        """Whether it is more than is allowed."""
        return abs(self.change) > TOLERANCE

    def __str__(self) -> str:
        off = "; ".join(
            f"{label} {time_text(measured)} for {time_text(predicted)}"
            for label, predicted, measured in self.worst
        )
        return (
            f"{self.what} took {abs(self.change):.0%} {'more' if self.change > 0 else 'less'} than "
            f"predicted ({time_text(self.measured_s)} for {time_text(self.predicted_s)}), over "
            f"{TOLERANCE:.0%}: {self.remedy}" + (f"\n    furthest off: {off}" if off else "")
        )


def prediction_error_of(
    what: str,
    rows: Sequence[tuple[str, float, float]],
    totals: Sequence[tuple[float, float]],
    sources: Iterable[Source],
    command: str,
    moved: str = "",
) -> PredictionError:
    """Return the drift of a device or a way.

    rows: of its kernels, or of its copies: label, predicted and measured seconds
    totals: predicted and measured seconds of its tasks
    sources: where the estimates of its nodes came from; of a way, those at its ends
    command: the one that calibrates it
    moved: that its cores are no longer as far apart as they are priced to be, which says it all
    """
    worst = sorted(rows, key=lambda row: -abs(row[2] - row[1]))[:3]
    return PredictionError(
        what,
        sum(p for p, _ in totals),
        sum(m for _, m in totals),
        tuple(worst),
        moved or _remedy(list(sources), command),
    )


_WHY: Mapping[Source, str] = {
    "roofline": "it was never measured, and is priced by its description",
    "reference": "nodes run on the numpy reference, which is priced by order of magnitude",
    "device": "it is priced by its own model",
}


def _remedy(sources: Sequence[Source], command: str) -> str:
    """Return the sentence for the most common source that is not a measurement, or for drift."""
    rough = [source for source in sources if source != "calibration"]
    if 2 * len(rough) > len(sources):
        most = max(dict.fromkeys(rough), key=lambda source: rough.count(source))
        return f"{_WHY[most]}; measure it: {command}"
    return f"the machine is busy, or no longer what was measured; when it is quiet: {command}"
