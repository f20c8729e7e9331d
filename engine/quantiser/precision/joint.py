"""Price a choice of precisions, each node on its best device, by sums of prices.

The least seconds are found node by node in graph order. A state is the modes of the nodes whose
results are still to be read. Of states that agree in these only the best goes on, so the answer is
exact while no more than `WIDTH` states are alive, and a beam search beyond.

Source: dynamic programming over a graph's frontier (Bodlaender, A partial k-arboretum of graphs
with bounded treewidth, 1998)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trireme.ir.graph import Graph, Node
from trireme.quantiser.precision.prices import CALLER, Mode, ModePrices, Precision

WIDTH = 256
"""The most states that go on after a node."""
Fixed = Mapping[int, Precision]
Frontier = tuple[tuple[int, Mode], ...]
States = dict[Frontier, float]
"""Seconds by the modes that later nodes depend on: the least from the start, or to the end."""
_START: States = {(): 0.0}


class JointModel:
    """Prices of mixtures of one graph on one machine."""

    def __init__(self, prices: ModePrices) -> None:
        self.graph: Graph = prices.graph
        self._prices = prices
        self._dies_at = self._last_readers()
        self._dying: dict[int, set[int]] = {node.id: set() for node in self.graph.nodes}
        for maker, last in self._dies_at.items():
            self._dying[last].add(maker)
        self._reads = {node.id: self._read(node) for node in self.graph.nodes}
        self._added: dict[tuple[int, Frontier, Precision | None], list[tuple[Mode, float]]] = {}

    def _read(self, node: Node) -> list[tuple[int, int | None]]:
        """Return what a node reads but constants, and the nodes that make it; None: the caller."""
        values = [v for v in dict.fromkeys(node.used) if not self.graph.values[v].is_constant]
        makers = (self.graph.producer(value) for value in values)
        return [(v, maker.id if maker else None) for v, maker in zip(values, makers, strict=True)]

    def _last_readers(self) -> dict[int, int]:
        """Return the last node that reads any result of a node, by node; none where none does."""
        makers = {out: node.id for node in self.graph.nodes for out in node.outputs}
        return {
            makers[value]: node.id
            for node in self.graph.nodes
            for value in node.used
            if value in makers
        }

    def around(self, fixed: Fixed) -> JointNeighbours:
        """Return what prices choices that differ little from one.

        fixed: the precision of nodes, by id
        """
        return JointNeighbours(self, fixed)

    def _after(self, node: int, states: States, fixed: Fixed) -> States:
        """Return the states after a node, from those before it."""
        found: States = {}
        for frontier, seconds in states.items():
            for added, key in self._ways_on(node, frontier, fixed):
                total = seconds + added
                if key not in found or total < found[key]:
                    found[key] = total
        if len(found) <= WIDTH:
            return found
        return dict(sorted(found.items(), key=lambda item: item[1])[:WIDTH])

    def _before(self, node: int, states: Iterable[Frontier], rest: States, fixed: Fixed) -> States:
        """Return the least seconds from states before a node to the end, of those after it."""
        found: States = {}
        for frontier in states:
            ways = self._ways_on(node, frontier, fixed)
            seconds = [added + rest[key] for added, key in ways if key in rest]
            if seconds:
                found[frontier] = min(seconds)
        return found

    def _ways_on(self, node: int, frontier: Frontier, fixed: Fixed) -> list[tuple[float, Frontier]]:
        """Return the seconds that a node adds to a state, and the state after it, by mode."""
        read = {maker for _, maker in self._reads[node]}
        makers = tuple(one for one in frontier if one[0] in read)
        precision = fixed.get(node)
        if (node, makers, precision) not in self._added:
            known = dict(makers)
            self._added[node, makers, precision] = [
                (mode, own + self._edges(node, known, mode))
                for mode, own in self._modes(node, fixed).items()
            ]
        kept = tuple(one for one in frontier if one[0] not in self._dying[node])
        lives = node in self._dies_at
        return [
            (added, (*kept, (node, mode)) if lives else kept)
            for mode, added in self._added[node, makers, precision]
        ]

    def _modes(self, node: int, fixed: Fixed) -> Mapping[Mode, float]:
        modes = self._prices.modes[node]
        if node not in fixed:
            return modes
        return {mode: s for mode, s in modes.items() if mode.precision == fixed[node]} or modes

    def _edges(self, node: int, makers: Mapping[int, Mode], mode: Mode) -> float:
        """Return the seconds of what a node reads, and of its results that leave the graph."""
        total = 0.0
        for value, maker in self._reads[node]:
            source = CALLER if maker is None else makers[maker]
            total += self._prices.edge(value, source, mode)
        for value in self.graph.node(node).outputs:
            if self.graph.is_output(value):
                total += self._prices.edge(value, mode, CALLER)
        return total


class JointNeighbours:
    """Prices choices near one whose nodes are fixed, anew only where they differ.

    The states before each node are kept, with the seconds from each to the end. A choice is priced
    from the first node that differs to the last one that reads a node that differs.
    """

    def __init__(self, model: JointModel, fixed: Fixed) -> None:
        self._model, self._fixed = model, {**fixed}
        self._order = [node.id for node in model.graph.nodes]
        self._place = {node: place for place, node in enumerate(self._order)}
        self._states = [_START]
        for node in self._order:
            self._states.append(model._after(node, self._states[-1], self._fixed))
        self._rest: list[States] = [dict.fromkeys(self._states[-1], 0.0)]
        for node, states in zip(reversed(self._order), self._states[-2::-1], strict=True):
            self._rest.append(model._before(node, states, self._rest[-1], self._fixed))
        self._rest.reverse()
        self.seconds = min(self._states[-1].values())

    def seconds_of(self, changed: Fixed) -> float:
        """Return the seconds of the choice where some nodes are fixed otherwise.

        Nodes none of which reads another count apart, as if the devices of what is between them
        did not depend on both.
        """
        if not changed:
            return self.seconds
        spans = self._spans(changed)
        return self.seconds + sum(self._more(nodes, changed, end) for nodes, end in spans)

    def _spans(self, changed: Fixed) -> list[tuple[list[int], int]]:
        """Return nodes that differ in groups, each with the place of the last reader of any."""
        spans: list[tuple[list[int], int]] = []
        for node in sorted(changed, key=self._place.__getitem__):
            end = self._place[self._model._dies_at.get(node, node)]
            if spans and self._place[node] <= spans[-1][1]:
                nodes, before = spans[-1]
                spans[-1] = [*nodes, node], max(end, before)
            else:
                spans.append(([node], end))
        return spans

    def _more(self, nodes: list[int], changed: Fixed, end: int) -> float:
        """Return how many more seconds some nodes take, fixed otherwise."""
        fixed = {**self._fixed, **{node: changed[node] for node in nodes}}
        place = self._place[nodes[0]]
        states = self._states[place]
        while place < len(self._order):
            states = self._model._after(self._order[place], states, fixed)
            place += 1
            if place > end:
                rest = self._rest[place]
                known = [seconds + rest[key] for key, seconds in states.items() if key in rest]
                if known:
                    return min(known) - self.seconds
        return min(states.values()) - self.seconds
