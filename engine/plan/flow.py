"""Many runs of a plan in flight at once, in virtual time: how fast, how deep, in how much memory.

Run k + 1 uses a device as soon as run k has left it. Each run in flight has a context of its own (a
copy of the arenas), so only devices, links and states tie runs together: of the tasks that are
ready for a device, the oldest run's goes first; what reads or writes a state waits for the same in
the run before. `steady_s` is a discrete-event run of that, and `Pipeline` does the same for real.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trireme.ir.effects import uses_state
from trireme.plan.plan import Plan
from trireme.support.errors import PlanError

MOST_DEPTH = 8
_ENOUGH = 1.02
"""A depth whose steady state is this near that of MOST_DEPTH is deep enough."""


def state_waits(plan: Plan) -> list[tuple[int, int]]:
    """Return (a, b) where task b of a run must wait for task a of the run before: one of the two
    writes a state that the other uses.
    """
    users: dict[str, list[tuple[int, bool]]] = {}
    for task in plan.tasks:
        for node in task.nodes:
            if uses_state(node):
                users.setdefault(node.attrs["state"], []).append((task.index, node.op == "assign"))
    pairs = {
        (a, b)
        for same in users.values()
        for a, wrote in same
        for b, writes in same
        if wrote or writes
    }
    return sorted(pairs)


def resource_of(plan: Plan, task: int) -> str:
    """Return what a task occupies: a device's resource group, or a link."""
    name = plan.tasks[task].device
    spec = plan.placement.specs.get(name)
    return (spec.resource_group or spec.name) if spec else name


@dataclass
class _Run:
    """One run in flight: how many waits each task has left, how many tasks are not over."""

    left: list[int]
    unfinished: int
    over: set[int] = field(default_factory=set)


class _Simulation:
    """A discrete-event run of `runs` runs, `depth` of them in flight at most."""

    def __init__(self, plan: Plan, seconds: Sequence[float], depth: int, runs: int) -> None:
        self.plan, self.seconds, self.count = plan, seconds, runs
        self.resource = [resource_of(plan, task.index) for task in plan.tasks]
        self.followers: list[list[int]] = [[] for _ in plan.tasks]
        for task in plan.tasks:
            for other in task.waits:
                self.followers[other].append(task.index)
        self.next_run: dict[int, list[int]] = {}
        self.before: dict[int, list[int]] = {}
        for a, b in state_waits(plan):
            self.next_run.setdefault(a, []).append(b)
            self.before.setdefault(b, []).append(a)
        self.ready: dict[str, list[tuple[int, int]]] = {name: [] for name in self.resource}
        self.idle = dict.fromkeys(self.resource, True)
        self.flying: list[tuple[float, int, int]] = []
        self.runs: list[_Run] = []
        self.ends = [0.0] * runs
        self.now = 0.0
        for _ in range(min(depth, runs)):
            self._begin()
        self._go()

    def _begin(self) -> None:
        number = len(self.runs)
        if number == self.count:
            return
        left = [len(task.waits) for task in self.plan.tasks]
        if number:
            over = self.runs[number - 1].over
            for b, befores in self.before.items():
                left[b] += sum(a not in over for a in befores)
        self.runs.append(_Run(left, len(left)))
        for task, count in enumerate(left):
            if not count:
                heapq.heappush(self.ready[self.resource[task]], (number, task))

    def _go(self) -> None:
        while True:
            for name, waiting in self.ready.items():
                if self.idle[name] and waiting:
                    number, task = heapq.heappop(waiting)
                    self.idle[name] = False
                    end = self.now + self.seconds[task]
                    heapq.heappush(self.flying, (end, number, task))
            if not self.flying:
                return
            self.now, number, task = heapq.heappop(self.flying)
            self.idle[self.resource[task]] = True
            self._finish(number, task)

    def _finish(self, number: int, task: int) -> None:
        run = self.runs[number]
        run.over.add(task)
        run.unfinished -= 1
        for follower in self.followers[task]:
            self._count_down(number, follower)
        if number + 1 < len(self.runs):
            for follower in self.next_run.get(task, ()):
                self._count_down(number + 1, follower)
        if not run.unfinished:
            self.ends[number] = self.now
            self._begin()

    def _count_down(self, number: int, task: int) -> None:
        left = self.runs[number].left
        left[task] -= 1
        if not left[task]:
            heapq.heappush(self.ready[self.resource[task]], (number, task))


def steady_s(plan: Plan, seconds: Sequence[float], depth: int) -> float:
    """Return the seconds from one run's end to the next one's, once the pipeline is full, if task i
    takes seconds[i].
    """
    if not plan.tasks:
        return 0.0
    warm = 2 * depth + 4
    ends = sorted(_Simulation(plan, seconds, depth, 3 * warm).ends)
    return (ends[2 * warm] - ends[warm]) / warm


@dataclass(frozen=True)
class Flow:
    """How a plan runs as a pipeline.

    depth: runs in flight at most
    steady_s: predicted seconds a run in the steady state; alone_s: of a run by itself
    busiest: the resource that limits it, busy_s: its predicted seconds a run
    arena_bytes: of each memory space, all contexts together
    why: a sentence on the depth
    """

    depth: int
    steady_s: float
    alone_s: float
    busiest: str
    busy_s: float
    arena_bytes: Mapping[str, int]
    why: str


def flow_of(plan: Plan, seconds: Sequence[float], depth: int | None = None) -> Flow:
    """Return how a plan flows if task i takes seconds[i]; the least depth that is enough when None.

    Errors: PlanError, if the depth is not a number above 0, or its contexts fit no device's memory
    """
    if depth is not None and depth < 1:
        raise PlanError(f"a pipeline of depth {depth}: at least 1 run must be in flight")
    room, limit = _room(plan)
    if depth is not None and depth > room:
        raise PlanError(f"{depth} runs in flight do not fit: {limit}", fix=f"depth={room}")
    loads: dict[str, float] = {}
    for task in plan.tasks:
        name = resource_of(plan, task.index)
        loads[name] = loads.get(name, 0.0) + seconds[task.index]
    busiest = max(loads, key=lambda name: loads[name], default="")
    if depth is None:
        most = min(MOST_DEPTH, room)
        goal = steady_s(plan, seconds, most) * _ENOUGH
        depth = next(d for d in range(1, most + 1) if steady_s(plan, seconds, d) <= goal)
        why = f"the least that reaches the steady state of {most}"
        why = limit if depth == room < MOST_DEPTH else why
    else:
        why = "asked for"
    arenas = {memory: packing.nbytes * depth for memory, packing in plan.arenas.items()}
    steady, alone = steady_s(plan, seconds, depth), steady_s(plan, seconds, 1)
    return Flow(depth, steady, alone, busiest, loads.get(busiest, 0.0), arenas, why)


def _room(plan: Plan) -> tuple[int, str]:
    """Return how many contexts fit the devices' memory, and the sentence of what limits them."""
    room, limit = 1 << 30, ""
    for spec in plan.placement.specs.values():
        use, each = plan.memory[spec.memory], plan.arenas[spec.memory].nbytes
        free = use.limit - use.needed + use.arena
        if use.limit and each and free // each < room:
            room = max(free // each, 1)
            limit = f"the memory of {spec.name} has {free} bytes for runs, one takes {each} of it"
    return room, limit
