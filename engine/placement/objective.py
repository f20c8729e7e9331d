"""Score an assignment by the objective of a placement.

* makespan: seconds of one run in virtual time, copies and devices overlapping
* serial: seconds of a run that does one thing at a time
* throughput: seconds a run when runs are pipelined, the busiest resource's
* energy: joules of a run, from the devices' descriptions
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from trireme.backend.arena import MemoryUse
from trireme.placement.budget import memory_uses
from trireme.placement.makespan import loads_s, makespan_s
from trireme.placement.prices import energy_prices, time_prices
from trireme.placement.problem import Assignment, Machine, Problem
from trireme.placement.stages import (
    Tasks,
    asap,
    critical_path_first,
    device_major,
    device_orders,
    rules,
)
from trireme.support.errors import PlacementError

Objective = Literal["makespan", "serial", "throughput", "energy"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
MultiDevice = Literal["significant", "any"]
"""Which placements on several devices are taken: those that gain more over one device than the
estimates may be wrong by, or all that are predicted to gain."""
UNIT = {"makespan": "s", "serial": "s", "throughput": "s", "energy": "J"}
LINEAR = ("serial", "energy")
"""Objectives that sum over nodes, launches and copies."""


class Scorer:
    """Scores assignments of one problem, the tasks made by the rule that suits each best.

    What does not fit a device's memory scores as infinite, but less so the nearer it comes, so that
    a search finds its way; `overfull` tells the two apart. With `smooth`, the throughput's greatest
    load is rounded off, so that a move that lowers another load counts as well.

    tight: whether any memory is smaller than all values, weights and code together, so that
        something may not fit
    """

    def __init__(self, problem: Problem, objective: Objective, smooth: bool = False) -> None:
        self.problem, self.objective, self.smooth = problem, objective, smooth
        self.orders = device_orders(problem)
        self.prices = energy_prices(problem) if objective == "energy" else time_prices(problem)
        spaces = problem.machine.spaces
        self.limits = [problem.machine.budget.get(space, 0) for space in spaces]
        self.tight = any(0 < limit < problem.most_bytes for limit in self.limits)
        self.seen: dict[Assignment, float] = {}
        self.visits = 0

    def estimate(self, assigned: Assignment) -> float:
        """Return the score by the rules that matter most, remembered."""
        if assigned not in self.seen:
            self.visits += self.problem.n
            problem = self.problem
            scores = [self.score(assigned, asap(problem, assigned))]
            if problem.k > 1:
                scores.append(self.score(assigned, device_major(problem, assigned, self.orders[0])))
                if self.objective == "makespan":
                    scores.append(self.score(assigned, critical_path_first(problem, assigned)))
            self.seen[assigned] = min(scores)
        return self.seen[assigned]

    def evaluate(self, assigned: Assignment) -> tuple[float, Tasks]:
        """Return the score by the best of all rules, and the tasks; a function of its argument."""
        best, kept = float("inf"), asap(self.problem, assigned)
        for tasks in rules(self.problem, assigned, self.orders, self.prices.launch):
            score = self.score(assigned, tasks)
            if score < best:
                best, kept = score, tasks
        return best, kept

    def score(
        self,
        assigned: Sequence[int],
        tasks: Tasks,
        most: float = math.inf,
        tails: Sequence[Sequence[float]] = (),
    ) -> float:
        """Return the value of these tasks, and far more if they do not fit.

        most, tails: when a makespan need not be known any further (`makespan_s`)
        """
        value = self.value(assigned, tasks, most, tails)
        if self.tight and value <= most:
            value += 1e6 * self.excess(assigned, tasks)
        return value

    def value(
        self,
        assigned: Sequence[int],
        tasks: Tasks,
        most: float = math.inf,
        tails: Sequence[Sequence[float]] = (),
    ) -> float:
        """Return what the objective says of these tasks."""
        if self.objective == "makespan":
            return makespan_s(self.problem, assigned, tasks, most, tails)
        if self.objective == "throughput":
            loads = loads_s(self.problem, assigned, tasks)
            if self.smooth:
                return float(sum(load**8 for load in loads) ** 0.125)
            return max(loads, default=0.0)
        return self.prices.total(self.problem, assigned, tasks)

    def excess(self, assigned: Sequence[int], tasks: Tasks) -> float:
        """Return by what share of its memory a device would be overfull; 0.0 if all fits."""
        uses = memory_uses(self.problem, assigned, tasks)
        return sum(use.excess / use.limit for use in uses if use.excess)

    def overfull(self, assigned: Sequence[int], tasks: Tasks) -> list[MemoryUse]:
        """Return what is needed of each memory that does not suffice."""
        if not any(self.limits):
            return []
        uses = memory_uses(self.problem, assigned, tasks, packed=True)
        return [use for use in uses if use.excess]


def check_objective(machine: Machine, objective: str) -> None:
    """Raise PlacementError if the objective is none, or the machine does not say what it needs."""
    if objective not in OBJECTIVES:
        raise PlacementError(
            f"unknown objective {objective!r}", facts=[f"known: {', '.join(OBJECTIVES)}"]
        )
    unknown = [n for n, w in zip(machine.names, machine.power_w, strict=True) if w is None]
    if objective == "energy" and unknown:
        raise PlacementError(
            f"the energy of a run needs the power of {', '.join(unknown)}",
            fix="give power_w in the device's description",
        )
