"""Placements as a model for the exact solver: who leads each node's task, and the order of tasks.

A task is known by its first node in graph order, its leader: every placement has one way to say who
leads whom, and no order of tasks has to be chosen but where they share a resource. A node takes its
leader's start and end. That keeps tasks convex, for what leaves a task and comes back would start
before it ends. `exact_makespan` adds time to this model, `exact_price` what everything costs.
Source: CP-SAT of OR-Tools
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trireme.placement.problem import CALLER, Assignment, Problem
from trireme.placement.proof import ROUNDING, Proof, cp_run, solver
from trireme.placement.stages import Tasks

PAIRS = 20_000
"""The most (node, leader, device) of a model of all placements."""
Reads = list[tuple[int, Any]]
"""(reader, whether it is in the space) of a value in one memory space."""


class TaskModel(ABC):
    """The common part of every model: `goal` is minimised, and is `least` at least.

    whole: whether every placement is in the model. Where there are more than PAIRS, a node's leader
        is near it, or one that it or its neighbours have, and nothing is proven.
    on[i][d]: whether node i is on device d
    led[i][j, d]: whether node j leads node i's task, on device d
    start, end: of each node's task
    """

    def __init__(
        self,
        problem: Problem,
        known: Assignment,
        tasks: Tasks,
        least: float,
        scale: float,
        horizon: int,
    ) -> None:
        self.cp = solver()
        self.problem, self.known, self.tasks, self.least = problem, known, tasks, least
        self.value, self.horizon = self.value_of(known, tasks), horizon
        self.unit = max(self.value, 1e-30) / scale
        self.model = self.cp.CpModel()
        self.leaders, self.whole = self._leaders()
        self.goal = self.model.new_int_var(int(least / self.unit), int(scale), "")
        nodes = range(problem.n)
        self.on = [{d: self.truth() for d in able} for able in problem.able]
        self.start, self.end = [self.time() for _ in nodes], [self.time() for _ in nodes]
        self.led = [self._led(i) for i in nodes]
        for leader in nodes:
            for d, leads in [(d, who) for (j, d), who in self.led[leader].items() if j == leader]:
                rows = enumerate(self.led)
                members = [(i, row[leader, d]) for i, row in rows if (leader, d) in row]
                for i, here in members:
                    if i != leader:
                        self.model.add_implication(here, leads)
                self.add_task(leader, d, leads, members)
        for i in nodes:
            for j in problem.before[i]:
                self._edge(j, i)
        self.spaces = [self._spaces(i) for i in nodes]

    @abstractmethod
    def value_of(self, assigned: Sequence[int], tasks: Tasks) -> float:
        """Return what the tasks of an assignment come to."""

    @abstractmethod
    def add_task(
        self, leader: int, device: int, leads: Any, members: Sequence[tuple[int, Any]]
    ) -> None:
        """Add the task that a node may lead on a device; members: (node, whether it is in it)."""

    @abstractmethod
    def add_copy(
        self, value: int, maker: int, made: Mapping[int, Any], space: int, reads: Reads
    ) -> None:
        """Copy a value to a space, if it is made elsewhere, for those who read it there."""

    def truth(self) -> Any:
        """Return a new truth value."""
        return self.model.new_bool_var("")

    def time(self) -> Any:
        """Return a new point in time."""
        return self.model.new_int_var(0, self.horizon, "")

    def units(self, amount: float) -> int:
        """Return an amount in whole units, rounded down, so that a bound is one."""
        return int(amount / self.unit)

    def _leaders(self) -> tuple[list[list[int]], bool]:
        """Return who may lead each node, and whether that is everyone."""
        n, before, after = self.problem.n, self.problem.before, self.problem.next
        if n * (n + 1) // 2 * self.problem.k <= PAIRS:
            return [list(range(i + 1)) for i in range(n)], True
        reach = PAIRS // (n * self.problem.k)
        leader = [0] * n
        for _, members in self.tasks:
            for i in members:
                leader[i] = min(members)
        return [
            sorted(
                {
                    *range(max(i - reach, 0), i + 1),
                    *(leader[j] for j in (i, *before[i], *after[i]) if leader[j] <= i),
                }
            )
            for i in range(n)
        ], False

    def _led(self, i: int) -> dict[tuple[int, int], Any]:
        """Give node i one leader on its device; who leads it has its start and end."""
        led: dict[tuple[int, int], Any] = {}
        for d, here in self.on[i].items():
            for j in self.leaders[i]:
                if d in self.on[j]:
                    led[j, d] = self.truth()
            mine = [who for (_, e), who in led.items() if e == d]
            self.model.add_exactly_one([*mine, here.negated()])
        self.model.add_exactly_one(list(self.on[i].values()))
        for (j, _), who in led.items():
            if j != i:
                self.model.add(self.start[i] == self.start[j]).only_enforce_if(who)
                self.model.add(self.end[i] == self.end[j]).only_enforce_if(who)
        return led

    def _edge(self, j: int, i: int) -> None:
        """Run node i after node j: in one task, or in one that starts when j's has ended."""
        model, apart = self.model, self.truth()
        model.add(self.start[i] >= self.end[j]).only_enforce_if(apart)
        model.add(self.start[i] == self.start[j]).only_enforce_if(apart.negated())
        rows: list[tuple[Mapping[Any, Any], Mapping[Any, Any]]] = [
            (self.on[i], self.on[j]),
            (self.led[i], self.led[j]),
        ]
        for mine, theirs in rows:
            for one, two in ((mine, theirs), (theirs, mine)):
                for key, who in one.items():
                    also = [two[key]] if key in two else []
                    model.add_bool_or([who.negated(), apart, *also])

    def _spaces(self, i: int) -> dict[int, Any]:
        """Return, for each space a node can be in, whether it is."""
        found: dict[int, list[Any]] = {}
        for d, here in self.on[i].items():
            found.setdefault(self.problem.space[d], []).append(here)
        spaces = {}
        for space, ways in found.items():
            spaces[space] = ways[0] if len(ways) == 1 else self.truth()
            if len(ways) > 1:
                self.model.add(spaces[space] == sum(ways))
        return spaces

    def add_copies(self) -> None:
        """Copy each value to each space where it is read and not made."""
        always = {0: self.model.new_constant(1)}
        for value, maker, readers in self.problem.values():
            made = always if maker == CALLER else self.spaces[maker]
            reading: dict[int, Reads] = {}
            for reader in readers:
                for space, there in (always if reader == CALLER else self.spaces[reader]).items():
                    reading.setdefault(space, []).append((reader, there))
            for space, reads in reading.items():
                self.add_copy(value, maker, made, space, reads)

    def copied(self, here: Any, reads: Reads) -> Any:
        """Return whether a value made here is copied to where some read it."""
        copied = self.truth()
        self.model.add_implication(copied, here)
        self.model.add_bool_or([copied.negated(), *(read for _, read in reads)])
        for _, read in reads:
            self.model.add_bool_or([here.negated(), read.negated(), copied])
        return copied

    def _hint(self) -> None:
        leader = {i: min(members) for _, members in self.tasks for i in members}
        for i, d in enumerate(self.known):
            for (j, e), who in self.led[i].items():
                self.model.add_hint(who, (j, e) == (leader[i], d))
            for e, here in self.on[i].items():
                self.model.add_hint(here, d == e)

    def solve(self, limit_s: float, workers: int) -> Proof:
        """Return what the solver proves within the limit."""
        self._hint()
        self.model.minimize(self.goal)
        run = cp_run(limit_s, workers)
        status = run.solve(self.model)
        value, assigned, tasks = self.value, self.known, self.tasks
        if status in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            value, assigned, tasks = min((value, assigned, tasks), *self._found(run))
        bound = self.least
        if self.whole:
            bound = max(bound, min(run.best_objective_bound * self.unit, value))
        proof = "optimal" if bound >= value * (1 - ROUNDING) else "feasible"
        return Proof(proof, value, min(bound, value), assigned, tasks, run.wall_time)

    def _found(self, run: Any) -> Iterator[tuple[float, Assignment, Tasks]]:
        """Yield the solver's tasks in the orders of their starts and of their ends."""
        found: dict[int, tuple[int, list[int]]] = {}
        for i, row in enumerate(self.led):
            leader, d = next(key for key, who in row.items() if run.value(who))
            found.setdefault(leader, (d, []))[1].append(i)
        assigned = [0] * self.problem.n
        for d, members in found.values():
            for i in members:
                assigned[i] = d
        times = {i: (run.value(self.start[i]), run.value(self.end[i])) for i in found}
        for turn in (1, -1):
            order = sorted(found, key=lambda i: (*times[i][::turn], *times[i][::-turn], i))
            tasks = [found[i] for i in order]
            yield self.value_of(assigned, tasks), tuple(assigned), tasks
