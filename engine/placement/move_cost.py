"""Take a placement apart again: what it would come to with some nodes elsewhere, and what changes.

`explain` and `kernel_advice` ask; the answers come from the same scorer that the search used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from trireme.backend.device import Resident
from trireme.placement.makespan import copies_of
from trireme.placement.objective import Objective, Scorer
from trireme.placement.placement import Placement
from trireme.placement.problem import CALLER, Assignment, Machine, Problem
from trireme.placement.search import Search
from trireme.placement.stages import Tasks
from trireme.support.records import dataclass
from trireme.support.units import time_text


@dataclass(frozen=True)
class Trial:
    """A placement with some nodes elsewhere: its score, and what it has more and less of."""

    value: float
    appears: tuple[str, ...]
    vanishes: tuple[str, ...]
    binding: str


class MoveEvaluator:
    """A placement as a problem, an assignment of it, and the tasks and copies that go with it."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.names = tuple(placement.specs)
        machine = Machine.of(
            placement.specs, placement.launch_s, placement.links, placement.issue_s
        )
        graph = placement.source
        self.seconds = [
            [_seconds(placement, node.id, name) for name in self.names] for node in graph.nodes
        ]
        resident = [
            [placement.choices[node.id].resident.get(name, Resident()) for name in self.names]
            for node in graph.nodes
        ]
        self.problem = Problem.of(graph, machine, self.seconds, resident)
        self.objective = cast(Objective, placement.score.objective)
        self.scorer = Scorer(self.problem, self.objective)
        self.assigned: Assignment = tuple(
            self.names.index(placement.choices[node.id].device) for node in graph.nodes
        )
        self.value, self.tasks = placement.score.value, self._own_tasks()
        self.copies = list(copies_of(self.problem, self.assigned))

    def _own_tasks(self) -> Tasks:
        found: dict[int, list[int]] = {}
        for i, node in enumerate(self.placement.source.nodes):
            found.setdefault(self.placement.stage_of[node.id], []).append(i)
        return [(self.assigned[mine[0]], mine) for _, mine in sorted(found.items())]

    def text(self, value: float) -> str:
        """Return a value of the placement's objective with its unit."""
        return self.placement.score.text(value)

    def change(self, by: float) -> str:
        """Return how much more or less a value of it is: "48.0 us more"."""
        return self.placement.score.change(by)

    def moved(self, changes: Mapping[int, int]) -> Trial:
        """Return what comes of moving nodes (by position) to devices, all others held."""
        where = list(self.assigned)
        for position, device in changes.items():
            where[position] = device
        assigned = tuple(where)
        value, tasks = self.scorer.evaluate(assigned)
        before, after = set(self.copies), set(copies_of(self.problem, assigned))
        launches = self._launches(tasks)
        more = [self._copy_text(*copy) for copy in sorted(after - before)]
        less = [self._copy_text(*copy) for copy in sorted(before - after)]
        for name, change in launches.items():
            if change:
                text = f"{abs(change)} {'launches' if abs(change) > 1 else 'launch'} of {name}"
                (more if change > 0 else less).append(text)
        parts = self._parts(changes, before, after, launches)
        parts["waiting for devices and links"] = value - self.value - sum(parts.values())
        binding = max(parts, key=lambda part: parts[part])
        if self.scorer.overfull(assigned, tasks):
            binding = "the device's memory"
        return Trial(value, tuple(more), tuple(less), binding)

    def _launches(self, tasks: Tasks) -> dict[str, int]:
        """Return how many more tasks each device has than in the placement."""
        now, then = [device for device, _ in tasks], [device for device, _ in self.tasks]
        return {name: now.count(d) - then.count(d) for d, name in enumerate(self.names)}

    def _parts(
        self,
        changes: Mapping[int, int],
        before: set[tuple[int, int, int]],
        after: set[tuple[int, int, int]],
        launches: Mapping[str, int],
    ) -> dict[str, float]:
        """Return what the change adds to the price of nodes, copies and launches."""
        prices, nbytes = self.scorer.prices, self.problem.nbytes
        own = sum(prices.own[i][d] - prices.own[i][self.assigned[i]] for i, d in changes.items())
        copies = sum(prices.copy_price(nbytes[v], s, t) for v, s, t in after)
        copies -= sum(prices.copy_price(nbytes[v], s, t) for v, s, t in before)
        launch = sum(prices.launch[self.names.index(n)] * c for n, c in launches.items())
        return {"its own time": own, "copies": copies, "launches": launch}

    def _copy_text(self, value: int, source: int, target: int) -> str:
        spaces = self.problem.machine.spaces
        name = self.placement.source.values[value].first_name
        seconds = self.problem.copy_s(value, source, target)
        return f"copy of {name} {spaces[source]} -> {spaces[target]} ({time_text(seconds)})"

    def ends(self, value: int, target: int) -> tuple[int, list[int]]:
        """Return who makes a value, and who reads it in a memory space, by position."""
        for maker, reads in self.problem.readers.items():
            if any(one == value for one, _ in reads):
                space = self.problem.space
                readers = [
                    r
                    for one, r in reads
                    if one == value and r != CALLER and space[self.assigned[r]] == target
                ]
                return maker, readers
        return CALLER, []

    def free(self, position: int, device: int) -> float:
        """Return the score of a search with one node held on a device: of `place` with a pin."""
        seconds = list(self.seconds)
        seconds[position] = [s if d == device else None for d, s in enumerate(seconds[position])]
        return self.searched(seconds)[0]

    def searched(
        self, seconds: Sequence[Sequence[float | None]]
    ) -> tuple[float, Assignment, Tasks]:
        """Return the score, assignment and tasks of a search with other seconds for the nodes."""
        problem = self.problem.with_seconds(seconds)
        search = Search(problem, self.objective)
        return search.value, search.best, search.tasks


def _seconds(placement: Placement, node: int, device: str) -> float | None:
    estimate = placement.choices[node].estimates.get(device)
    return None if estimate is None else estimate.seconds
