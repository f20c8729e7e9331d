"""Improve the tasks of a placement by annealing: nodes move between tasks and devices at random.

The local search of `search` moves nodes and lets a rule make the tasks; this one has the tasks
themselves in hand, each with its place in the order, and accepts a little worse on the way to
better. What is random is seeded, so that the same problem is always answered alike.
Source: Kirkpatrick, Gelatt, Vecchi, "Optimization by simulated annealing" (1983)
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from trireme.placing.objective import Scorer
from trireme.placing.problem import Assignment, Problem
from trireme.placing.stages import Tasks

_HOT, _COLD = 0.03, 0.002
"""Temperatures at the beginning and the end, as shares of the score."""
_NEEDED, _ALL = 0.35, 0.1
"""How often a node moves with what it needs of its task, or what needs it; how often all of it."""


def anneal(
    scorer: Scorer, tasks: Tasks, able: Sequence[Sequence[int]], visits: int, seed: int = 0
) -> tuple[float, Assignment, Tasks]:
    """Return the best met within some node visits from the tasks: its score, and what it is.

    able: of each node, the devices that it may move to
    """
    problem, rng = scorer.problem, random.Random(seed)
    score = best = scorer.score(assigned_of(problem, tasks), tasks)
    kept, steps = tasks, visits // max(problem.n, 1)
    for step in range(steps):
        moved = _moved(problem, tasks, able, rng)
        if moved is None:
            continue
        heat = best * _HOT * (_COLD / _HOT) ** (step / steps)
        new = scorer.score(assigned_of(problem, moved), moved)
        if new <= score or rng.random() < math.exp((score - new) / heat):
            score, tasks = new, moved
            if score < best * (1 - 1e-9):
                best, kept = score, tasks
    return best, assigned_of(problem, kept), kept


def assigned_of(problem: Problem, tasks: Tasks) -> Assignment:
    """Return the device of each node."""
    assigned = [0] * problem.n
    for device, members in tasks:
        for i in members:
            assigned[i] = device
    return tuple(assigned)


def _moved(
    problem: Problem, tasks: Tasks, able: Sequence[Sequence[int]], rng: random.Random
) -> Tasks | None:
    """Return the tasks with a node, or some of its task, on a device it may move to: in a task of
    its own or in another of that device; None if that cannot be.
    """
    task_of = [0] * problem.n
    for t, (_, members) in enumerate(tasks):
        for i in members:
            task_of[i] = t
    i = rng.randrange(problem.n)
    part = _part(problem, tasks, task_of, i, rng)
    device = rng.choice(able[i])
    if any(device not in problem.able[j] for j in part):
        return None
    first = max((task_of[j] for m in part for j in problem.before[m] if j not in part), default=-1)
    last = min(
        (task_of[j] for m in part for j in problem.next[m] if j not in part), default=len(tasks)
    )
    t = task_of[i]
    joins = [
        u for u in range(max(first, 0), min(last + 1, len(tasks)))
        if tasks[u][0] == device and u != t
    ]  # fmt: skip
    if joins and (first >= last or rng.random() < 0.5):
        return _joining(tasks, t, part, rng.choice(joins))
    if first >= last:
        return None
    return _apart(tasks, t, part, device, rng.randrange(first + 1, last + 1))


def _part(
    problem: Problem, tasks: Tasks, task_of: list[int], i: int, rng: random.Random
) -> set[int]:
    """Return node i alone, or with what it needs of its task, or what needs it, or all of it."""
    chance = rng.random()
    if chance < _ALL:
        return set(tasks[task_of[i]][1])
    part = {i}
    if chance < _ALL + _NEEDED:
        ways = problem.before if rng.random() < 0.5 else problem.next
        stack = [i]
        while stack:
            for j in ways[stack.pop()]:
                if task_of[j] == task_of[i] and j not in part:
                    part.add(j)
                    stack.append(j)
    return part


def _joining(tasks: Tasks, t: int, part: set[int], u: int) -> Tasks:
    """Return the tasks with a part of task t in task u."""
    moved = list(tasks)
    moved[u] = (tasks[u][0], sorted((*tasks[u][1], *part)))
    rest = [j for j in tasks[t][1] if j not in part]
    moved[t] = (tasks[t][0], rest)
    if not rest:
        del moved[t]
    return moved


def _apart(tasks: Tasks, t: int, part: set[int], device: int, at: int) -> Tasks:
    """Return the tasks with a part of task t in one of its own on a device, before task `at`."""
    moved = list(tasks)
    rest = [j for j in tasks[t][1] if j not in part]
    moved[t] = (tasks[t][0], rest)
    moved.insert(at, (device, sorted(part)))
    if not rest:
        del moved[t + (at <= t)]
    return moved
