"""The score of a placement by an objective: its value, a lower bound, and the parts of the gap."""

from __future__ import annotations

from trireme.support.records import dataclass
from trireme.support.units import energy_text, time_text

SAME = 1e-9
"""A share by which two sums of the same seconds may differ."""


@dataclass(frozen=True)
class Score:
    """The score of a placement: its value, and a lower bound of all placements."""

    objective: str
    unit: str
    value: float
    lower_bound: float
    bound_from: str = ""

    @property
    def gap(self) -> float:
        """The value above the lower bound, as a share: 0.0 is proven optimal."""
        gap = self.value / self.lower_bound - 1 if self.lower_bound else 0.0
        return 0.0 if abs(gap) < SAME else gap

    def text(self, value: float) -> str:
        """Return a value of this objective with its unit."""
        return time_text(value) if self.unit == "s" else energy_text(value)

    def change(self, by: float) -> str:
        """Return how much more or less a value of this objective is: "48.0 us more"."""
        return f"{self.text(abs(by))} {'more' if by >= 0 else 'less'}"

    def __str__(self) -> str:
        origin = f", from {self.bound_from}" if self.bound_from else ""
        return (
            f"{self.objective} {self.text(self.value)}, "
            f"lower bound {self.text(self.lower_bound)} (gap {self.gap:.1%}{origin})"
        )


@dataclass(frozen=True)
class Gap:
    """The distance of a placement's score from the best possible, by its causes.

    Each is a share of the lower bound; the bound is that of placements with these pins.
    search: how far the best placement found may be above the best possible; 0.0 is proven optimal
    declined: what declining that placement cost, because its gain is smaller than the uncertainty
        of the estimates
    pins: what the pins cost: the best placement found with them, above the one found without
    """

    search: float
    declined: float
    pins: float

    def __str__(self) -> str:
        return (
            f"gap: {self.search:.1%} left by the search, {self.declined:.1%} for declining an "
            f"uncertain gain, {self.pins:.1%} for pins"
        )
