"""One stage label a node, as a model for the exact solver.

Labels never fall along an edge, and stage r belongs to device r modulo the number of devices. So
every set of nodes of one stage is a convex region, and no cycle of tasks can come about. Costs are
the nodes', a launch for each stage that is used, and a copy for each value and memory space that
reads it.
Source: CP-SAT of OR-Tools
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trireme.placement.bounds import Forest
from trireme.placement.prices import INFINITE, Prices
from trireme.placement.problem import Assignment, Problem
from trireme.placement.proof import ROUNDING, Proof, cp_run, solver
from trireme.placement.stages import Tasks

_UNITS = 20_000_000
"""Integer units of the known price; what is rounded off a term is added back to the bound's gap."""
_MOST_STAGES = 60


def launches_beyond(launch: Sequence[float], stages: int) -> float:
    """Return the least launches of any row of tasks that needs more labels than `stages`.

    A task takes its device's next turn, at most a round of turns after the one before it.
    """
    k = len(launch)
    least: list[float] = []
    for r in range(stages + k):
        before = least[max(r - k + 1, 0) : r] + ([0.0] if r < k else [])
        least.append(launch[r % k] + min(before, default=0.0))
    return min(least[stages:])


class SerialModel:
    """The sum of nodes, launches and copies, `least` at least: one label a node, in order encoding.

    There are as many stages as may pay, so that the bound is of every placement.
    """

    def __init__(
        self, problem: Problem, prices: Prices, known: Assignment, tasks: Tasks, least: float
    ) -> None:
        self.cp = solver()
        self.problem, self.prices, self.least = problem, prices, least
        self.known_labels = _labels(problem, tasks)
        self.known_value = prices.total(problem, known, tasks)
        self.idle = Forest(problem).solve(replace(prices, launch=[0.0] * problem.k))[0]
        self.stages = max(self.known_labels, default=0) + 1
        while self.stages < _MOST_STAGES and self._beyond() < self.known_value:
            self.stages += 1
        self.scale = _UNITS / max(self.known_value, 1e-30)
        self.model = self.cp.CpModel()
        self.cost: list[Any] = []
        self.at = [[self._bool() for _ in range(self.stages)] for _ in range(problem.n)]
        self.upto: list[list[Any]] = []
        self.used: list[Any] = []
        self._nodes()
        self._launches()
        self.on = [[sum(row[d :: problem.k]) for d in problem.devices] for row in self.at]
        self._copies()
        self.model.minimize(sum(self.cost))
        self.model.add(sum(self.cost) >= int(self.least * self.scale) - 10 * len(self.cost))

    def _beyond(self) -> float:
        """Return what a placement of more stages costs at least."""
        return self.idle + launches_beyond(self.prices.launch, self.stages)

    def _bool(self) -> Any:
        return self.model.new_bool_var("")

    def _charge(self, price: float, variable: Any) -> None:
        units = int(price * self.scale)
        if units:
            self.cost.append(units * variable)

    def _nodes(self) -> None:
        """Give each node one stage of a device that can run it, no earlier than what it follows."""
        k, model = self.problem.k, self.model
        for i, row in enumerate(self.at):
            upto = [self._bool() for _ in range(self.stages)]
            model.add(upto[-1] == 1)
            for r in range(self.stages):
                own = self.prices.own[i][r % k]
                if own == INFINITE:
                    model.add(row[r] == 0)
                else:
                    self._charge(own, row[r])
                below = upto[r - 1] if r else 0
                model.add(upto[r] == below + row[r])
            self.upto.append(upto)
            for j in self.problem.before[i]:
                for r in range(self.stages - 1):
                    model.add_implication(upto[r], self.upto[j][r])
            for r, variable in enumerate(row):
                model.add_hint(variable, r == self.known_labels[i])

    def _launches(self) -> None:
        for r in range(self.stages):
            used = self._bool()
            self._charge(self.prices.launch[r % self.problem.k], used)
            self.used.append(used)
            for row in self.at:
                self.model.add_implication(row[r], used)
            self.model.add_bool_or([row[r] for row in self.at]).only_enforce_if(used)

    def _copies(self) -> None:
        """Charge a copy for each value and space that it goes to.

        Each edge says from which space to which it goes, so that the relaxation is tight.
        """
        for value, maker, readers in self.problem.values():
            sources, nbytes = self._spaces(maker), self.problem.nbytes[value]
            ways = [self._ways(sources, self._spaces(reader)) for reader in readers]
            for way in sorted({way for edge in ways for way in edge}):
                copied = self._bool()
                self._charge(self.prices.copy_price(nbytes, *way), copied)
                for edge in ways:
                    if way in edge:
                        self.model.add(copied >= edge[way])

    def _spaces(self, i: int) -> dict[int, Any]:
        """Return, for each space a node can be in, whether it is; the caller is the host's."""
        if i < 0:
            return {0: 1}
        spaces: dict[int, Any] = {}
        for d in self.problem.able[i]:
            space = self.problem.space[d]
            spaces[space] = spaces.get(space, 0) + self.on[i][d]
        return spaces

    def _ways(
        self, sources: Mapping[int, Any], targets: Mapping[int, Any]
    ) -> dict[tuple[int, int], Any]:
        """Return, for each way between spaces that an edge may take, whether it does."""
        flow = {(s, t): self._bool() for s in sources for t in targets}
        for s, here in sources.items():
            self.model.add(sum(flow[s, t] for t in targets) == here)
        for t, there in targets.items():
            self.model.add(sum(flow[s, t] for s in sources) == there)
        return {way: taken for way, taken in flow.items() if way[0] != way[1]}

    def solve(self, limit_s: float, workers: int) -> Proof:
        """Return what the solver proves within the limit."""
        run = cp_run(limit_s, workers)
        solved = run.solve(self.model) in (self.cp.OPTIMAL, self.cp.FEASIBLE)
        value, label = self.known_value, self.known_labels
        if solved:
            found = [next(r for r, one in enumerate(row) if run.value(one)) for row in self.at]
            value, label = min((value, label), (self._price(found), found))
        bound = min(run.best_objective_bound / self.scale, self._beyond())
        bound = min(max(bound, self.least), value)
        status = "optimal" if bound >= value * (1 - ROUNDING) else "feasible"
        assigned = tuple(r % self.problem.k for r in label)
        return Proof(status, value, bound, assigned, self.tasks_of(label), run.wall_time)

    def _price(self, label: Sequence[int]) -> float:
        assigned = [r % self.problem.k for r in label]
        return self.prices.total(self.problem, assigned, self.tasks_of(label))

    def tasks_of(self, label: Sequence[int]) -> Tasks:
        """Return the tasks of some labels, in their order."""
        found: dict[int, list[int]] = {}
        for i, r in enumerate(label):
            found.setdefault(r, []).append(i)
        return [(r % self.problem.k, found[r]) for r in sorted(found)]


def _labels(problem: Problem, tasks: Tasks) -> list[int]:
    """Return the stage of each node: each task at its device's next turn after the one before."""
    labels, stage = [0] * problem.n, -1
    for device, members in tasks:
        stage += 1
        stage += (device - stage) % problem.k
        for i in members:
            labels[i] = stage
    return labels
