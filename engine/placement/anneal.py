"""Improve the tasks of a placement by annealing: nodes move between tasks and devices at random.

The local search of `search` moves nodes and lets a rule make the tasks; this one has the tasks
themselves in hand, each with its place in the order, and accepts a little worse on the way to
better. Several walks go on at once, each at a heat of its own, and exchange what they have: the
hot ones leave a placement for quite another, the cold ones make the best of it. They end early when
they find nothing. A last walk, cold and colder, starts from the best of them. What is random is
seeded, so that the same problem is always answered alike.
Source: Geyer, "Markov chain Monte Carlo maximum likelihood" (1991); Hukushima, Nemoto, "Exchange
Monte Carlo method" (1996)
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from trireme.placement.bounds import to_end
from trireme.placement.objective import Scorer
from trireme.placement.problem import Assignment, Problem
from trireme.placement.stages import Tasks, apart, joining

_SMALL = 20
_HEATS = ((0.003, 0.009, 0.027, 0.081, 0.243), (0.002, 0.006, 0.018, 0.054))
"""Temperatures of the walks as shares of the score, up to _SMALL nodes and for more."""
_LAST = (1 / 6, 1 / 3)
"""The last walk's part of all steps, likewise."""
_COLD, _COLDEST = 0.01, 0.001
"""Temperatures at the beginning and the end of the last walk."""
_TURN = 20
"""Steps of each walk between exchanges."""
_PATIENCE = (40, 100)
"""Steps for each node squared after which the walks end: if they found nothing better at all, and
if they did. They also wait as long again as the last find took."""
_WIDE_GAP = 0.02
"""A bound that is nearer shortens the patience in proportion: less can be gained."""
_NEEDED, _ALL = 0.35, 0.1
"""How often a node moves with what it needs of its task, or what needs it; how often all of it."""


def anneal(
    scorer: Scorer,
    tasks: Tasks,
    visits: int,
    least: float = 0.0,
    seed: int = 0,
) -> tuple[float, Assignment, Tasks]:
    """Return the best met within some node visits from the tasks: its score, and what it is.

    least: no placement scores below this
    """
    problem, rng, tails = scorer.problem, random.Random(seed), to_end(scorer.problem)
    steps = visits // max(problem.n, 1)
    last = int(steps * _LAST[problem.n > _SMALL])
    tasks, share = _exchanged(scorer, tasks, tails, steps - last, least, rng)
    walk = _Walk(scorer, tasks, tails, rng)
    last = int(last * share)
    for step in range(last):
        walk.step(walk.best * _COLD * (_COLDEST / _COLD) ** (step / last))
    return walk.best, tuple(assigned_of(problem, walk.kept)), walk.kept


def _exchanged(
    scorer: Scorer,
    tasks: Tasks,
    tails: Sequence[Sequence[float]],
    steps: int,
    least: float,
    rng: random.Random,
) -> tuple[Tasks, float]:
    """Return the best tasks met by walks at several heats that exchange what they have, and the
    share of the steps that they took.
    """
    heats = _HEATS[scorer.problem.n > _SMALL]
    walks = [_Walk(scorer, tasks, tails, rng) for _ in heats]
    best = walks[0].best
    each = _TURN * len(heats)
    turns, turn, found = steps // each, 0, 0
    patience = [most * scorer.problem.n**2 / each for most in _PATIENCE]
    while turn < turns and turn < max(2 * found, patience[found > 0] * _openness(best, least)):
        turn += 1
        for walk, heat in zip(walks, heats, strict=True):
            for _ in range(_TURN):
                walk.step(best * heat)
            if walk.best < best:
                best, found = walk.best, turn
        for i in range(len(heats) - 1):
            one, two = walks[i : i + 2]
            gain = (one.score - two.score) / best * (1 / heats[i] - 1 / heats[i + 1])
            if gain >= 0 or rng.random() < math.exp(gain):
                walks[i], walks[i + 1] = two, one
    return min(walks, key=lambda walk: walk.best).kept, turn / max(turns, 1)


