"""The search for a good assignment: starts, local search from the best, then annealing.

The search is deterministic, and node visits bound it. So the same graph on the same machine is
always placed alike, and a thousand nodes take about a second.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

from trireme.placement.anneal import anneal
from trireme.placement.bounds import Forest, LoadBound, makespan_bound
from trireme.placement.candidate import Candidate
from trireme.placement.messages import Messages, passes
from trireme.placement.objective import LINEAR, Objective, Scorer
from trireme.placement.problem import Assignment, Problem
from trireme.placement.stages import Tasks, asap
from trireme.placement.starts import starts

_NODE_VISITS = 600_000
"""Bound of a search: scored assignments times nodes; less where there are many nodes to prepare."""
_MANY = 150
_ALL = 2500
"""So many assignments, or fewer, are all tried."""
_ANNEALED, _STEPS = 400, 250
"""Nodes up to which tasks are annealed, and steps of that for each node squared, at most."""
_SETTLED = 10
"""Node visits that settling an assignment counts as, by all rules, for each of its nodes."""
_PROVEN, _SMALL = (1e-6, 5e-4), 60
"""A bound this near ends the search: of problems of up to _SMALL nodes, and of larger ones."""
_STARTS = 4
"""Starts that are improved."""


class Search:
    """One search.

    quick: whether it stops after one local search; never where memory is tight
    best, tasks, value: its answer, and the score of that
    candidates: what was compared; best_using: the best score met with each device in use
    messages: what bounds a price that is a sum; forest, load: what bounds the rest
    """

    def __init__(self, problem: Problem, objective: Objective, quick: bool = False) -> None:
        self.problem, self.objective = problem, objective
        self.scorer = Scorer(problem, objective)
        self.forest = Forest(problem)
        needs_load = objective not in LINEAR and not problem.has_one_place
        self.load = LoadBound(self.forest) if needs_load else None
        self.visits = _NODE_VISITS * _MANY // max(problem.n, _MANY)
        self.quick = quick and not self.scorer.tight
        rows = list(starts(problem, self.scorer.prices, self.forest, self.load))
        self.messages: Messages | None = None
        ranked = self._ranked(start for _, _, start in rows)
        is_open = problem.n > 1 and any(len(able) > 1 for able in problem.able)
        done = not is_open or self._proven(ranked[0])
        if objective in LINEAR and not done:
            self.messages = Messages(problem, self.scorer.prices)
            self.messages.run(passes(problem))
            rows.append(("message passing", "start", self._ranked(self.messages.met)[0]))
            ranked = self._ranked(start for _, _, start in rows)
            done = self._proven(ranked[0])
        candidates = [Candidate(name, kind, self.scorer.estimate(a)) for name, kind, a in rows]
        found = ranked[:1] if done else self._improved(ranked)
        self.best = min(found, key=lambda a: (self.scorer.evaluate(a)[0], a))
        self.value, self.tasks = self.scorer.evaluate(self.best)
        if not done and not self.quick:
            self._anneal()
            self._revise()
        self.candidates = (*candidates, Candidate("search", "search", self.value))
        self.best_using: dict[int, float] = {}
        for assigned, score in self.scorer.seen.items():
            for device in set(assigned):
                self.best_using[device] = min(self.best_using.get(device, score), score)

    def _ranked(self, assignments: Iterable[Assignment]) -> list[Assignment]:
        """Return them without repetition, the best first."""
        return sorted(set(assignments), key=lambda a: (self.scorer.estimate(a), a))

    def _proven(self, best: Assignment) -> bool:
        """Whether a bound proves the best start optimal."""
        value = self.scorer.estimate(best)
        if self.objective == "makespan":
            bound, _ = makespan_bound(self.problem, value, self.load)
        elif self.objective == "throughput":
            bound = self.load.seconds if self.load is not None else 0.0
        else:
            bound = self.forest.solve(self.scorer.prices)[0]
            if self.messages is not None:
                bound = max(bound, self.messages.bound)
        return value <= bound * (1 + _PROVEN[self.problem.n > _SMALL])

    def _improved(self, ranked: list[Assignment]) -> list[Assignment]:
        """Return local optima from the best starts, the last of all from the best of them; every
        assignment where there are few.
        """
        problem, found, begun = self.problem, ranked[:1], self.scorer.visits
        if self.quick:
            return [improve(self.scorer, ranked[0], begun + self.visits // 2)]
        smooth = Scorer(problem, self.objective, smooth=True)
        for number, start in enumerate(ranked[:_STARTS], start=1):
            limit = self.visits * number // 6
            if self.objective == "throughput":
                start = improve(smooth, start, limit)
            found.append(improve(self.scorer, start, begun + limit))
        if math.prod(len(able) for able in problem.able) <= _ALL:
            found += itertools.product(*problem.able)
        best = min(found, key=lambda a: (self.scorer.estimate(a), a))
        found.append(improve(self.scorer, best, self.scorer.visits + self.visits // 3))
        return found

    def _anneal(self) -> None:
        """Anneal the best placement's tasks, unless there are too many nodes."""
        problem = self.problem
        if problem.n > _ANNEALED:
            return
        least = self.load.seconds if self.load is not None else 0.0
        if self.messages is not None:
            least = self.messages.bound
        if self.objective == "makespan":
            least, _ = makespan_bound(problem, self.value, self.load)
        steps = min(self.visits * 3 // 2, _STEPS * problem.n**3)
        is_slow = self.scorer.tight or self.objective != "makespan"
        visits = steps // (3 if is_slow else 1)
        self._take(*anneal(self.scorer, self.tasks, visits, least))

    def _take(self, value: float, assigned: Assignment, tasks: Tasks) -> bool:
        """Keep a placement if it is better than the best; return whether it is."""
        is_better = value < self.value * (1 - 1e-9)
        if is_better:
            self.value, self.best, self.tasks = value, assigned, tasks
        return is_better

    def _revise(self) -> None:
        """Take any better placement that `explain` would list, one node elsewhere, until there is
        none. Nodes at a border come first, because in a large graph not all are tried.
        """
        left, found = self.visits // 6, True
        while found:
            found = False
            for i, device in _alternatives(self.problem, self.best):
                assigned = _changed(self.problem, self.best, ((i,), device))
                left -= _SETTLED * self.problem.n
                if left < 0:
                    return
                score, tasks = self.scorer.evaluate(assigned)
                if self._take(score, assigned, tasks):
                    found = True
                    break


def _alternatives(problem: Problem, assigned: Assignment) -> list[tuple[int, int]]:
    """Return (node, other device), those where a neighbour of the node is first."""
    ways = [(i, d) for i, able in enumerate(problem.able) for d in able if d != assigned[i]]
    near = problem.before, problem.next
    return sorted(
        ways, key=lambda way: way[1] not in {assigned[j] for e in near for j in e[way[0]]}
    )


def improve(scorer: Scorer, start: Assignment, visits: int) -> Assignment:
    """Return a local optimum: none of the moves makes it better; or the best by then."""
    best, improved = start, True
    while improved and scorer.visits < visits:
        improved = False
        for change in _moves(scorer.problem, best):
            moved = _changed(scorer.problem, best, change)
            if moved != best and scorer.estimate(moved) < scorer.estimate(best) * (1 - 1e-9):
                best, improved = moved, True
            if scorer.visits >= visits:
                break
    return best


Change = tuple[tuple[int, ...], int]
"""A set of nodes, and the device that they go to where they can."""


def _changed(problem: Problem, assigned: Assignment, change: Change) -> Assignment:
    (nodes, device), able, moved = change, problem.able, list(assigned)
    for i in nodes:
        if device in able[i]:
            moved[i] = device
    return tuple(moved)


def _moves(problem: Problem, assigned: Assignment) -> Iterator[Change]:
    """Yield changes, each once, the boldest first."""
    seen: set[Change] = set()
    for nodes in _sets(problem, assigned):
        for device in problem.devices:
            change = (nodes, device)
            if change in seen:
                continue
            if any(assigned[i] != device and device in problem.able[i] for i in nodes):
                seen.add(change)
                yield change


def _sets(problem: Problem, assigned: Assignment) -> Iterator[tuple[int, ...]]:
    """Yield tasks, sets at the border of each task, and single nodes."""
    tasks = asap(problem, assigned)
    for _, members in tasks:
        yield tuple(members)
    task_of = [0] * problem.n
    for t, (_, members) in enumerate(tasks):
        for i in members:
            task_of[i] = t
    for i in range(problem.n):
        if any(task_of[j] != task_of[i] for j in problem.before[i]):
            yield from _grown(task_of, i, problem.next)
        if any(task_of[j] != task_of[i] for j in problem.next[i]):
            yield from _grown(task_of, i, problem.before)
    for i in range(problem.n):
        yield (i,)


def _grown(task_of: list[int], start: int, ways: list[list[int]]) -> Iterator[tuple[int, ...]]:
    """Yield growing sets of a task's nodes from one at its border inwards: 1, 2, 4, ... of them."""
    grown, size = [start], 1
    seen = {start}
    for i in grown:
        if len(grown) > 64:
            break
        for j in ways[i]:
            if j not in seen and task_of[j] == task_of[start]:
                seen.add(j)
                grown.append(j)
        while size <= len(grown):
            yield tuple(sorted(grown[:size]))
            size *= 2
    yield tuple(sorted(grown))
