"""The parts of a price that depend on several nodes, for message passing (`messages`).

A Pair is an edge whose value has one reader. A Star is a value with several readers, or with one
and the caller. A factor has given parts of its price to its nodes, on each able device of a node.
It keeps the rest. `message(i)` is all that it can give to node i: the least of the rest over the
other nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from trireme.placement.prices import INFINITE, Prices
from trireme.placement.problem import CALLER, Problem

Shares = Sequence[Mapping[tuple[int, int], float]]
"""Of each device's launch, the share that each edge pays if it enters the device; (CALLER, i) is
where node i begins a path."""

Copies = tuple[float, dict[int, list[int]]]
"""Cost of copying a value to some spaces, and the positions in each reader's able devices that find
the value there."""


class Factor(ABC):
    """The common part of all factors.

    members: its nodes, in graph order
    launches: the edges (maker, reader) whose share of launches it charges
    """

    members: tuple[int, ...]
    launches: tuple[tuple[int, int], ...]
    given: dict[int, list[float]]

    @abstractmethod
    def message(self, i: int) -> list[float]:
        """Return the least of what is left with the other nodes, for each device of node i."""

    @abstractmethod
    def charge(self, shares: Shares) -> None:
        """Take other shares of launches."""


class Pair(Factor):
    """An edge from `maker` to `reader`: the value's copy, and the share of a launch."""

    def __init__(
        self, problem: Problem, prices: Prices, edge: tuple[int, int], value: int | None, pays: bool
    ) -> None:
        maker, reader = self.members = edge
        self.launches = (edge,) if pays else ()
        self.prices, self.above, self.below = prices, problem.able[maker], problem.able[reader]
        space = problem.space
        self.copies = [
            [_copy(problem, prices, value, space[d], space[e]) for e in self.below]
            for d in self.above
        ]
        self.price = self.copies
        self.given = {maker: [0.0] * len(self.above), reader: [0.0] * len(self.below)}

    def charge(self, shares: Shares) -> None:
        """Take other shares of launches."""
        for edge in self.launches:
            enter = [(e, self.prices.launch[e] * shares[e].get(edge, 0.0)) for e in self.below]
            self.price = [
                [
                    copy + (more if d != e else 0.0)
                    for copy, (e, more) in zip(row, enter, strict=True)
                ]
                for d, row in zip(self.above, self.copies, strict=True)
            ]

    def message(self, i: int) -> list[float]:
        """Return the least of what is left with the other node, for each device of node i."""
        maker, reader = self.members
        if i == maker:
            theirs = self.given[reader]
            return [min([p - g for p, g in zip(row, theirs, strict=True)]) for row in self.price]
        theirs = self.given[maker]
        rows = [[p - g for p in row] for row, g in zip(self.price, theirs, strict=True)]
        return [min(column) for column in zip(*rows, strict=True)]


