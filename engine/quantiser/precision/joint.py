"""Choose precision and device of every node together, by sums of prices.

The least of seconds + weight x noise is found node by node in graph order. A state is the modes of
the nodes whose results are still to be read. Of states that agree in these only the best goes on,
so the answer is exact while no more than `WIDTH` states are alive, and a beam search beyond.

Source: dynamic programming over a graph's frontier (Bodlaender, A partial k-arboretum of graphs
with bounded treewidth, 1998)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trireme.ir.graph import Graph
from trireme.quantiser.precision.prices import CALLER, Mode, ModePrices

WIDTH = 256
"""The most states that go on after a node."""
Frontier = tuple[tuple[int, Mode], ...]


@dataclass(frozen=True)
class _ModeStep:
    """The mode of one node, and the steps before it."""

    node: int
    mode: Mode
    before: _ModeStep | None


@dataclass(frozen=True)
class JointChoice:
    """The nodes that are integers, and the sum of prices, noise not counted."""

    integers: frozenset[int]
    seconds: float


class JointModel:
    """Prices of mixtures of one graph on one machine.

    noise: what a node adds to the output's noise if it is integers, by id; 0 for others
    """

    def __init__(self, prices: ModePrices, noise: Mapping[int, float]) -> None:
        self.graph: Graph = prices.graph
        self._prices, self._noise = prices, noise
        self._dies_at = self._last_readers()

    def _last_readers(self) -> dict[int, int]:
        """Return the last node that reads any result of a node, by node; none where none does."""
        makers = {out: node.id for node in self.graph.nodes for out in node.outputs}
        return {
            makers[value]: node.id
            for node in self.graph.nodes
            for value in node.used
            if value in makers
        }

    def best(self, weight: float, fixed: Mapping[int, bool] | None = None) -> JointChoice:
        """Return the choice of least seconds + weight x noise.

        weight: seconds for each unit of noise
        fixed: whether some nodes are integers, by id
        """
        fixed = fixed or {}
        states: dict[Frontier, tuple[float, float, _ModeStep | None]] = {(): (0.0, 0.0, None)}
        for node in self.graph.nodes:
            modes = self._modes(node.id, fixed)
            dying = self._dying(node.id)
            found: dict[Frontier, tuple[float, float, _ModeStep | None]] = {}
            for frontier, (cost, seconds, step) in states.items():
                makers = dict(frontier)
                kept = tuple(one for one in frontier if one[0] not in dying)
                for mode, own in modes.items():
                    added = own + self._edges(node.id, makers, mode)
                    total = cost + added
                    total += weight * self._noise.get(node.id, 0.0) if mode.integers else 0.0
                    key = kept if node.id not in self._dies_at else (*kept, (node.id, mode))
                    if key not in found or total < found[key][0]:
                        found[key] = total, seconds + added, _ModeStep(node.id, mode, step)
            states = dict(sorted(found.items(), key=_cost)[:WIDTH])
        _, seconds, step = min(states.values(), key=lambda state: state[0])
        return JointChoice(_integers(step), seconds)

    def _modes(self, node: int, fixed: Mapping[int, bool]) -> Mapping[Mode, float]:
        modes = self._prices.modes[node]
        if node not in fixed:
            return modes
        return {mode: s for mode, s in modes.items() if mode.integers == fixed[node]} or modes

    def _edges(self, node: int, makers: Mapping[int, Mode], mode: Mode) -> float:
        """Return the seconds of what a node reads, and of its results that leave the graph."""
        total = 0.0
        known = self.graph.node(node)
        for value in dict.fromkeys(known.used):
            if self.graph.values[value].is_constant:
                continue
            maker = self.graph.producer(value)
            source = CALLER if maker is None else makers[maker.id]
            total += self._prices.edge(value, source, mode)
        for value in known.outputs:
            if self.graph.is_output(value):
                total += self._prices.edge(value, mode, CALLER)
        return total

    def _dying(self, node: int) -> Collection[int]:
        """Return the makers whose results no node after this one reads."""
        return {maker for maker, last in self._dies_at.items() if last == node}


def _cost(item: tuple[Frontier, tuple[float, float, _ModeStep | None]]) -> float:
    return item[1][0]


def _integers(step: _ModeStep | None) -> frozenset[int]:
    found = set()
    while step is not None:
        if step.mode.integers:
            found.add(step.node)
        step = step.before
    return frozenset(found)
