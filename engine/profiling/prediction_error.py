"""Prediction errors: how far a run is from its prediction, where, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trireme.cost.estimate import Source
from trireme.cost.model import ASSUMED_TURNS
from trireme.support.records import dataclass
from trireme.support.units import time_text

TOLERANCE = 0.15
"""The largest relative error that is not reported."""


@dataclass(frozen=True)
class PredictionError:
    """The prediction and the measurement of one device, or of one link between memory spaces.

    worst: the largest errors, as (label, predicted seconds, measured seconds)
    remedy: the advice to the user
    """

    what: str
    predicted_s: float
    measured_s: float
    worst: tuple[tuple[str, float, float], ...]
    remedy: str

    @property
    def change(self) -> float:
        """The relative error: measured / predicted - 1."""
        return self.measured_s / self.predicted_s - 1 if self.predicted_s else float("inf")

    @property
    def is_reported(self) -> bool:
        """Whether the error exceeds TOLERANCE."""
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
    """Return the prediction error of a device or a link.

    rows: of its kernels, or of its copies: label, predicted and measured seconds
    totals: predicted and measured seconds of its tasks
    sources: the sources of its nodes' estimates; for a link, those of the nodes at its ends
    command: the command that calibrates the device
    moved: a sentence that its cores are closer or further apart than the calibration assumes; "" if
        not
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
    "roofline": "it was never measured, and is priced by estimates",
    "reference": "nodes run on the numpy reference, which is priced by order of magnitude",
    "device": "it is priced by its own model",
    "function": "a Python function is priced by its cost rule until it has run in this process",
}


def _remedy(sources: Sequence[Source], command: str) -> str:
    """Return the sentence on the most common source but calibration, else on a busy machine."""
    rough = [source for source in sources if source != "calibration"]
    if 2 * len(rough) > len(sources):
        most = max(dict.fromkeys(rough), key=lambda source: rough.count(source))
        if most == "assumed":
            return f"a loop is priced for {ASSUMED_TURNS} turns, since only a run knows how many"
        if most == "function":
            return f"{_WHY[most]}; a session that is opened after this run knows it"
        return f"{_WHY[most]}; measure it: {command}"
    return f"the machine is busy, or no longer what was measured; when it is quiet: {command}"