class Star(Factor):
    """A value with several readers: one copy for each space that any of them is in.

    For each device of the maker, each set of other spaces that the value may be copied to is tried.
    """

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        maker: int,
        value: int,
        readers: Sequence[int],
        pays: Sequence[int],
    ) -> None:
        self.maker, self.readers = maker, [r for r in readers if r != CALLER]
        self.members = (*([maker] if maker != CALLER else []), *self.readers)
        self.launches = tuple((maker, r) for r in pays)
        self.problem, self.prices = problem, prices
        self.given = {i: [0.0] * len(problem.able[i]) for i in self.members}
        self.above = problem.able[maker] if maker != CALLER else [CALLER]
        must = CALLER in readers
        self.sets = [self._sets(value, problem.space[d] if d >= 0 else 0, must) for d in self.above]
        self.enter = {r: [0.0] * len(problem.able[r]) for r in self.readers}

    def _sets(
        self, value: int, source: int, must: bool
    ) -> list[tuple[float, dict[int, list[int]]]]:
        """Return (price, positions in each reader's devices that it allows) of each set."""
        problem, found = self.problem, []
        others = [s for s in range(problem.spaces) if s != source]
        for mask in range(1 << len(others)):
            copied = [s for b, s in enumerate(others) if mask >> b & 1]
            if must and source != 0 and 0 not in copied:
                continue
            price = sum([_copy(problem, self.prices, value, source, s) for s in copied])
            allowed = {
                r: [
                    at
                    for at, e in enumerate(problem.able[r])
                    if problem.space[e] == source or problem.space[e] in copied
                ]
                for r in self.readers
            }
            if all(allowed.values()):
                found.append((price, allowed))
        return found

    def charge(self, shares: Shares) -> None:
        """Take other shares of launches."""
        able, launch = self.problem.able, self.prices.launch
        for edge in self.launches:
            self.enter[edge[1]] = [launch[e] * shares[e].get(edge, 0.0) for e in able[edge[1]]]

    def message(self, i: int) -> list[float]:
        """Return the least of what is left with the other nodes, for each device of node i."""
        able = self.problem.able
        others = [r for r in self.readers if r != i]
        best = [INFINITE] * len(able[i])
        for at, d in enumerate(self.above):
            kept = 0.0 if self.maker in (i, CALLER) else -self.given[self.maker][at]
            left = {r: self._left(r, d) for r in others}
            totals = []
            for price, allowed in self.sets[at]:
                for r in others:
                    row = left[r]
                    price += min([row[e] for e in allowed[r]])
                totals.append((price + kept, allowed))
            if i == self.maker:
                best[at] = min([total for total, _ in totals])
                continue
            enter = self.enter[i]
            for total, allowed in totals:
                for e in allowed[i]:
                    here = total + (enter[e] if able[i][e] != d else 0.0)
                    if here < best[e]:
                        best[e] = here
        return best

    def _left(self, reader: int, device: int) -> list[float]:
        """Return the launch shares of a reader, its maker on a device, less what it was given."""
        return [
            (enter if e != device else 0.0) - given
            for enter, given, e in zip(
                self.enter[reader], self.given[reader], self.problem.able[reader], strict=True
            )
        ]


def _copy(problem: Problem, prices: Prices, value: int | None, source: int, target: int) -> float:
    if value is None or source == target:
        return 0.0
    return prices.copy_price(problem.nbytes[value], source, target)


def factors_of(problem: Problem, prices: Prices) -> tuple[list[Factor], list[list[float]]]:
    """Return the factors of a problem, and the price of each node on its able devices: its own and
    of those copies that depend on no other node.
    """
    own = [[prices.own[i][d] for d in able] for i, able in enumerate(problem.able)]
    factors: list[Factor] = []
    paid: set[tuple[int, int]] = set()
    for value, maker, readers in problem.values():
        alone = _alone(maker, readers)
        if alone is not None:
            _add_copy(problem, prices, own, value, maker, alone)
            continue
        pays = (
            []
            if maker == CALLER
            else [r for r in readers if r != CALLER and (maker, r) not in paid]
        )
        paid.update((maker, r) for r in pays)
        if len(readers) == 1:
            edge = (maker, readers[0])
            factors.append(Pair(problem, prices, edge, value, bool(pays)))
        else:
            factors.append(Star(problem, prices, maker, value, sorted(readers), pays))
    for i, earlier in enumerate(problem.after):
        for j in sorted({j for j in earlier if (j, i) not in paid}):
            factors.append(Pair(problem, prices, (j, i), None, True))
    return factors, own


def _alone(maker: int, readers: Sequence[int]) -> int | None:
    """Return the one node that a value's copies depend on; None if there are several."""
    nodes = {i for i in (maker, *readers) if i != CALLER}
    return nodes.pop() if len(nodes) == 1 else None


def _add_copy(
    problem: Problem, prices: Prices, own: list[list[float]], value: int, maker: int, i: int
) -> None:
    for at, d in enumerate(problem.able[i]):
        way = (problem.space[d], 0) if maker == i else (0, problem.space[d])
        own[i][at] += _copy(problem, prices, value, *way)
