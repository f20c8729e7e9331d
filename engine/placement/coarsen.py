"""Contract cheap chains: nodes that no good placement would separate become one.

A pair of nodes in a chain is joined when cutting the chain before or after the pair costs, for
every two devices, hardly more than cutting it in between: the sum of what all joins may cost stays
below a share of a bound. Only nodes that the same devices can run are joined, so that every
placement of the small problem is one of the large.
"""

from __future__ import annotations

from collections.abc import Sequence

from trireme.backend.device import Resident
from trireme.placement.prices import Prices
from trireme.placement.problem import CALLER, Assignment, Problem


class Contraction:
    """A smaller problem, and the way back: groups[j] are the nodes that its node j stands for."""

    def __init__(self, problem: Problem, prices: Prices, allowed: float) -> None:
        self.large = problem
        self.groups = _groups(problem, prices, allowed)
        at = {i: j for j, group in enumerate(self.groups) for i in group}
        seconds = [
            [_sum([problem.seconds[i][d] for i in group]) for d in problem.devices]
            for group in self.groups
        ]
        inputs = [
            [(v, at[m] if m != CALLER else CALLER) for v, m in problem.inputs[group[0]]]
            for group in self.groups
        ]
        after = [[at[j] for j in problem.after[group[0]]] for group in self.groups]
        outputs = [(value, at[maker]) for value, maker in problem.outputs]
        resident = [_kept(problem, group) for group in self.groups] if problem.resident else ()
        self.small = Problem(
            problem.machine, seconds, inputs, after, outputs, problem.nbytes, resident
        )

    def expand(self, assigned: Sequence[int]) -> Assignment:
        """Return the assignment of the large problem that one of the small stands for."""
        wide = [0] * self.large.n
        for group, device in zip(self.groups, assigned, strict=True):
            for i in group:
                wide[i] = device
        return tuple(wide)

    def shrink(self, assigned: Sequence[int]) -> Assignment:
        """Return the assignment of the small problem nearest to one of the large."""
        narrow = []
        for group in self.groups:
            held = [assigned[i] for i in group]
            narrow.append(max(sorted(set(held)), key=held.count))
        return tuple(narrow)


def _kept(problem: Problem, group: Sequence[int]) -> list[Resident]:
    """Return what the nodes of a group keep in the memory of each device."""
    rows = [problem.resident[i] for i in group]
    return [
        Resident(
            sum(row[d].weights for row in rows),
            sum(row[d].code for row in rows),
            tuple(one for row in rows for one in row[d].shared),
        )
        for d in problem.devices
    ]


def _sum(row: Sequence[float | None]) -> float | None:
    known = [seconds for seconds in row if seconds is not None]
    return sum(known) if len(known) == len(row) else None


def _groups(problem: Problem, prices: Prices, allowed: float) -> list[list[int]]:
    """Return the groups in an order in which they can run: by their first node."""
    links = _chain_links(problem)
    each = allowed / max(len(links), 1)
    group_of: dict[int, list[int]] = {}
    own = [list(row) for row in prices.own]
    for i in range(problem.n):
        j = links.get(i)
        if j is not None and _loss(problem, prices, group_of[j], i, own) <= each:
            group = group_of[j]
            first = group[0]
            group.append(i)
            own[first] = [a + b for a, b in zip(own[first], own[i], strict=True)]
        else:
            group = [i]
        group_of[i] = group
    seen: dict[int, list[int]] = {group[0]: group for group in group_of.values()}
    return [seen[first] for first in sorted(seen)]


def _chain_links(problem: Problem) -> dict[int, int]:
    """Return, for each node that reads one value and is alone to read it, who makes it."""
    links = {}
    leaving = {maker for _, maker in problem.outputs}
    for i, inputs in enumerate(problem.inputs):
        if len(inputs) != 1 or problem.before[i] != [inputs[0][1]]:
            continue
        maker = inputs[0][1]
        alone = problem.next[maker] == [i] and maker not in leaving
        if alone and problem.able[maker] == problem.able[i]:
            links[i] = maker
    return links


def _loss(
    problem: Problem, prices: Prices, group: Sequence[int], i: int, own: Sequence[Sequence[float]]
) -> float:
    """Return the most that a cut between the group and node i saves over one around them."""
    between = problem.nbytes[problem.inputs[i][0][0]]
    above, below, space = own[group[0]], own[i], problem.space
    worst = 0.0
    for d in problem.able[i]:
        for e in problem.able[i]:
            if d == e:
                continue
            split = prices.copy_price(between, space[d], space[e])
            before = above[e] - above[d] + _entering(problem, prices, group[0], space[d], space[e])
            after = below[d] - below[e] + _leaving(problem, prices, i, space[e], space[d])
            worst = max(worst, min(before, after) - split)
    return worst


def _entering(problem: Problem, prices: Prices, i: int, old: int, new: int) -> float:
    """Return the most that copies of what node i reads may grow by, if it moves to a space.

    Where others read a value as well, the copy to the old space may have to stay.
    """
    total = 0.0
    for value, maker in problem.inputs[i]:
        alone = sum(v == value for v, _ in problem.reads[maker]) == 1
        nbytes = problem.nbytes[value]
        total += max(
            prices.copy_price(nbytes, source, new)
            - (prices.copy_price(nbytes, source, old) if alone else 0.0)
            for source in _spaces(problem, maker)
        )
    return total


def _leaving(problem: Problem, prices: Prices, i: int, old: int, new: int) -> float:
    """Return the most that copies of what node i makes may grow by, if it moves to a space."""
    readers: dict[int, list[int]] = {}
    for value, reader in problem.reads[i]:
        readers.setdefault(value, []).append(reader)
    total = 0.0
    for value, who in readers.items():
        nbytes = problem.nbytes[value]
        spaces = {space for reader in who for space in _spaces(problem, reader)}
        growth = [
            prices.copy_price(nbytes, new, space) - prices.copy_price(nbytes, old, space)
            for space in spaces
        ]
        dearest = sorted(growth, reverse=True)[: len(who)]
        total += dearest[0] + sum([more for more in dearest[1:] if more > 0])
    return total


def _spaces(problem: Problem, i: int) -> set[int]:
    """Return the memory spaces that a node can be in; the caller is in the host's."""
    return {problem.space[d] for d in problem.able[i]} if i != CALLER else {0}
