"""Lower bounds, copies and launches included: no placement scores below them.

* The critical path is the earliest end of each node on each device, if the node had every resource
  to itself. It is exact where the graph is a chain.
* The forest keeps one input of each node. A dynamic programme over it is exact for prices that sum
  on a chain or a tree. It leaves out the copies on other edges, so it is never above the optimum.
  The launches along one path count in full: a device change on a path always starts a task.
* The load bounds the makespan from below: for any weights of the resources that sum to one, the
  makespan is at least the weighted sum of the loads. The forest bounds that sum. A few subgradient
  steps look for good weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trireme.placement.makespan import loads_s
from trireme.placement.prices import INFINITE, Prices, time_prices
from trireme.placement.problem import CALLER, Problem
from trireme.placement.stages import asap


def critical_s(problem: Problem) -> float:
    """Return the seconds of the longest path, each node where the path to it and it are fastest."""
    heads = from_start(problem)
    ends = [min(row) for row in heads]
    for value, maker in problem.outputs:
        space, row = problem.space, heads[maker]
        ends.append(min(row[e] + problem.copy_s(value, space[e], 0) for e in problem.able[maker]))
    return max(ends, default=0.0)


def from_start(problem: Problem) -> list[list[float]]:
    """Return the earliest that each node can be over on each device."""
    over: list[list[float]] = []
    launch_s = problem.machine.launch_s
    for i in range(problem.n):
        row = []
        for d in problem.devices:
            own = problem.own_s(i, d)
            ready = 0.0 if problem.before[i] else launch_s[d]
            if own < INFINITE:
                for value, maker in problem.inputs[i]:
                    ready = max(ready, _arrival(problem, over, value, maker, d))
                for j in problem.after[i]:
                    ways = (over[j][e] + (launch_s[d] if e != d else 0.0) for e in problem.able[j])
                    ready = max(ready, min(ways))
            row.append(ready + own)
        over.append(row)
    return over


def _arrival(
    problem: Problem, over: Sequence[Sequence[float]], value: int, maker: int, device: int
) -> float:
    """Return the earliest a task on the device can have launched on a value, and be at work."""
    space, launch_s = problem.space, problem.machine.launch_s[device]
    if maker == CALLER:
        return problem.copy_s(value, 0, space[device]) + launch_s
    return min(
        over[maker][e]
        if e == device
        else over[maker][e] + problem.copy_s(value, space[e], space[device]) + launch_s
        for e in problem.able[maker]
    )


def to_end(problem: Problem) -> list[list[float]]:
    """Return the least time from when each node is over on each device to the end of the run."""
    space, launch_s = problem.space, problem.machine.launch_s
    tails = [[0.0] * problem.k for _ in range(problem.n)]
    for i in range(problem.n - 1, -1, -1):
        for d in problem.able[i]:
            longest = 0.0
            for value, reader in problem.readers.get(i, ()):
                if reader == CALLER:
                    longest = max(longest, problem.copy_s(value, space[d], 0))
                    continue
                longest = max(
                    longest,
                    min(
                        problem.own_s(reader, e)
                        + tails[reader][e]
                        + (
                            launch_s[e] + problem.copy_s(value, space[d], space[e])
                            if e != d
                            else 0.0
                        )
                        for e in problem.able[reader]
                    ),
                )
            tails[i][d] = longest
    return tails


def makespan_bound(
    problem: Problem, known_s: float, load: LoadBound | None = None
) -> tuple[float, str]:
    """Return a bound of the makespan, at most that of a known placement, and what says so.

    load: the problem's own, where it is known already
    """
    load = load or LoadBound(Forest(problem))
    best, origin = max((critical_s(problem), "the critical path"), (load.seconds, "the load"))
    return min(best, known_s), origin


class Forest:
    """One input of each node: the largest value it reads that a node made, else a graph input.

    children[maker]: (value, its readers in the forest); CALLER's are the graph inputs'
    trunk: the path of the forest with the most nodes, whose launches count
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        kept: dict[int, dict[int, list[int]]] = {}
        self.roots: list[int] = []
        self.parent = [CALLER] * problem.n
        depth = [1] * problem.n
        for i, inputs in enumerate(problem.inputs):
            if not inputs:
                self.roots.append(i)
                continue
            value, maker = max(inputs, key=lambda e: (e[1] >= 0, problem.nbytes[e[0]], -e[0]))
            kept.setdefault(maker, {}).setdefault(value, []).append(i)
            self.parent[i] = maker
            depth[i] += depth[maker] if maker >= 0 else 0
        for value, maker in problem.outputs:
            kept.setdefault(maker, {}).setdefault(value, []).append(CALLER)
        self.children = {maker: list(values.items()) for maker, values in kept.items()}
        self.trunk: set[int] = set()
        i = max(range(problem.n), key=lambda i: depth[i], default=CALLER)
        while i != CALLER:
            self.trunk.add(i)
            i = self.parent[i]

    def solve(self, prices: Prices) -> tuple[float, tuple[int, ...]]:
        """Return the least price of the forest, and an assignment that has it."""
        return _ForestRun(self, prices).result()


