"""Virtual time: when each task of a run starts and ends, if every task takes a known time.

The rules:

* A task occupies one resource, without a break, for its seconds. A resource is a link between two
  memory spaces, or the silicon of a device: devices of one resource group share it.
* A resource runs one task at a time.
* A task is ready when every task that it waits for has ended.
* A run by itself is queued: each resource runs its tasks in task order, and waits for one that is
  not ready. A serial run has one queue for all resources.
* A stream has up to `depth` runs in flight: the next run begins when one ends. A free resource
  starts a ready task of the oldest run, the first in task order. A task that uses a state also
  waits for tasks of the run before.
* A run ends when its last task ends.

The seconds of a task follow rules too. A task takes its launch, the seconds of its nodes, and the
seconds in which streamed weights are fetched for it. Some devices start their tasks by themselves.
There a task whose inputs and effects all come from tasks of its own device is launched while they
run. Its launch is hidden. The task takes no launch, but at least the device's time to issue it.

Predictions, plans, profiles, streams and traces all take their times from here. The search alone
has an evaluator of its own, `makespan.makespan_s`; a test holds the two equal to the last bit.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from typing import Protocol

from trireme.support.records import dataclass


class QueuedTask(Protocol):
    """The facts of a task that virtual time needs. `waits` are earlier task indices."""

    @property
    def resource(self) -> str:
        """The resource that the task occupies."""

    @property
    def waits(self) -> Sequence[int]:
        """The tasks that must have ended before it starts."""


@dataclass(frozen=True)
class Slice:
    """When one task of a run is on its resource, in seconds from the start of the first run."""

    task: int
    resource: str
    start_s: float
    end_s: float


def timeline(
    tasks: Sequence[QueuedTask], seconds: Sequence[float], serial: bool = False
) -> list[Slice]:
    """Return a slice for each task of a run, in task order, if task i takes seconds[i].

    serial: one task after another, whatever its resource
    """
    waits: list[Collection[int]] = []
    last: dict[str, int] = {}
    for index, task in enumerate(tasks):
        queue = "" if serial else task.resource
        waits.append({*task.waits, last[queue]} if queue in last else task.waits)
        last[queue] = index
    return Simulation(tasks, waits, seconds).slices()


def simulate_stream(
    tasks: Sequence[QueuedTask],
    seconds: Sequence[float],
    depth: int,
    runs: int,
    between: Iterable[tuple[int, int]] = (),
) -> Simulation:
    """Return the simulation of a stream, if task i takes seconds[i].

    depth: runs in flight at most
    between: (a, b) where task b of a run waits for task a of the run before
    """
    waits = [task.waits for task in tasks]
    return Simulation(tasks, waits, seconds, depth, runs, between)


def end_s(slices: Iterable[Slice]) -> float:
    """Return when the last task ends."""
    return max((piece.end_s for piece in slices), default=0.0)


def hidden_launch_s(seconds: float, launch_s: float, issue_s: float) -> float:
    """Return the seconds of a task without its launch: no less than the device needs to issue it.

    seconds: of the task, its launch included
    """
    return max(seconds - launch_s, issue_s)


@dataclass
class _Run:
    """A run: the waits that each task has left, when each starts, and which have ended."""

    left: list[int]
    start_s: list[float]
    over: set[int] = field(default_factory=set)


class Simulation:
    """A discrete-event simulation: the events are the ends of tasks.

    ends_s: when each run ends
    ready: of each resource, (run, task) of the ready tasks, the next one first
    busy: of each task that is on its resource, (end_s, run, task), the next to end first
    """

    def __init__(
        self,
        tasks: Sequence[QueuedTask],
        waits: Sequence[Collection[int]],
        seconds: Sequence[float],
        depth: int = 1,
        runs: int = 1,
        between: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.resource, self.seconds = [task.resource for task in tasks], seconds
        self.waits, self.count = waits, runs
        self.followers: list[list[int]] = [[] for _ in tasks]
        for task, others in enumerate(waits):
            for other in others:
                self.followers[other].append(task)
        self.between = list(between)
        self.followers_next_run: list[list[int]] = [[] for _ in tasks]
        for a, b in self.between:
            self.followers_next_run[a].append(b)
        self.ready: dict[str, list[tuple[int, int]]] = {name: [] for name in self.resource}
        self.idle = dict.fromkeys(self.resource, True)
        self.busy: list[tuple[float, int, int]] = []
        self.runs: list[_Run] = []
        self.ends_s = [0.0] * runs
        self.now = 0.0
        for _ in range(min(depth, runs)):
            self._begin()
        self._simulate()

    def slices(self, run: int = 0) -> list[Slice]:
        """Return a slice for each task of a run, in task order."""
        tasks = zip(self.resource, self.runs[run].start_s, self.seconds, strict=True)
        return [
            Slice(task, resource, start_s, start_s + seconds)
            for task, (resource, start_s, seconds) in enumerate(tasks)
        ]

    def _simulate(self) -> None:
        self._start()
        while self.busy:
            self.now, run, task = heapq.heappop(self.busy)
            self.idle[self.resource[task]] = True
            self._end(run, task)
            self._start()

    def _begin(self) -> None:
        """Begin the next run, if there is one: its tasks wait for each other and the run before."""
        run = len(self.runs)
        if run == self.count:
            return
        left = [len(others) for others in self.waits]
        if run:
            for a, b in self.between:
                left[b] += a not in self.runs[-1].over
        self.runs.append(_Run(left, [0.0] * len(left)))
        for task, waits in enumerate(left):
            if not waits:
                heapq.heappush(self.ready[self.resource[task]], (run, task))

    def _start(self) -> None:
        """Start the next ready task of every idle resource."""
        for resource, ready in self.ready.items():
            if ready and self.idle[resource]:
                run, task = heapq.heappop(ready)
                end_s = self.now + self.seconds[task]
                self.idle[resource] = False
                heapq.heappush(self.busy, (end_s, run, task))
                self.runs[run].start_s[task] = self.now

    def _end(self, run: int, task: int) -> None:
        """End a task: what waited for it may be ready, and the next run may begin."""
        over = self.runs[run].over
        over.add(task)
        for follower in self.followers[task]:
            self._count_down(run, follower)
        if run + 1 < len(self.runs):
            for follower in self.followers_next_run[task]:
                self._count_down(run + 1, follower)
        if len(over) == len(self.waits):
            self.ends_s[run] = self.now
            self._begin()

    def _count_down(self, run: int, task: int) -> None:
        left = self.runs[run].left
        left[task] -= 1
        if not left[task]:
            heapq.heappush(self.ready[self.resource[task]], (run, task))
