"""Group the nodes of an assignment into tasks, and put the tasks in order.

A task is some nodes of one device that run as one launch (a sunk region). Each rule here gives
tasks in an order in which every task comes after all it reads from, so that a region is convex and
no cycle of tasks can come about, whatever the graph.

* "asap" groups by device and level, the most device changes on any path to a node: tasks start as
  soon as they can.
* "critical_path_first" cuts those of "asap" further, by the most device changes on any path to the
  end: what another device waits for comes first, so that it need not wait for the rest.
* "device_major" runs all it can on one device, then all it can on another: fewer launches, later
  starts. Each order of the devices is a rule of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import permutations

from trireme.placement.problem import Problem

Tasks = list[tuple[int, list[int]]]
"""(device, node positions in graph order) of each task, in an order in which they can run."""


def asap(problem: Problem, assigned: Sequence[int]) -> Tasks:
    """Return a task for each device and level."""
    k, levels = problem.k, _levels(problem, assigned)
    tasks: dict[int, list[int]] = {}
    for i, device in enumerate(assigned):
        key = levels[i] * k + device
        if key in tasks:
            tasks[key].append(i)
        else:
            tasks[key] = [i]
    return [(key % k, tasks[key]) for key in sorted(tasks)]


def _levels(problem: Problem, assigned: Sequence[int]) -> list[int]:
    before, levels = problem.before, [0] * problem.n
    for i, device in enumerate(assigned):
        level = 0
        for j in before[i]:
            above = levels[j] if assigned[j] == device else levels[j] + 1
            if above > level:
                level = above
        levels[i] = level
    return levels


def critical_path_first(problem: Problem, assigned: Sequence[int]) -> Tasks:
    """Return a task for each device, level, and most device changes from there to the end."""
    levels, heights = _levels(problem, assigned), [0] * problem.n
    for i in range(problem.n - 1, -1, -1):
        for j in problem.next[i]:
            heights[i] = max(heights[i], heights[j] + (assigned[j] != assigned[i]))
    tasks: dict[tuple[int, int, int], list[int]] = {}
    for i, device in enumerate(assigned):
        tasks.setdefault((levels[i], -heights[i], device), []).append(i)
    return [(key[2], tasks[key]) for key in sorted(tasks)]


def tasks_of(problem: Problem, assigned: Sequence[int], stages: Sequence[int]) -> Tasks | None:
    """Return the tasks of given stage numbers; None if they cannot run in that order."""
    found: dict[int, list[int]] = {}
    for i, stage in enumerate(stages):
        found.setdefault(stage, []).append(i)
        if any(stages[j] > stage for j in problem.before[i]):
            return None
    if any(assigned[i] != assigned[mine[0]] for mine in found.values() for i in mine):
        return None
    return [(assigned[mine[0]], mine) for _, mine in sorted(found.items())]


def joining(tasks: Tasks, t: int, part: Collection[int], u: int) -> Tasks:
    """Return the tasks with a part of task t in task u; no task t if nothing is left of it."""
    moved = list(tasks)
    moved[u] = (tasks[u][0], sorted([*tasks[u][1], *part]))
    _take(moved, t, part)
    return moved


def apart(tasks: Tasks, t: int, part: Collection[int], device: int, at: int) -> Tasks:
    """Return the tasks with a part of task t in one of its own on a device, before task `at`."""
    moved = list(tasks)
    moved.insert(at, (device, sorted(part)))
    _take(moved, t + (at <= t), part)
    return moved


def _take(tasks: Tasks, t: int, part: Collection[int]) -> None:
    """Take a part out of task t, and the task with it if nothing is left."""
    device, members = tasks[t]
    tasks[t] = (device, [i for i in members if i not in part])
    if not tasks[t][1]:
        del tasks[t]


def device_major(problem: Problem, assigned: Sequence[int], order: Sequence[int]) -> Tasks:
    """Return tasks that each run all they can; the first device in `order` that can, goes next."""
    waits = [len(earlier) for earlier in problem.before]
    ready: list[list[int]] = [[] for _ in problem.devices]
    for i, count in enumerate(waits):
        if not count:
            ready[assigned[i]].append(i)
    tasks: Tasks = []
    left = problem.n
    while left:
        device = next(d for d in order if ready[d])
        members = ready[device]
        ready[device] = []
        for i in members:
            for j in problem.next[i]:
                waits[j] -= 1
                if not waits[j]:
                    (members if assigned[j] == device else ready[assigned[j]]).append(j)
        left -= len(members)
        members.sort()
        tasks.append((device, members))
    return tasks


def device_orders(problem: Problem, most: int = 6) -> list[tuple[int, ...]]:
    """Return orders for `device_major`: cheap launches first, then every other order there is."""
    first = tuple(sorted(problem.devices, key=lambda d: (problem.machine.launch_s[d], d)))
    return [first, *(order for order in permutations(first) if order != first)][:most]


def rules(
    problem: Problem, assigned: Sequence[int], orders: Sequence[Sequence[int]] | None = None
) -> Iterator[Tasks]:
    """Yield the tasks of an assignment by every rule."""
    yield asap(problem, assigned)
    if problem.k > 1:
        yield critical_path_first(problem, assigned)
        for order in orders or device_orders(problem):
            yield device_major(problem, assigned, order)
