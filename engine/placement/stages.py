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
* "fewest_launches" does so in the order whose launches cost least, found by a search that is cut
  short where it takes long.
"""

from __future__ import annotations

import heapq
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


_VISITS = 20_000
"""Bound of a search for the fewest tasks: steps times nodes."""


def fewest_launches(
    problem: Problem, assigned: Sequence[int], launch: Sequence[float]
) -> Tasks | None:
    """Return the tasks whose launches cost least; None if they were not found in time.

    A task that runs all it can leaves no less to do than one that does not, so only those are
    looked at. The launches left are no fewer than the entries of any path into each device.
    Source: A*: Hart, Nilsson, Raphael, "A formal basis for the heuristic determination of minimum
    cost paths" (1968)
    """
    order = _Order(problem, assigned, launch)
    whole = (1 << problem.n) - 1
    spent = {0: 0.0}
    came: dict[int, int] = {}
    heap = [(0.0, 0, 0)]
    for step in range(max(_VISITS // max(problem.n, 1), 10)):
        _, _, done = heapq.heappop(heap)
        if done == whole:
            return _tasks_of(assigned, came, done)
        for d in problem.devices:
            after = order.run(done, d)
            total = spent[done] + launch[d]
            if after != done and total < spent.get(after, float("inf")):
                spent[after], came[after] = total, done
                heapq.heappush(heap, (total + order.least(after), -step, after))
    return None


def _tasks_of(assigned: Sequence[int], came: dict[int, int], done: int) -> Tasks:
    tasks: Tasks = []
    while done:
        new = done & ~came[done]
        members = [i for i in range(new.bit_length()) if new >> i & 1]
        tasks.append((assigned[members[0]], members))
        done = came[done]
    return tasks[::-1]


class _Order:
    """The nodes that can run once some (bits of a number) are done, and the launches left.

    entries[i][d]: how often a path from node i to the end enters device d, at most, at i as well
    """

    def __init__(self, problem: Problem, assigned: Sequence[int], launch: Sequence[float]) -> None:
        self.n, self.launch = problem.n, launch
        self.needs = [sum([1 << j for j in earlier]) for earlier in problem.before]
        self.on: list[list[int]] = [[] for _ in problem.devices]
        for i, d in enumerate(assigned):
            self.on[d].append(i)
        self.entries = [[0] * problem.k for _ in assigned]
        for i in range(problem.n - 1, -1, -1):
            mine = self.entries[i]
            for j in problem.next[i]:
                same = assigned[j] == assigned[i]
                for d, count in enumerate(self.entries[j]):
                    mine[d] = max(mine[d], count - (same and d == assigned[i]))
            mine[assigned[i]] += 1

    def run(self, done: int, device: int) -> int:
        """Return the done nodes after the device ran all that it can."""
        for i in self.on[device]:
            if not done >> i & 1 and not self.needs[i] & ~done:
                done |= 1 << i
        return done

    def least(self, done: int) -> float:
        """Return the least cost of the launches that are left."""
        most = [0] * len(self.launch)
        for i in range(self.n):
            if not done >> i & 1 and not self.needs[i] & ~done:
                most = [max(pair) for pair in zip(most, self.entries[i], strict=True)]
        return sum([count * price for count, price in zip(most, self.launch, strict=True)])


def rules(
    problem: Problem,
    assigned: Sequence[int],
    orders: Sequence[Sequence[int]] | None = None,
    launch: Sequence[float] | None = None,
) -> Iterator[Tasks]:
    """Yield the tasks of an assignment by every rule; launches cost seconds if not `launch`."""
    yield asap(problem, assigned)
    if problem.k > 1:
        yield critical_path_first(problem, assigned)
        for order in orders or device_orders(problem):
            yield device_major(problem, assigned, order)
        found = fewest_launches(problem, assigned, launch or problem.machine.launch_s)
        if found is not None:
            yield found