def _openness(best: float, least: float) -> float:
    """Return 1.0 if the gap to the least possible score is wide, its share of that if narrower."""
    return min(1.0, (best - least) / (best * _WIDE_GAP))


def assigned_of(problem: Problem, tasks: Tasks) -> list[int]:
    """Return the device of each node."""
    assigned = [0] * problem.n
    for device, members in tasks:
        for i in members:
            assigned[i] = device
    return assigned


class _Walk:
    """One walk: the tasks it is at, and the best that it met.

    tails: of each node on each device, the least time from its end to that of the run
    """

    def __init__(
        self,
        scorer: Scorer,
        tasks: Tasks,
        tails: Sequence[Sequence[float]],
        rng: random.Random,
    ) -> None:
        self.scorer, self.problem, self.able = scorer, scorer.problem, scorer.problem.able
        self.tails, self.random = tails, rng.random
        self.assigned = assigned_of(self.problem, tasks)
        self.tasks = self.kept = tasks
        self.score = self.best = scorer.score(self.assigned, tasks)
        self.task_of = [0] * self.problem.n
        self._number()

    def _number(self) -> None:
        task_of = self.task_of
        for t, (_, members) in enumerate(self.tasks):
            for i in members:
                task_of[i] = t

    def step(self, heat: float) -> None:
        """Try one move. How much worse it may be is drawn first, so that it is run no further
        than to where it is too much.
        """
        i = int(self.random() * self.problem.n)
        device = self.able[i][int(self.random() * len(self.able[i]))]
        part = self._part(i)
        moved = self._moved(self.task_of[i], part, device)
        if moved is None:
            return
        most = self.score - heat * math.log(1.0 - self.random())
        assigned = self.assigned
        if assigned[i] != device:
            assigned = assigned.copy()
            for j in part:
                assigned[j] = device
        score = self.scorer.score(assigned, moved, most, self.tails)
        if score > most:
            return
        self.score, self.tasks, self.assigned = score, moved, assigned
        self._number()
        if score < self.best * (1 - 1e-9):
            self.best, self.kept = score, moved

    def _part(self, i: int) -> list[int]:
        """Return node i alone, or with what it needs of its task, or what needs it, or all of it;
        in graph order.
        """
        t, chance = self.task_of[i], self.random()
        members = self.tasks[t][1]
        if len(members) == 1 or chance < _ALL:
            return members
        part = [i]
        if chance < _ALL + _NEEDED:
            problem, task_of = self.problem, self.task_of
            ways = problem.before if chance < _ALL + _NEEDED / 2 else problem.next
            for one in part:
                part += [j for j in ways[one] if task_of[j] == t and j not in part]
            part.sort()
        return part

    def _moved(self, t: int, part: list[int], device: int) -> Tasks | None:
        """Return the tasks with a part of task t on a device: in a task of its own or in another of
        that device; None if that cannot be, or changes nothing.
        """
        tasks, seconds = self.tasks, self.problem.seconds
        if any([seconds[j][device] is None for j in part]):
            return None
        first, last = self._between(part)
        joins = [
            u
            for u in range(max(first, 0), min(last + 1, len(tasks)))
            if tasks[u][0] == device and u != t
        ]
        if joins and (first >= last or self.random() < 0.5):
            return joining(tasks, t, part, joins[int(self.random() * len(joins))])
        if first >= last:
            return None
        at = first + 1 + int(self.random() * (last - first))
        if tasks[t] == (device, part) and t <= at <= t + 1:
            return None
        return apart(tasks, t, part, device, at)

    def _between(self, part: list[int]) -> tuple[int, int]:
        """Return the last task that a part needs, and the first that needs it."""
        before, after, task_of = self.problem.before, self.problem.next, self.task_of
        first, last = -1, len(self.tasks)
        for i in part:
            for j in before[i]:
                if task_of[j] > first and j not in part:
                    first = task_of[j]
            for j in after[i]:
                if task_of[j] < last and j not in part:
                    last = task_of[j]
        return first, last
