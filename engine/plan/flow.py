"""Many runs of a plan in flight at once, in virtual time: speed, depth and memory.

Each run in flight has a context of its own, a copy of the arenas. Only devices, links and states
tie runs together. `virtual_time` has the rules of a stream; `Dispatcher` follows them for real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trireme.ir.effects import uses_state, writes_state
from trireme.placement.virtual_time import simulate_stream
from trireme.plan.plan import Plan
from trireme.support.errors import PlanError

MOST_DEPTH = 8
_ENOUGH = 1.02
"""A depth is enough when its steady state takes at most this many times that of MOST_DEPTH."""


def state_waits(plan: Plan) -> list[tuple[int, int]]:
    """Return (a, b) where task b of a run must wait for task a of the run before.

    One of the two writes a state that the other uses.
    """
    users: dict[str, list[tuple[int, bool]]] = {}
    for task in plan.tasks:
        for node in task.nodes:
            if uses_state(node):
                users.setdefault(node.attrs["state"], []).append((task.index, writes_state(node)))
    pairs = {
        (a, b)
        for same in users.values()
        for a, wrote in same
        for b, writes in same
        if wrote or writes
    }
    return sorted(pairs)


def steady_s(plan: Plan, seconds: Sequence[float], depth: int) -> float:
    """Return the seconds between the ends of two runs, once the pipeline is full.

    seconds: of each task, by index
    """
    if not plan.tasks:
        return 0.0
    warm = 2 * depth + 4
    ends = sorted(simulate_stream(plan.tasks, seconds, depth, 3 * warm, state_waits(plan)).ends_s)
    return (ends[2 * warm] - ends[warm]) / warm


@dataclass(frozen=True)
class Flow:
    """How a plan runs as a pipeline.

    depth: the most runs in flight
    steady_s: predicted seconds a run in the steady state
    alone_s: predicted seconds of a run by itself
    busiest: the resource that limits the pipeline
    busy_s: predicted seconds a run of that resource
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
    """Return how a plan flows if task i takes seconds[i]; depth None: the least one that is enough.

    Errors: PlanError, if the depth is not a number above 0, or its contexts fit no device's memory
    """
    if depth is not None and depth < 1:
        raise PlanError(f"a pipeline of depth {depth}: at least 1 run must be in flight")
    room, limit = _depth_limit(plan)
    if depth is not None and depth > room:
        raise PlanError(f"{depth} runs in flight do not fit: {limit}", fix=f"depth={room}")
    loads: dict[str, float] = {}
    for task in plan.tasks:
        loads[task.resource] = loads.get(task.resource, 0.0) + seconds[task.index]
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


def _depth_limit(plan: Plan) -> tuple[int, str]:
    """Return how many contexts fit the devices' memory, and the sentence that names the limit."""
    room, limit = 1 << 30, ""
    for spec in plan.placement.specs.values():
        use, each = plan.memory[spec.memory], plan.arenas[spec.memory].nbytes
        free = use.limit - use.needed + use.arena
        if use.limit and each and free // each < room:
            room = max(free // each, 1)
            limit = f"the memory of {spec.name} has {free} bytes for runs, one takes {each} of it"
    return room, limit
