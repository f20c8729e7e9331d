"""Least cuts: move any set of nodes to one device at once, the best set there is.

With two devices an assignment of least node and copy prices is a minimum cut. With more, one device
at a time may take whatever it gains by (an expansion move), until none gains. Launches do not sum
over nodes, so each device change on a value is charged a share of one.
Source: Boykov, Veksler, Zabih, "Fast approximate energy minimization via graph cuts" (2001);
Dinic's algorithm for the cut
"""

from __future__ import annotations

from collections.abc import Sequence

from trireme.placement.prices import INFINITE, Prices
from trireme.placement.problem import Assignment, Problem


class Cut:
    """A minimum cut between "keep" (the source's side) and "switch" (the sink's)."""

    def __init__(self, n: int) -> None:
        self.keep, self.switch = n, n + 1
        self.arcs: list[list[int]] = [[] for _ in range(n + 2)]
        self.head: list[int] = []
        self.left: list[float] = []

    def add(self) -> int:
        """Return a new vertex."""
        self.arcs.append([])
        return len(self.arcs) - 1

    def arc(self, one: int, two: int, price: float) -> None:
        """Charge the price if `one` keeps and `two` switches."""
        if price <= 0 or one == two:
            return
        self.arcs[one].append(len(self.head))
        self.arcs[two].append(len(self.head) + 1)
        self.head += [two, one]
        self.left += [price, 0.0]

    def switching(self) -> list[bool]:
        """Return which vertices switch in a least cut."""
        while True:
            level = self._levels()
            if level[self.switch] < 0:
                return [depth < 0 for depth in level]
            self._block(level)

    def _levels(self) -> list[int]:
        level = [-1] * len(self.arcs)
        level[self.keep] = 0
        queue = [self.keep]
        for vertex in queue:
            for a in self.arcs[vertex]:
                if self.left[a] > 1e-12 and level[self.head[a]] < 0:
                    level[self.head[a]] = level[vertex] + 1
                    queue.append(self.head[a])
        return level

    def _block(self, level: Sequence[int]) -> None:
        """Push flow along shortest ways until every one of them is full."""
        arcs, head, left = self.arcs, self.head, self.left
        at = [0] * len(arcs)
        path: list[int] = []
        vertex = self.keep
        while True:
            if vertex == self.switch:
                flow = min(left[a] for a in path)
                full = next(p for p, a in enumerate(path) if left[a] <= flow)
                for a in path:
                    left[a] -= flow
                    left[a ^ 1] += flow
                vertex = head[path[full] ^ 1]
                del path[full:]
                continue
            mine = arcs[vertex]
            while at[vertex] < len(mine):
                a = mine[at[vertex]]
                if left[a] > 1e-12 and level[head[a]] == level[vertex] + 1:
                    break
                at[vertex] += 1
            if at[vertex] < len(mine):
                path.append(mine[at[vertex]])
                vertex = head[path[-1]]
            elif path:
                vertex = head[path.pop() ^ 1]
                at[vertex] += 1
            else:
                return


def expand(
    problem: Problem, prices: Prices, start: Assignment, launch_share: float, rounds: int = 3
) -> Assignment:
    """Return an assignment that no expansion move makes cheaper (of node, copy and launch-share
    prices), or that of the last round.
    """
    assigned = start
    scale = max((p for row in prices.own for p in row if p < INFINITE), default=0.0) or 1.0
    stale = 0
    for turn in range(rounds * problem.k):
        moved = _expansion(problem, prices, assigned, turn % problem.k, launch_share, scale)
        stale = 0 if moved != assigned else stale + 1
        assigned = moved
        if stale >= problem.k or (problem.k == 2 and turn == 0):
            break
    return assigned


def _expansion(
    problem: Problem,
    prices: Prices,
    assigned: Assignment,
    target: int,
    share: float,
    scale: float,
) -> Assignment:
    cut = Cut(problem.n)
    never = 1e9
    for i, row in enumerate(prices.own):
        cut.arc(cut.keep, i, min(row[target] / scale, never))
        cut.arc(i, cut.switch, row[assigned[i]] / scale if assigned[i] != target else never)
    for use in problem.values():
        _price_value(cut, problem, prices, assigned, target, use, share, scale)
    side = cut.switching()
    return tuple(target if side[i] else d for i, d in enumerate(assigned))


def _price_value(
    cut: Cut,
    problem: Problem,
    prices: Prices,
    assigned: Assignment,
    target: int,
    use: tuple[int, int, list[int]],
    share: float,
    scale: float,
) -> None:
    """Add what a value's crossings cost under each choice of its maker and readers.

    The caller (graph inputs and outputs) is a device of its own, -1, that never switches.
    """
    value, maker, readers = use
    nbytes = problem.nbytes[value]

    def crossing(source: int, to: int) -> float:
        if source == to:
            return 0.0
        one = problem.space[source] if source >= 0 else 0
        two = problem.space[to] if to >= 0 else 0
        launch = share * prices.launch[to] if to >= 0 else 0.0
        return (prices.copy_price(nbytes, one, two) + launch) / scale

    source = assigned[maker] if maker >= 0 else -1
    maker_at = maker if maker >= 0 else cut.keep
    groups: dict[int, list[int]] = {}
    for reader in readers:
        groups.setdefault(assigned[reader] if reader >= 0 else -1, []).append(reader)
    for there, members in groups.items():
        stays, moves = crossing(source, there), crossing(target, there)
        if there == target:
            cut.arc(maker_at, cut.switch, crossing(source, target))
        elif there < 0:
            cut.arc(maker_at, cut.switch, stays)
            cut.arc(cut.keep, maker_at, moves)
        else:
            keeps = _any_keeps(cut, members, min(stays, moves) if maker >= 0 else stays)
            cut.arc(keeps, maker_at, moves - stays)
    movable = [
        r for there, members in groups.items() if there != target for r in members if there >= 0
    ]
    if movable and target not in groups and source != target:
        switches = cut.add()
        cut.arc(maker_at, switches, crossing(source, target))
        for reader in movable:
            cut.arc(switches, reader, 1e9)


def _any_keeps(cut: Cut, members: Sequence[int], price: float) -> int:
    """Charge the price if any member keeps; return the vertex that keeps if one does."""
    vertex = cut.add()
    for reader in members:
        cut.arc(reader, vertex, 1e9)
    cut.arc(vertex, cut.switch, price)
    return vertex
