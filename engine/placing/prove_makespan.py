"""The makespan as a model for the exact solver: the serial model's labels, with times.

Each stage is an interval on its resource group, each copy one on its way between memory spaces.
Small graphs are proven; for larger ones the model is a polisher that may better a placement. Copies
may take turns in any order here and in their tasks' order in `makespan`: the bound holds for both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trireme.placing.bounds import Forest, LoadBound, critical_s
from trireme.placing.contract import Contraction
from trireme.placing.makespan import makespan_s
from trireme.placing.prices import time_prices
from trireme.placing.problem import Assignment, Problem
from trireme.placing.proof import ROUNDING, Proof
from trireme.placing.prove_paths import relax_makespan
from trireme.placing.prove_stages import StageModel
from trireme.placing.stages import Tasks, rules

_UNITS = 1_000_000
"""Integer units of the known makespan. Durations are rounded down, so that the bound is one."""
_FEW_STAGES = 24
"""Labels, up to which a model has all that any placement may need: one a node and device."""
_WHOLE = 60
"""Nodes up to which chains stay as they are."""


def prove_makespan(
    problem: Problem, known: Assignment, limit_s: float = 60.0, workers: int = 1
) -> Proof:
    """Return the best makespan found and the bound proven, starting from a known assignment.

    The proof is of placements of at most as many stages as the model has; `stages` says. Chains of
    a large problem are contracted. That may cost a little, for resources may balance better where
    a chain is cut, so of those only the bound by paths is one.
    """
    begun = time.perf_counter()
    value = min(makespan_s(problem, known, tasks) for tasks in rules(problem, known))
    least = max(critical_s(problem), LoadBound(Forest(problem)).seconds)
    relaxed = relax_makespan(problem, value, limit_s / 3)
    least = min(value, max(least, relaxed.bound if relaxed is not None else 0.0))
    large = problem.n > _WHOLE
    contraction = Contraction(problem, time_prices(problem), 0.0 if large else -1.0)
    small, narrow = contraction.small, contraction.shrink(known)
    tasks = min(rules(small, narrow), key=lambda tasks: makespan_s(small, narrow, tasks))
    left_s = max(limit_s - (time.perf_counter() - begun), 0.1)
    proof = _MakespanModel(small, narrow, tasks, 0.0 if large else least).solve(left_s, workers)
    wide = [(d, sorted(i for j in mine for i in contraction.groups[j])) for d, mine in proof.tasks]
    proof = replace(
        proof, assigned=contraction.expand(proof.assigned), tasks=wide,
        seconds=time.perf_counter() - begun,
    )  # fmt: skip
    if large:
        near = least >= proof.value * (1 - ROUNDING)
        status = "optimal" if near else "feasible"
        proof = replace(proof, bound=least, everywhere=least, status=status)
    return proof


class _MakespanModel(StageModel):
    """The end of a run, `least` at least."""

    def __init__(self, problem: Problem, known: Assignment, tasks: Tasks, least: float) -> None:
        spare, all_there_are = 2 * problem.k, problem.n * problem.k
        if all_there_are <= _FEW_STAGES:
            spare = all_there_are
        super().__init__(problem, time_prices(problem), known, tasks, spare)
        value = makespan_s(problem, known, tasks)
        self.unit = value / _UNITS
        self.horizon = 2 * _UNITS
        self.least = least
        self.known_value = value
        self.end = self._time()
        self.model.add(self.end >= int(self.least / self.unit))
        self.model.add(self.end <= _UNITS + 1)
        self.lanes: dict[tuple[str, int], list[Any]] = {}
        self._stages()
        self.over = [self._over(i) for i in range(problem.n)]
        self._copies_in_time()
        for lane in self.lanes.values():
            self.model.add_no_overlap(lane)
        self.model.minimize(self.end)

    def _time(self) -> Any:
        return self.model.new_int_var(0, self.horizon, "")

    def _units(self, seconds: float) -> int:
        return int(seconds / self.unit)

    def _stages(self) -> None:
        """Give each stage a start and an end; stages of one resource group take turns."""
        problem, model = self.problem, self.model
        self.starts, self.ends = [], []
        for r, used in enumerate(self.used):
            d = r % problem.k
            start, end, size = self._time(), self._time(), self._time()
            work = self._units(problem.machine.launch_s[d]) * used
            for i, row in enumerate(self.at):
                if d in problem.able[i]:
                    work += self._units(problem.own_s(i, d)) * row[r]
            model.add(size == work)
            lane = self.lanes.setdefault(("group", problem.group[d]), [])
            lane.append(model.new_optional_interval_var(start, size, end, used, ""))
            model.add(self.end >= end).only_enforce_if(used)
            self.starts.append(start)
            self.ends.append(end)

    def _over(self, i: int) -> Any:
        """Return when a node's stage is over."""
        over = self._time()
        for r, here in enumerate(self.at[i]):
            self.model.add(over == self.ends[r]).only_enforce_if(here)
        return over

    def _after(self, i: int, when: Any, *conditions: Any) -> None:
        """Make node i's stage start after a time, where the conditions hold."""
        for r, here in enumerate(self.at[i]):
            self.model.add(self.starts[r] >= when).only_enforce_if(here, *conditions)

    def _copies_in_time(self) -> None:
        problem = self.problem
        done: dict[tuple[int, int, int], Any] = {}
        for (value, maker, way), copied in self.copied.items():
            start, end = self._time(), self._time()
            size = self._units(problem.copy_s(value, *way))
            lane = self.lanes.setdefault(("way", way[0] * problem.spaces + way[1]), [])
            lane.append(self.model.new_optional_interval_var(start, size, end, copied, ""))
            if maker >= 0:
                self.model.add(start >= self.over[maker]).only_enforce_if(copied)
            self.model.add(self.end >= end).only_enforce_if(copied)
            done[value, way[0], way[1]] = end
        for (value, reader), ways in self.edges.items():
            for (s, t), taken in ways.items():
                if reader >= 0:
                    self._after(reader, done[value, s, t], taken)
        for i, earlier in enumerate(problem.before):
            for j in earlier:
                for r, here in enumerate(self.at[i]):
                    apart = (here, self.at[j][r].negated())
                    self.model.add(self.starts[r] >= self.over[j]).only_enforce_if(*apart)

    def finish(self, run: Any, label: Sequence[int], solved: bool) -> tuple[float, Tasks, float]:
        """Return the makespan of the solver's labels, the tasks in time's order, and the bound."""
        tasks = self.tasks_of(label)
        if solved:
            starts = {r: run.value(self.starts[r]) for r in set(label)}
            order = sorted(set(label), key=lambda r: (starts[r], r))
            by_stage = dict(zip(sorted(set(label)), tasks, strict=True))
            tasks = [by_stage[r] for r in order]
        assigned = [r % self.problem.k for r in label]
        value = makespan_s(self.problem, assigned, tasks)
        if value > self.known_value:
            tasks = self.tasks_of(self.known_labels)
            value = self.known_value
        return value, tasks, max(run.best_objective_bound * self.unit, self.least)
