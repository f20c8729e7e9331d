"""Where the search begins: assignments worth improving, each by a rule with a name.

Single devices, whole regions handed to one device, the cheapest for each node, the dynamic
programme over a forest of the graph, and list scheduling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trireme.placement.bounds import Forest, LoadBound
from trireme.placement.prices import Prices
from trireme.placement.problem import CALLER, Assignment, Problem
from trireme.placement.stages import device_major


def single_device(problem: Problem, device: int) -> Assignment:
    """Return all the device can run on it, and the rest wherever it is cheapest."""
    return tuple(
        device if device in able else min(able, key=lambda d: (problem.own_s(i, d), d))
        for i, able in enumerate(problem.able)
    )


def regions(problem: Problem, device: int) -> list[list[int]]:
    """Return the connected sets of nodes that a device can run, the largest first."""
    seen: set[int] = set()
    found = []
    for start in range(problem.n):
        if start in seen or device not in problem.able[start]:
            continue
        seen.add(start)
        region = [start]
        for i in region:
            for j in (*problem.before[i], *problem.next[i]):
                if j not in seen and device in problem.able[j]:
                    seen.add(j)
                    region.append(j)
        found.append(sorted(region))
    return sorted(found, key=lambda region: (-len(region), region[0]))


def one_region(problem: Problem, device: int, base: Assignment) -> Assignment:
    """Return the device's largest region on it, and the base elsewhere."""
    largest = set(next(iter(regions(problem, device)), []))
    return tuple(device if i in largest else d for i, d in enumerate(base))


def one_task(problem: Problem, device: int, base: Assignment) -> Assignment:
    """Return the most nodes that the device can run in one task on it, and the base elsewhere."""
    sides = [device if device in able else base[i] for i, able in enumerate(problem.able)]
    order = (device, *(d for d in problem.devices if d != device))
    largest: set[int] = set()
    for d, mine in device_major(problem, sides, order):
        if d == device and len(mine) > len(largest):
            largest = set(mine)
    return tuple(device if i in largest else d for i, d in enumerate(base))


def list_schedule(problem: Problem) -> Assignment:
    """Return each node, the most urgent first, on the device where it would be over soonest.

    Source: Topcuoglu, Hariri, Wu, "HEFT" (2002), without insertion; a value already copied to a
    memory space is there for all
    """
    rank = _upward_rank(problem)
    finish, free = [0.0] * problem.n, [0.0] * problem.groups
    arrived: dict[tuple[int, int], float] = {}
    assigned = [CALLER] * problem.n
    for i in sorted(range(problem.n), key=lambda i: (-rank[i], i)):
        best = (float("inf"), 0)
        for d in problem.able[i]:
            ready = max(free[problem.group[d]], _ready(problem, i, d, finish, assigned, arrived))
            best = min(best, (ready + problem.own_s(i, d), d))
        finish[i], assigned[i] = best
        device = assigned[i]
        free[problem.group[device]] = finish[i]
        here = problem.space[device]
        for value, maker in problem.inputs[i]:
            arrived.setdefault(
                (value, here), _moved(problem, value, maker, device, finish, assigned)
            )
    return tuple(assigned)


def _upward_rank(problem: Problem) -> list[float]:
    rank = [0.0] * problem.n
    for i in range(problem.n - 1, -1, -1):
        able = problem.able[i]
        mean = sum(problem.own_s(i, d) for d in able) / len(able)
        rank[i] = mean + max((rank[j] for j in problem.next[i]), default=0.0)
    return rank


def _ready(
    problem: Problem,
    i: int,
    device: int,
    finish: Sequence[float],
    assigned: Sequence[int],
    arrived: dict[tuple[int, int], float],
) -> float:
    here, launch_s = problem.space[device], problem.machine.launch_s[device]
    ready = max((finish[j] for j in problem.after[i]), default=0.0)
    for value, maker in problem.inputs[i]:
        at = arrived.get((value, here))
        if at is None:
            at = _moved(problem, value, maker, device, finish, assigned)
        new = maker == CALLER or assigned[maker] != device
        ready = max(ready, at + (launch_s if new else 0.0))
    return ready


def _moved(
    problem: Problem,
    value: int,
    maker: int,
    device: int,
    finish: Sequence[float],
    assigned: Sequence[int],
) -> float:
    source = problem.space[assigned[maker]] if maker >= 0 else 0
    made = finish[maker] if maker >= 0 else 0.0
    here = problem.space[device]
    return made if source == here else made + problem.copy_s(value, source, here)


def starts(
    problem: Problem,
    prices: Prices,
    forest: Forest,
    load: LoadBound | None,
    known: Assignment | None = None,
) -> Iterator[tuple[str, Assignment]]:
    """Yield named assignments; every one that can run, the same every time."""
    names = problem.machine.names
    if not problem.n:
        yield "no nodes", ()
        return
    fastest = tuple(
        min(able, key=lambda d: (problem.own_s(i, d), d)) for i, able in enumerate(problem.able)
    )
    for d in problem.devices:
        whole = single_device(problem, d)
        if d in whole:
            only = all(device == d for device in whole)
            yield f"{names[d]} {'only' if only else 'first'}", whole
    if problem.k == 1:
        return
    yield "each node at its fastest", fastest
    yield "dynamic programme", forest.solve(prices, every_launch=True)[1]
    if known is not None:
        yield "as it was", known
        return
    for d in problem.devices:
        base = tuple(
            min([e for e in able if e != d] or able, key=lambda e: (problem.own_s(i, e), e))
            for i, able in enumerate(problem.able)
        )
        yield f"one region on {names[d]}", one_region(problem, d, base)
        first = tuple(min([e for e in able if e != d] or able) for able in problem.able)
        yield f"one task on {names[d]}", one_task(problem, d, first)
    yield "list schedule", list_schedule(problem)
    if load is not None:
        yield "balanced", load.met[-1]
