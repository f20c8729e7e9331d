"""Placements in time as a model for the exact solver: who leads each node's task, and when it runs.

A task is known by its first node in graph order, its leader: every placement has one way to say who
leads whom, and no order of tasks has to be chosen but where they share a resource. A node takes its
leader's start and end. That keeps tasks convex, for what leaves a task and comes back would start
before it ends. Beside the tasks, each node runs somewhere within its task, after those it reads
from: what the solver learns of times before it knows the tasks comes from there.

Copies on one way take turns in the order of their tasks, and of the nodes of one task, as in
`makespan`, if all devices of the memory that they leave take turns themselves; else in any order:
the bound holds all the same, and what is found is run again as `makespan` says.
Source: CP-SAT of OR-Tools
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from trireme.placement.bounds import from_start, to_end
from trireme.placement.makespan import makespan_s
from trireme.placement.problem import CALLER, Assignment, Problem
from trireme.placement.proof import ROUNDING, Proof, cp_run, solver
from trireme.placement.stages import Tasks

_UNITS = 1_000_000
"""Integer units of the known makespan. Durations are rounded down, so that the bound is one."""
_QUEUED = 60
"""Copies on one way up to which their order is that of their tasks."""


@dataclass(frozen=True)
class _Copy:
    """A copy that may be: who makes the value, whether it is made, from when, and until when."""

    maker: int
    copied: Any
    begun: Any
    there: Any


class TaskModel:
    """The end of a run, `least` at least.

    pairs: how many (node, leader) there may be; where there are more, a node's leader is near it,
    or one that it or its neighbours have: the model is then of some placements only, not `whole`
    on[i][d]: whether node i is on device d
    led[i][j, d]: whether node j leads node i's task, on device d
    start, end: of each node's task
    begun, over: of each node within its task
    turns: by resource, the intervals of which no two may overlap; loads: what it is busy with
    """

    def __init__(
        self, problem: Problem, known: Assignment, tasks: Tasks, least: float, pairs: int = 20_000
    ) -> None:
        self.cp = solver()
        self.problem, self.known, self.tasks, self.least = problem, known, tasks, least
        self.value = makespan_s(problem, known, tasks)
        self.unit = max(self.value, 1e-30) / _UNITS
        self.model = self.cp.CpModel()
        self.leaders, self.whole = self._leaders(pairs)
        self.turns: dict[tuple[str, Any], list[Any]] = defaultdict(list)
        self.loads: dict[tuple[str, Any], list[Any]] = defaultdict(list)
        self.finish = self._time()
        self.model.add(self.finish >= int(least / self.unit))
        nodes = range(problem.n)
        self.on = [{d: self._bool() for d in able} for able in problem.able]
        self.start, self.end = [self._time() for _ in nodes], [self._time() for _ in nodes]
        self.begun, self.over = [self._time() for _ in nodes], [self._time() for _ in nodes]
        self.led = [self._led(i) for i in nodes]
        for i in nodes:
            self._task(i)
        self._nodes()
        for i in nodes:
            for j in problem.before[i]:
                self._edge(j, i)
        self.spaces = [self._spaces(i) for i in nodes]
        self.queues: dict[tuple[int, int], list[_Copy]] = defaultdict(list)
        self._copies()
        self._queue()
        self._resources()
        self._hint()
        self.model.minimize(self.finish)

    def _bool(self) -> Any:
        return self.model.new_bool_var("")

    def _time(self) -> Any:
        return self.model.new_int_var(0, _UNITS, "")

    def _units(self, seconds: float) -> int:
        return int(seconds / self.unit)

    def _own(self, i: int, device: int) -> int:
        return self._units(self.problem.own_s(i, device))

    def _launch(self, device: int) -> int:
        """Return the units that a launch takes at least, before any node of the task."""
        return self._units(self.problem.machine.least_launch_s[device])

    def _leaders(self, pairs: int) -> tuple[list[list[int]], bool]:
        """Return who may lead each node, and whether that is everyone."""
        n, before, after = self.problem.n, self.problem.before, self.problem.next
        if n * (n + 1) // 2 * self.problem.k <= pairs:
            return [list(range(i + 1)) for i in range(n)], True
        reach = pairs // (n * self.problem.k)
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
                    led[j, d] = self._bool()
            mine = [who for (_, e), who in led.items() if e == d]
            self.model.add_exactly_one([*mine, here.negated()])
        self.model.add_exactly_one(list(self.on[i].values()))
        for (j, _), who in led.items():
            if j != i:
                self.model.add(self.start[i] == self.start[j]).only_enforce_if(who)
                self.model.add(self.end[i] == self.end[j]).only_enforce_if(who)
        return led

    def _task(self, leader: int) -> None:
        """Add the tasks that a node may lead; those of one resource group take turns."""
        model, group = self.model, self.problem.group
        for d, leads in ((d, who) for (j, d), who in self.led[leader].items() if j == leader):
            members = [(i, row[leader, d]) for i, row in enumerate(self.led) if (leader, d) in row]
            for i, here in members:
                if i != leader:
                    model.add_implication(here, leads)
            size, launch = self._time(), self._launched(d, leads, members)
            work = sum(self._own(i, d) * here for i, here in members)
            model.add(size == launch + work)
            first, last = self.start[leader], self.end[leader]
            whole = model.new_optional_interval_var(first, size, last, leads, "")
            begin = model.new_optional_fixed_size_interval_var(first, self._launch(d), leads, "")
            self.turns["tasks", group[d]].append(whole)
            self.turns["launches and nodes", group[d]].append(begin)
            self.loads["group", group[d]].append(launch)

    def _launched(self, device: int, leads: Any, members: Sequence[tuple[int, Any]]) -> Any:
        """Return what a task adds to its nodes: its launch, hidden behind its own device's tasks if
        that starts them itself. What it takes at least then is left out, so the bound holds.
        """
        problem, machine = self.problem, self.problem.machine
        launch = self._units(machine.launch_s[device])
        if machine.least_launch_s[device] == machine.launch_s[device]:
            return launch * leads
        entered = self._bool()
        for i, here in members:
            if any(maker == CALLER for _, maker in problem.inputs[i]):
                self.model.add_implication(here, entered)
            for j in problem.before[i]:
                there = [self.on[j][device]] if device in self.on[j] else []
                self.model.add_bool_or([here.negated(), entered, *there])
        return launch * entered

    def _nodes(self) -> None:
        """Run each node within its task, after its launch, and no nearer to the start and end of
        the run than the longest path allows.
        """
        problem, model = self.problem, self.model
        heads, tails, slack = from_start(problem), to_end(problem), problem.n + 2
        for i, row in enumerate(self.on):
            begun, over = self.begun[i], self.over[i]
            model.add(over == begun + sum(self._own(i, d) * here for d, here in row.items()))
            model.add(
                begun >= self.start[i] + sum(self._launch(d) * here for d, here in row.items())
            )
            model.add(over <= self.end[i])
            model.add(self.finish >= self.end[i])
            for d, here in row.items():
                model.add(over >= self._units(heads[i][d]) - slack).only_enforce_if(here)
                model.add(self.finish >= over + self._units(tails[i][d])).only_enforce_if(here)
                self.turns["launches and nodes", problem.group[d]].append(
                    model.new_optional_fixed_size_interval_var(begun, self._own(i, d), here, "")
                )
                self.loads["group", problem.group[d]].append(self._own(i, d) * here)

    def _edge(self, j: int, i: int) -> None:
        """Run node i after node j: in one task, or in one that starts when j's has ended."""
        model, apart = self.model, self._bool()
        model.add(self.begun[i] >= self.over[j])
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
            spaces[space] = ways[0] if len(ways) == 1 else self._bool()
            if len(ways) > 1:
                self.model.add(spaces[space] == sum(ways))
        return spaces

    def _copies(self) -> None:
        """Copy each value to each space where it is read and not made."""
        always = {0: self.model.new_constant(1)}
        for value, maker, readers in self.problem.values():
            made = always if maker == CALLER else self.spaces[maker]
            reading: dict[int, list[tuple[int, Any]]] = {}
            for reader in readers:
                for space, there in (always if reader == CALLER else self.spaces[reader]).items():
                    reading.setdefault(space, []).append((reader, there))
            for space, reads in reading.items():
                self._copied(value, maker, made, space, reads)

    def _copied(
        self,
        value: int,
        maker: int,
        made: Mapping[int, Any],
        space: int,
        reads: list[tuple[int, Any]],
    ) -> None:
        """Copy a value to a space, if it is made elsewhere, for those who read it there."""
        model, there = self.model, self._time()
        elsewhere = [made[space].negated()] if space in made else []
        for source, here in made.items():
            if source == space:
                continue
            copied, begun = self._bool(), self._time()
            size = self._units(self.problem.copy_s(value, source, space))
            self.turns["way", (source, space)].append(
                model.new_optional_interval_var(begun, size, there, copied, "")
            )
            model.add_implication(copied, here)
            model.add_bool_or([copied.negated(), *(read for _, read in reads)])
            for _, read in reads:
                model.add_bool_or([here.negated(), read.negated(), copied])
            model.add(self.finish >= there).only_enforce_if(copied)
            if maker != CALLER:
                model.add(begun >= self.end[maker]).only_enforce_if(copied)
            self.loads["way", (source, space)].append(size * copied)
            self.queues[source, space].append(_Copy(maker, copied, begun, there))
        for reader, read in reads:
            if reader != CALLER:
                model.add(self.start[reader] >= there).only_enforce_if(read, *elsewhere)

    def _queue(self) -> None:
        """Let copies on one way leave in the order of their tasks, the caller's first."""
        problem, below = self.problem, _below(self.problem)
        for (source, _), copies in self.queues.items():
            groups = {problem.group[d] for d in problem.devices if problem.space[d] == source}
            copies.sort(key=lambda copy: copy.maker)
            for one, two in combinations(copies, 2):
                if one.maker == two.maker:
                    continue
                both, model = [one.copied, two.copied], self.model
                if one.maker == CALLER or two.maker in below[one.maker]:
                    model.add(two.begun >= one.there).only_enforce_if(*both)
                elif len(groups) == 1 and len(copies) <= _QUEUED:
                    first, i, j = self._bool(), one.maker, two.maker
                    forth, back = [*both, first], [*both, first.negated()]
                    model.add(self.end[i] <= self.end[j]).only_enforce_if(*forth)
                    model.add(two.begun >= one.there).only_enforce_if(*forth)
                    model.add(self.end[j] <= self.start[i]).only_enforce_if(*back)
                    model.add(one.begun >= two.there).only_enforce_if(*back)

    def _resources(self) -> None:
        """Let what shares a resource take turns, and the run last as long as all of it."""
        for load in self.loads.values():
            self.model.add(self.finish >= sum(load))
        for turns in self.turns.values():
            self.model.add_no_overlap(turns)

    def _hint(self) -> None:
        leader = {i: min(members) for _, members in self.tasks for i in members}
        for i, d in enumerate(self.known):
            for (j, e), who in self.led[i].items():
                self.model.add_hint(who, (j, e) == (leader[i], d))
            for e, here in self.on[i].items():
                self.model.add_hint(here, d == e)

    def solve(self, limit_s: float, workers: int) -> Proof:
        """Return what the solver proves within the limit."""
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
            yield makespan_s(self.problem, assigned, tasks), tuple(assigned), tasks


def _below(problem: Problem) -> list[set[int]]:
    """Return, for each node, all that follow it."""
    below: list[set[int]] = [set() for _ in range(problem.n)]
    for i in range(problem.n - 1, -1, -1):
        for j in problem.next[i]:
            below[i] |= {j, *below[j]}
    return below
