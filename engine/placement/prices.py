"""Linear prices: a total that is a sum over nodes, launches and copies, and over streamed weights.

The serial time and the energy of a run are such totals. So is any weighted sum of the loads of the
resources. The makespan is at least every such sum whose weights add up to one. `bounds` proves a
bound by that, and searches start from the sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from trireme.placement.budget import memory_uses
from trireme.placement.makespan import copies_of
from trireme.placement.problem import Problem
from trireme.placement.stages import Tasks
from trireme.support.records import dataclass

INFINITE = float("inf")


@dataclass(frozen=True)
class Prices:
    """The prices of nodes, launches and copies.

    own[i][d]: of node i on device d, infinite where it cannot run
    launch[d]: of a task
    copy[s][t]: (a copy, each byte of it) between memory spaces
    """

    own: Sequence[Sequence[float]]
    launch: Sequence[float]
    copy: Sequence[Sequence[tuple[float, float]]]

    def copy_price(self, nbytes: int, source: int, target: int) -> float:
        """Return the price of one copy."""
        fixed, each = self.copy[source][target]
        return fixed + each * nbytes

    def total(self, problem: Problem, assigned: Sequence[int], tasks: Tasks) -> float:
        """Return the price of an assignment and its tasks."""
        total = sum([self.own[i][d] for i, d in enumerate(assigned)])
        total += sum([self.launch[device] for device, _ in tasks])
        if problem.may_stream:
            uses = memory_uses(problem, assigned, tasks)
            total += sum([use.streamed * self.copy[0][s][1] for s, use in enumerate(uses)])
        nbytes = problem.nbytes
        copies = copies_of(problem, assigned)
        return total + sum([self.copy_price(nbytes[v], s, t) for v, s, t in copies])


def time_prices(
    problem: Problem, groups: Sequence[float] | None = None, ways: Sequence[float] | None = None
) -> Prices:
    """Return the prices of time, each resource's weighted; all weights are 1 when not given.

    groups: a weight a resource group
    ways: a weight a way between spaces, at source * spaces + target
    """
    width = problem.spaces
    by_group = [1.0] * problem.groups if groups is None else groups
    by_way = [1.0] * (width * width) if ways is None else ways
    weight = [by_group[problem.group[d]] for d in problem.devices]
    own = [
        [INFINITE if s is None else s * w for s, w in zip(row, weight, strict=True)]
        for row in problem.seconds
    ]
    launch = [s * w for s, w in zip(problem.machine.launch_s, weight, strict=True)]
    copy = [
        [_scaled(problem.links[s][t], by_way[s * width + t]) for t in range(width)]
        for s in range(width)
    ]
    return Prices(own, launch, copy)


def _scaled(line: tuple[float, float], weight: float) -> tuple[float, float]:
    return line[0] * weight, line[1] * weight


def energy_prices(problem: Problem) -> Prices:
    """Return the prices in joules; a device without `power_w` counts as none."""
    machine, width = problem.machine, problem.spaces
    power = [watts or 0.0 for watts in machine.power_w]
    own = [
        [INFINITE if s is None else s * w for s, w in zip(row, power, strict=True)]
        for row in problem.seconds
    ]
    launch = [s * w for s, w in zip(machine.launch_s, power, strict=True)]
    rate = [machine.link_j_per_byte.get(space) or 0.0 for space in machine.spaces]
    copy = [
        [(0.0, 0.0 if s == t else rate[s] + rate[t]) for t in range(width)] for s in range(width)
    ]
    return Prices(own, launch, copy)