class _ForestRun:
    def __init__(self, forest: Forest, prices: Prices) -> None:
        self.forest, self.problem, self.prices = forest, forest.problem, prices
        self.least: list[list[float]] = [[]] * self.problem.n
        self.subsets: dict[tuple[int, bool], list[list[int]]] = {}
        for i in range(self.problem.n - 1, -1, -1):
            self.least[i] = [
                own + (self.below(i, d)[0] if own < INFINITE else 0.0)
                for d, own in enumerate(prices.own[i])
            ]

    def below(self, maker: int, device: int) -> tuple[float, dict[int, int]]:
        """Return the least price of all under a maker on a device, and where its children go."""
        total, chosen = 0.0, {}
        for value, children in self.forest.children.get(maker, ()):
            price, where = self.value(value, children, device)
            total += price
            chosen.update(where)
        return total, chosen

    def value(
        self, value: int, children: Sequence[int], device: int
    ) -> tuple[float, dict[int, int]]:
        """Return the least price of a value's copies and of all under the children that read it.

        Each set of spaces that the value may be copied to is tried.
        """
        if len(children) == 1 and children[0] != CALLER:
            price, goal = self.single(value, children[0], device)
            return price, {children[0]: goal}
        problem, prices = self.problem, self.prices
        source = problem.space[device] if device >= 0 else 0
        must_leave = CALLER in children and source != 0
        nodes = [c for c in children if c != CALLER]
        rows = [self.ways(c, device) for c in nodes]
        nbytes = problem.nbytes[value]
        best, where = INFINITE, {}
        for extra in self.copy_sets(source, must_leave, len(nodes)):
            total = sum(prices.copy_price(nbytes, source, t) for t in extra)
            going: dict[int, int] = {}
            for c, row in zip(nodes, rows, strict=True):
                price, going[c] = min(
                    (
                        (p, d)
                        for p, d in row
                        if problem.space[d] == source or problem.space[d] in extra
                    ),
                    default=(INFINITE, 0),
                )
                total += price
            if total < best:
                best, where = total, going
        return best, where

    def single(self, value: int, child: int, device: int) -> tuple[float, int]:
        """Return the least price of a value that one node reads, and where that goes.

        The value goes to the space of its reader, so no set of spaces is tried. Ties go as in
        `value`: the maker's space before others, those in order, and the first device of a space.
        """
        space, source = self.problem.space, self.problem.space[device] if device >= 0 else 0
        cheapest: dict[int, tuple[float, int]] = {}
        for price, d in self.ways(child, device):
            known = cheapest.get(space[d])
            if known is None or price < known[0]:
                cheapest[space[d]] = price, d
        best, where = cheapest.pop(source, (INFINITE, 0))
        nbytes = self.problem.nbytes[value]
        for target in sorted(cheapest):
            total = self.prices.copy_price(nbytes, source, target) + cheapest[target][0]
            if total < best:
                best, where = total, cheapest[target][1]
        return best, where

    def ways(self, child: int, device: int) -> list[tuple[float, int]]:
        """Return (price, device) of a child, its launch included where it counts."""
        row, able = self.least[child], self.problem.able[child]
        if child not in self.forest.trunk:
            return [(row[d], d) for d in able]
        launch = self.prices.launch
        return [(row[d] + (launch[d] if d != device else 0.0), d) for d in able]

    def copy_sets(self, source: int, must_leave: bool, readers: int) -> list[list[int]]:
        """Return the sets of other spaces to consider; no more than a reader each is needed."""
        key = (source, must_leave)
        if key not in self.subsets:
            others = [s for s in range(self.problem.spaces) if s != source]
            sets = [
                [s for b, s in enumerate(others) if mask >> b & 1]
                for mask in range(1 << len(others))
            ]
            self.subsets[key] = [s for s in sets if not must_leave or 0 in s]
        most = readers + must_leave
        return [s for s in self.subsets[key] if len(s) <= most]

    def result(self) -> tuple[float, tuple[int, ...]]:
        total, assigned = self.below(CALLER, CALLER)
        for i in self.forest.roots:
            price, assigned[i] = min(self.ways(i, CALLER))
            total += price
        for i in range(self.problem.n):
            assigned.update(self.below(i, assigned[i])[1])
        return total, tuple(assigned[i] for i in range(self.problem.n))


class LoadBound:
    """The load bound, and `balanced`, the assignment whose loads the last weights balance.

    Weights grow with the load that their resource has where it is dear: multiplicative updates,
    whose steps shrink.
    """

    def __init__(self, forest: Forest, visits: int = 4_000) -> None:
        problem = forest.problem
        groups, width = problem.groups, problem.spaces
        ways = [int(s != t) for s in range(width) for t in range(width)]
        weights = [1.0 / groups] * groups + [0.2 / groups * used for used in ways]
        self.seconds = 0.0
        self.balanced: tuple[int, ...] = ()
        for step in range(max(5, min(60, visits // max(problem.n, 1)))):
            norm = sum(weights)
            weights = [w / norm for w in weights]
            prices = time_prices(problem, weights[:groups], weights[groups:])
            bound, self.balanced = forest.solve(prices)
            self.seconds = max(self.seconds, bound)
            loads = loads_s(problem, self.balanced, asap(problem, self.balanced))
            top = max(loads) or 1.0
            rate = 1.5 / math.sqrt(1 + step)
            weights = [w * math.exp(rate * x / top) for w, x in zip(weights, loads, strict=True)]
