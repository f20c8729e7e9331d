"""A bound of a total price that is near the linear programme's, without a solver: message passing.

The price is a sum of parts (`factors`): nodes, edges and values, and each device's launches. How
often a path enters a device is a count of tasks that it has at least, so each launch may be shared
out over paths: what a device's launch costs is split along a flow of one unit from the first nodes
to the last, and each edge pays its share if it enters the device. Then passes over the nodes, there
and back, move prices between nodes and factors so that the sum of each part's least grows: that sum
is a bound. Each pass also makes an assignment, node by node, which is a good start for a search;
and the paths that enter devices most in it get a larger share of launches.
Source: Kolmogorov, "A new look at reweighted message passing" (2015), SRMP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trireme.placement.bounds import Forest
from trireme.placement.factors import Factor, factors_of
from trireme.placement.prices import Prices
from trireme.placement.problem import CALLER, Assignment, Problem

NEAR = 5e-4
"""A bound this near needs no more passes."""
_VISITS = 6_000
"""Bound of a run: passes times nodes."""


def passes(problem: Problem) -> int:
    """Return how often to pass over a problem: often over a small one."""
    return max(4, min(20, _VISITS // max(problem.n, 1)))


class Messages:
    """Passes over a problem. `bound` is the best yet, `met` the assignments made on the way."""

    def __init__(self, problem: Problem, prices: Prices) -> None:
        self.problem, self.prices = problem, prices
        self.factors, self.fixed = factors_of(problem, prices)
        self.of: list[list[Factor]] = [[] for _ in range(problem.n)]
        for factor in self.factors:
            for i in factor.members:
                self.of[i].append(factor)
        self.later = [[f for f in mine if f.members[-1] != i] for i, mine in enumerate(self.of)]
        self.earlier = [[f for f in mine if f.members[0] != i] for i, mine in enumerate(self.of)]
        self.weight = [
            1.0 / max(len(one), len(two), 1)
            for one, two in zip(self.later, self.earlier, strict=True)
        ]
        self.bound = 0.0
        self.met: list[Assignment] = []
        self.turns = 1
        self._charge([{} for _ in problem.devices])

    def run(self, passes: int, known: Assignment | None = None) -> None:
        """Pass there and back some times. With an assignment known to be good, its busiest paths
        have all shares of launches at first.
        """
        if known is not None:
            self._charge(busiest(self.problem, known))
        for _ in range(passes):
            self.bound = max(self.bound, self._backward())
            assigned = self._forward()
            self.met.append(assigned)
            self.turns += 1
            paths = busiest(self.problem, assigned)
            self._charge(
                [
                    _mixed(old, new, 1.0 / self.turns)
                    for old, new in zip(self.shares, paths, strict=True)
                ]
            )

    def _charge(self, shares: Sequence[Flow]) -> None:
        """Share launches out anew."""
        self.shares = shares
        self.own = [list(row) for row in self.fixed]
        for d, mine in enumerate(shares):
            for (j, i), share in mine.items():
                if j == CALLER and d in self.problem.able[i]:
                    self.own[i][self.problem.able[i].index(d)] += share * self.prices.launch[d]
        for factor in self.factors:
            factor.charge(shares)

    def _forward(self) -> Assignment:
        """Move what can be moved on from each node to later ones; return each node where it is
        cheapest, given those before it.
        """
        at: list[int] = []
        for i in range(self.problem.n):
            for factor in self.earlier[i]:
                factor.given[i] = factor.message(i)
            left = self._left(i)
            at.append(left.index(min(left)))
            self._give(i, left, self.later[i])
        return tuple(self.problem.able[i][a] for i, a in enumerate(at))

    def _backward(self) -> float:
        """Move what can be moved back from each node to earlier ones; return the bound.

        A factor's first node takes all that is left in it, so that the rest is with the nodes.
        """
        total = 0.0
        for i in range(self.problem.n - 1, -1, -1):
            for factor in self.later[i]:
                factor.given[i] = factor.message(i)
            left = self._left(i)
            self._give(i, left, self.earlier[i])
            total += min(left) * (1.0 - self.weight[i] * len(self.earlier[i]))
        return total

    def _left(self, i: int) -> list[float]:
        """Return what a node costs on each able device, with all that it was given."""
        left = self.own[i]
        for factor in self.of[i]:
            left = [a + b for a, b in zip(left, factor.given[i], strict=True)]
        return left

    def _give(self, i: int, left: Sequence[float], to: Sequence[Factor]) -> None:
        part = self.weight[i]
        for factor in to:
            mine = factor.given[i]
            factor.given[i] = [g - part * price for g, price in zip(mine, left, strict=True)]


def price_bound(
    problem: Problem, prices: Prices, known: Assignment, price: float, messages: Messages | None
) -> tuple[float, str]:
    """Return what no placement's price is below, and what says so; price: that of a known one."""
    bound = Forest(problem).solve(prices)[0]
    if price <= bound * (1.0 + NEAR):
        return bound, "the forest"
    messages = messages or Messages(problem, prices)
    if price > messages.bound * (1.0 + NEAR):
        messages.run(passes(problem), known)
    return max((bound, "the forest"), (min(messages.bound, price), "message passing"))


Flow = Mapping[tuple[int, int], float]
"""Of one unit from the first nodes to the last, what takes each edge; (CALLER, i) begins at i."""


def _mixed(one: Flow, two: Flow, part: float) -> Flow:
    """Return a flow with a part of another in it."""
    if not one or not two:
        return one or two
    mixed = {edge: share * (1.0 - part) for edge, share in one.items()}
    for edge, share in two.items():
        mixed[edge] = mixed.get(edge, 0.0) + part * share
    return mixed


def busiest(problem: Problem, assigned: Assignment) -> list[Flow]:
    """Return, for each device, one unit of flow, spread over the paths that enter it most; nothing
    for a device that is not used.
    """
    return [_busiest(problem, assigned, d) if d in assigned else {} for d in problem.devices]


def _busiest(problem: Problem, assigned: Assignment, device: int) -> Flow:
    here = [d == device for d in assigned]
    entries = [0] * problem.n
    for i in range(problem.n - 1, -1, -1):
        for j in problem.next[i]:
            entries[i] = max(entries[i], entries[j] + (here[j] and not here[i]))
    first = [i for i in range(problem.n) if not problem.before[i]]
    most = max(entries[i] + here[i] for i in first)
    flow: dict[tuple[int, int], float] = {}
    amount = [0.0] * problem.n
    ways = [(CALLER, i) for i in first if entries[i] + here[i] == most]
    for i in range(-1, problem.n):
        if i >= 0:
            ways = [
                (i, j)
                for j in problem.next[i]
                if amount[i] and entries[i] == entries[j] + (here[j] and not here[i])
            ]
        for edge in ways:
            flow[edge] = (amount[i] if i >= 0 else 1.0) / len(ways)
            amount[edge[1]] += flow[edge]
    return flow
