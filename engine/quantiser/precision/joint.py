"""Choose precision and device of every node together, by sums of prices.

The least of seconds + weight x noise is found node by node in graph order. A state is the modes of
the nodes whose results are still to be read. Of states that agree in these only the best goes on,
so the answer is exact while no more than `WIDTH` states are alive, and a beam search beyond.

Source: dynamic programming over a graph's frontier (Bodlaender, A partial k-arboretum of graphs
with bounded treewidth, 1998)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trireme.ir.graph import Graph
from trireme.quantiser.precision.evaluate import Units
from trireme.quantiser.precision.prices import CALLER, Mode, ModePrices, Precision

WIDTH = 256
"""The most states that go on after a node."""
_SAME_S = 1e-12
"""Differences in cost that differ by fewer seconds are one."""
Fixed = Mapping[int, Precision]
Frontier = tuple[tuple[int, Mode], ...]


@dataclass(frozen=True)
class _ModeStep:
    """The mode of one node, and the steps before it."""

    node: int
    mode: Mode
    before: _ModeStep | None


States = dict[Frontier, tuple[float, float, _ModeStep | None]]
"""The least cost, its seconds, and the steps to it, by the modes that later nodes depend on."""
_START: States = {(): (0.0, 0.0, None)}


@dataclass(frozen=True)
class JointChoice:
    """The nodes that are integers or float16, and the sum of prices, noise not counted."""

    units: Units
    seconds: float


class JointModel:
    """Prices of mixtures of one graph on one machine.

    noise: what a node in a precision adds to the output's noise, by unit; 0 for others
    """

    def __init__(self, prices: ModePrices, noise: Mapping[int, float]) -> None:
        self.graph: Graph = prices.graph
        self._prices, self._noise = prices, noise
        self._dies_at = self._last_readers()
        self._dying: dict[int, set[int]] = {node.id: set() for node in self.graph.nodes}
        for maker, last in self._dies_at.items():
            self._dying[last].add(maker)

    def _last_readers(self) -> dict[int, int]:
        """Return the last node that reads any result of a node, by node; none where none does."""
        makers = {out: node.id for node in self.graph.nodes for out in node.outputs}
        return {
            makers[value]: node.id
            for node in self.graph.nodes
            for value in node.used
            if value in makers
        }

    def best(self, weight: float, fixed: Fixed | None = None) -> JointChoice:
        """Return the choice of least seconds + weight x noise.

        weight: seconds for each unit of noise
        fixed: the precision of some nodes, by id
        """
        states = _START
        for node in self.graph.nodes:
            states = self._after(node.id, states, weight, fixed or {})
        _, seconds, step = min(states.values(), key=lambda state: state[0])
        return JointChoice(_units(step), seconds)

    def around(self, fixed: Fixed) -> JointNeighbours:
        """Return what prices choices that differ little from one.

        fixed: the precision of nodes, by id
        """
        return JointNeighbours(self, fixed)

    def _after(self, node: int, states: States, weight: float, fixed: Fixed) -> States:
        """Return the states after a node, from those before it."""
        modes, dying = self._modes(node, fixed), self._dying[node]
        noise = {mode: weight * self._noise_of(node, mode) for mode in modes}
        lives = node in self._dies_at
        found: States = {}
        for frontier, (cost, seconds, step) in states.items():
            makers = dict(frontier)
            kept = tuple(one for one in frontier if one[0] not in dying)
            for mode, own in modes.items():
                added = own + self._edges(node, makers, mode)
                total = cost + added + noise[mode]
                key = (*kept, (node, mode)) if lives else kept
                if key not in found or total < found[key][0]:
                    found[key] = total, seconds + added, _ModeStep(node, mode, step)
        if len(found) <= WIDTH:
            return found
        return dict(sorted(found.items(), key=_cost)[:WIDTH])

    def _noise_of(self, node: int, mode: Mode) -> float:
        unit = mode.unit(node)
        return 0.0 if unit is None else self._noise.get(unit, 0.0)

    def _modes(self, node: int, fixed: Fixed) -> Mapping[Mode, float]:
        modes = self._prices.modes[node]
        if node not in fixed:
            return modes
        return {mode: s for mode, s in modes.items() if mode.precision == fixed[node]} or modes

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


class JointNeighbours:
    """Prices choices near one whose nodes are fixed, anew only where they differ.

    The states before each node are kept. A choice is priced from the first node that differs to
    where its states are those kept, but for a constant.
    """

    def __init__(self, model: JointModel, fixed: Fixed) -> None:
        self._model, self._fixed = model, {**fixed}
        self._order = [node.id for node in model.graph.nodes]
        self._place = {node: place for place, node in enumerate(self._order)}
        self._states = [_START]
        for node in self._order:
            self._states.append(model._after(node, self._states[-1], 0.0, self._fixed))
        self.seconds = _least(self._states[-1])

    def seconds_of(self, changed: Fixed) -> float:
        """Return the seconds of the choice where some nodes are fixed otherwise."""
        if not changed:
            return self.seconds
        fixed = {**self._fixed, **changed}
        places = sorted(self._place[node] for node in changed)
        states = self._states[places[0]]
        for place in range(places[0], len(self._order)):
            states = self._model._after(self._order[place], states, 0.0, fixed)
            if place >= places[-1]:
                more = _difference(states, self._states[place + 1])
                if more is not None:
                    return self.seconds + more
        return _least(states)


def _least(states: States) -> float:
    return min(cost for cost, _, _ in states.values())


def _difference(states: States, known: States) -> float | None:
    """Return how much more each state costs than in `known`; None where that differs."""
    if states.keys() != known.keys():
        return None
    more = [cost - known[key][0] for key, (cost, _, _) in states.items()]
    low, high = min(more), max(more)
    return low if high - low <= _SAME_S else None


def _cost(item: tuple[Frontier, tuple[float, float, _ModeStep | None]]) -> float:
    return item[1][0]


def _units(step: _ModeStep | None) -> Units:
    found = set()
    while step is not None:
        unit = step.mode.unit(step.node)
        if unit is not None:
            found.add(unit)
        step = step.before
    return frozenset(found)
