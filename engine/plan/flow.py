"""Many runs of a plan in flight at once, in virtual time: how fast, how deep, in how much memory.

Each run in flight has a context of its own, a copy of the arenas: only devices, links and states
tie runs together. `virtual_time` has the rules of a stream; `Pipeline` follows them for real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trireme.ir.effects import uses_state
from trireme.placement.virtual_time import simulate_stream
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


def steady_s(plan: Plan, seconds: Sequence[float], depth: int) -> float:
    """Return the seconds from one run's end to the next one's, once the pipeline is full, if task i
    takes seconds[i].
    """
    if not plan.tasks:
        return 0.0
    warm = 2 * depth + 4
    ends = sorted(simulate_stream(plan.tasks, seconds, depth, 3 * warm, state_waits(plan)).ends_s)
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
