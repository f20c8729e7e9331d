"""A lock against the placement of today: the report and verdict of `trireme place --check`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.placement.lock import Lock
from trireme.placement.lock_changes import differences, remarks
from trireme.placement.objective import Objective
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.support.errors import PlacementError


@dataclass(frozen=True)
class LockCheck:
    """The result of a check of a lock: differences, remarks, and the cost of holding the lock.

    excess: how far the locked placement, held today, is above today's placement, as a share;
        infinite where it cannot be held
    drifted: how far it is above what was predicted when it was locked, as a share
    """

    differences: list[str]
    remarks: list[str]
    excess: float
    drifted: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the placement is the same, or the lock is within the tolerance."""
        if not self.tolerance:
            return not self.differences
        return max(self.excess, self.drifted) <= self.tolerance

    def lines(self, path: str) -> list[str]:
        """Return the report."""
        head = "the placement is the same"
        if self.differences:
            head = f"{len(self.differences)} differences"
        found = [f"{path}: {head}", *(f"  {line}" for line in self.differences)]
        if self.tolerance:
            held = "the locked placement cannot be held today"
            if self.excess < math.inf:
                held = (
                    f"the locked placement is predicted {self.excess:+.1%} against today's "
                    f"placement and {self.drifted:+.1%} against its prediction in the lockfile"
                )
            verdict = "within" if self.passed else "not within"
            found.append(f"  {held}: {verdict} the tolerance of {self.tolerance:.1%}")
        return [*found, *(f"  note: {line}" for line in self.remarks)]


def check_lock(
    graph: Graph,
    costs: CostModel,
    objective: Objective,
    before: Lock,
    now: Lock,
    tolerance: float = 0.0,
    absent: Mapping[str, str] | None = None,
) -> LockCheck:
    """Compare a lock with the placement of today; with a tolerance, price it as held today.

    absent: why locked devices are not there
    """
    excess = drifted = math.inf if tolerance else 0.0
    if tolerance:
        with suppress(PlacementError):
            fixed = PlacementOptions(objective=objective, fixed=before)
            held = place(graph, costs, fixed).score.value
            excess, drifted = _share(held, now.predicted), _share(held, before.predicted)
    return LockCheck(
        differences(before, now, absent), remarks(before, now), excess, drifted, tolerance
    )


def _share(value: float, of: float) -> float:
    """Return by which share a value is above another."""
    return value / of - 1 if of else 0.0
