"""Improve the tasks of an assignment: cut one where others wait for a part, join, change the order.

The rules of `stages` make good tasks fast; a makespan may still gain by cutting a region so that
what another device reads leaves earlier, at the price of a launch.
"""

from __future__ import annotations

from collections.abc import Iterator

from trireme.placement.objective import Scorer
from trireme.placement.problem import Assignment, Problem
from trireme.placement.stages import Tasks, apart, joining


def polish(scorer: Scorer, assigned: Assignment, visits: int) -> tuple[float, Tasks]:
    """Return the score of the best tasks found within some node visits, and the tasks."""
    best, tasks = scorer.evaluate(assigned)
    problem = scorer.problem
    left, improved = visits, True
    while improved and left > 0:
        improved = False
        for changed in _changes(problem, tasks):
            left -= problem.n
            score = scorer.score(assigned, changed)
            if score < best * (1 - 1e-9):
                best, tasks, improved = score, changed, True
                break
            if left <= 0:
                break
    return best, tasks


def _changes(problem: Problem, tasks: Tasks) -> Iterator[Tasks]:
    """Yield the tasks with two of them joined or exchanged, one cut, or a part of one elsewhere."""
    task_of = {i: t for t, (_, members) in enumerate(tasks) for i in members}
    yield from _joined(problem, tasks, task_of)
    yield from _exchanged(problem, tasks, task_of)
    yield from _cut(problem, tasks, task_of)
    yield from _shifted(problem, tasks, task_of)


def _cut(problem: Problem, tasks: Tasks, task_of: dict[int, int]) -> Iterator[Tasks]:
    """Cut off what a node needs, to run first; or what needs a node, to run last."""
    for t, (device, members) in enumerate(tasks):
        seen: set[frozenset[int]] = set()
        for i in members if len(members) > 1 else ():
            for ways, first in ((problem.before, True), (problem.next, False)):
                part = _closure(i, ways, t, task_of)
                rest = [j for j in members if j not in part]
                key = part if first else frozenset(rest)
                if not rest or key in seen:
                    continue
                seen.add(key)
                mine = [j for j in members if j in part]
                two = (
                    [(device, mine), (device, rest)] if first else [(device, rest), (device, mine)]
                )
                yield [*tasks[:t], *two, *tasks[t + 1 :]]


def _shifted(problem: Problem, tasks: Tasks, task_of: dict[int, int]) -> Iterator[Tasks]:
    """Run a node, and what it needs of its task, earlier: in a task of its own or in another of the
    device; or a node and what needs it later.
    """
    for t, (device, members) in enumerate(tasks):
        for i in members:
            for ways, back in ((problem.before, True), (problem.next, False)):
                part = _closure(i, ways, t, task_of)
                ends = [task_of[j] for one in part for j in ways[one] if task_of[j] != t]
                end = (max(ends, default=-1)) if back else min(ends, default=len(tasks))
                for q in range(t - 1, end, -1) if back else range(t + 1, end):
                    yield apart(tasks, t, part, device, q if back else q + 1)
                if 0 <= end < len(tasks) and tasks[end][0] == device:
                    yield joining(tasks, t, part, end)
                for q in range(t - 1, end, -1) if back else range(t + 1, end):
                    if tasks[q][0] == device:
                        yield joining(tasks, t, part, q)


def _closure(
    start: int, ways: list[list[int]], task: int, task_of: dict[int, int]
) -> frozenset[int]:
    found, stack = {start}, [start]
    while stack:
        for j in ways[stack.pop()]:
            if j not in found and task_of[j] == task:
                found.add(j)
                stack.append(j)
    return frozenset(found)


def _joined(problem: Problem, tasks: Tasks, task_of: dict[int, int]) -> Iterator[Tasks]:
    """Join two tasks of a device, in the earlier's place or the later's, where that can run."""
    for t, (device, one) in enumerate(tasks):
        for u in range(t + 1, len(tasks)):
            if tasks[u][0] != device:
                continue
            both = (device, sorted(one + tasks[u][1]))
            if all(
                task_of[j] <= t or task_of[j] == u for i in tasks[u][1] for j in problem.before[i]
            ):
                yield [*tasks[:t], both, *tasks[t + 1 : u], *tasks[u + 1 :]]
            if all(task_of[j] >= u or task_of[j] == t for i in one for j in problem.next[i]):
                yield [*tasks[:t], *tasks[t + 1 : u], both, *tasks[u + 1 :]]


def _exchanged(problem: Problem, tasks: Tasks, task_of: dict[int, int]) -> Iterator[Tasks]:
    """Exchange a task with the next one, unless that reads of it."""
    for t in range(len(tasks) - 1):
        if not any(task_of[j] == t for i in tasks[t + 1][1] for j in problem.before[i]):
            yield [*tasks[:t], tasks[t + 1], tasks[t], *tasks[t + 2 :]]
