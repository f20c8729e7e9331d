"""The exact model of the makespan (`exact_model`): tasks and copies in time, taking turns.

Beside the tasks, each node runs somewhere within its task, after those it reads from: what the
solver learns of times before it knows the tasks comes from there.

Copies on one link take turns in the order of their tasks, and of the nodes of one task, as in
`makespan`, if all devices of the memory that they leave take turns themselves; else in any order:
the bound holds all the same, and what is found is run again as `makespan` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from trireme.placement.bounds import from_start, to_end
from trireme.placement.exact_model import Reads, TaskModel
from trireme.placement.makespan import makespan_s
from trireme.placement.problem import CALLER, Assignment, Problem
from trireme.placement.stages import Tasks
from trireme.support.records import dataclass

_UNITS = 1_000_000
"""Integer units of the known makespan."""
_QUEUED = 60
"""Copies on one link up to which their order is that of their tasks."""


@dataclass(frozen=True)
class _PossibleCopy:
    """A copy that may be: who makes the value, whether it is made, from when, and until when."""

    maker: int
    copied: Any
    begun: Any
    there: Any


class MakespanModel(TaskModel):
    """The end of a run.

    begun, over: of each node within its task
    turns: by resource, the intervals of which no two may overlap; loads: what it is busy with
    """

    def __init__(self, problem: Problem, known: Assignment, tasks: Tasks, least: float) -> None:
        self.turns: dict[tuple[str, Any], list[Any]] = defaultdict(list)
        self.loads: dict[tuple[str, Any], list[Any]] = defaultdict(list)
        self.queues: dict[tuple[int, int], list[_PossibleCopy]] = defaultdict(list)
        super().__init__(problem, known, tasks, least, _UNITS, _UNITS)
        nodes = range(problem.n)
        self.begun, self.over = [self.time() for _ in nodes], [self.time() for _ in nodes]
        self._nodes()
        self.add_copies()
        self._queue()
        self._resources()

    def value_of(self, assigned: Sequence[int], tasks: Tasks) -> float:
        """Return the makespan of the tasks of an assignment, in seconds."""
        return makespan_s(self.problem, assigned, tasks)

    def _own(self, i: int, device: int) -> int:
        return self.units(self.problem.own_s(i, device))

    def _launch(self, device: int) -> int:
        """Return the units that a launch takes at least, before any node of the task."""
        return self.units(self.problem.machine.least_launch_s[device])

    def add_task(
        self, leader: int, device: int, leads: Any, members: Sequence[tuple[int, Any]]
    ) -> None:
        """Add the task's interval; tasks of one resource group take turns."""
        model, group = self.model, self.problem.group[device]
        size, launch = self.time(), self._launched(device, leads, members)
        model.add(size == launch + sum(self._own(i, device) * here for i, here in members))
        first, last = self.start[leader], self.end[leader]
        whole = model.new_optional_interval_var(first, size, last, leads, "")
        begin = model.new_optional_fixed_size_interval_var(first, self._launch(device), leads, "")
        self.turns["tasks", group].append(whole)
        self.turns["launches and nodes", group].append(begin)
        self.loads["group", group].append(launch)

    def _launched(self, device: int, leads: Any, members: Sequence[tuple[int, Any]]) -> Any:
        """Return what a task adds to its nodes: its launch, hidden behind its own device's tasks if
        that starts them itself. What it takes at least then is left out, so the bound holds.
        """
        problem, machine = self.problem, self.problem.machine
        launch = self.units(machine.launch_s[device])
        if machine.least_launch_s[device] == machine.launch_s[device]:
            return launch * leads
        entered = self.truth()
        for i, here in members:
            if any(maker == CALLER for _, maker in problem.inputs[i]):
                self.model.add_implication(here, entered)
            for j in problem.before[i]:
                there = [self.on[j][device]] if device in self.on[j] else []
                self.model.add_bool_or([here.negated(), entered, *there])
        return launch * entered

    def _nodes(self) -> None:
        """Run each node within its task, after its launch and those before it, and no nearer to the
        start and end of the run than the longest path allows.
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
            model.add(self.goal >= self.end[i])
            for j in problem.before[i]:
                model.add(begun >= self.over[j])
            for d, here in row.items():
                model.add(over >= self.units(heads[i][d]) - slack).only_enforce_if(here)
                model.add(self.goal >= over + self.units(tails[i][d])).only_enforce_if(here)
                self.turns["launches and nodes", problem.group[d]].append(
                    model.new_optional_fixed_size_interval_var(begun, self._own(i, d), here, "")
                )
                self.loads["group", problem.group[d]].append(self._own(i, d) * here)

    def add_copy(
        self, value: int, maker: int, made: Mapping[int, Any], space: int, reads: Reads
    ) -> None:
        """Make the copy arrive before its readers start."""
        model, there = self.model, self.time()
        elsewhere = [made[space].negated()] if space in made else []
        for source, here in made.items():
            if source == space:
                continue
            copied, begun = self.copied(here, reads), self.time()
            size = self.units(self.problem.copy_s(value, source, space))
            self.turns["link", (source, space)].append(
                model.new_optional_interval_var(begun, size, there, copied, "")
            )
            model.add(self.goal >= there).only_enforce_if(copied)
            if maker != CALLER:
                model.add(begun >= self.end[maker]).only_enforce_if(copied)
            self.loads["link", (source, space)].append(size * copied)
            self.queues[source, space].append(_PossibleCopy(maker, copied, begun, there))
        for reader, read in reads:
            if reader != CALLER:
                model.add(self.start[reader] >= there).only_enforce_if(read, *elsewhere)

    def _queue(self) -> None:
        """Let copies on one link leave in the order of their tasks, the caller's first."""
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
                    first, i, j = self.truth(), one.maker, two.maker
                    forth, back = [*both, first], [*both, first.negated()]
                    model.add(self.end[i] <= self.end[j]).only_enforce_if(*forth)
                    model.add(two.begun >= one.there).only_enforce_if(*forth)
                    model.add(self.end[j] <= self.start[i]).only_enforce_if(*back)
                    model.add(one.begun >= two.there).only_enforce_if(*back)

    def _resources(self) -> None:
        """Let what shares a resource take turns, and the run last as long as all of it."""
        for load in self.loads.values():
            self.model.add(self.goal >= sum(load))
        for turns in self.turns.values():
            self.model.add_no_overlap(turns)


def _below(problem: Problem) -> list[set[int]]:
    """Return, for each node, all that follow it."""
    below: list[set[int]] = [set() for _ in range(problem.n)]
    for i in range(problem.n - 1, -1, -1):
        for j in problem.next[i]:
            below[i] |= {j, *below[j]}
    return below
