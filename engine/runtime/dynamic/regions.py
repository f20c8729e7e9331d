"""Cut an open graph where a few nodes keep it from one program for every shape.

A node may have no kernel whose sizes are known when it runs, or a result whose shape depends on
values; it may be control flow, or work on a state. The nodes before it are a region with one
program for every shape, and so are those after it. The nodes between are compiled for each set of
shapes, or the host runs them. So a new shape costs a load of these few nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trireme.backend.capabilities import PolymorphicDevice
from trireme.ir.any_rank import has_late_rank
from trireme.ir.contents import decided_by_shapes
from trireme.ir.effects import uses_state
from trireme.ir.graph import UNKNOWN, Graph, Node
from trireme.ir.op import get_op
from trireme.runtime.dynamic.stage import part_of

Served = Callable[[Graph], frozenset[int]]
"""Gives the nodes of a graph that may be in a program for every shape."""


def served_nodes(graph: Graph, devices: Mapping[str, object]) -> frozenset[int]:
    """Return the ids of the nodes that a device serves at every shape."""
    device = next((one for one in devices.values() if isinstance(one, PolymorphicDevice)), None)
    if device is None:
        return frozenset()
    return frozenset(
        node.id
        for node in graph.nodes
        if _is_plain(graph, node) and device.polymorphic_reason(graph, node) is None
    )


def _is_plain(graph: Graph, node: Node) -> bool:
    op = get_op(node.op)
    values = [graph.values[value] for value in (*node.used, *node.outputs)]
    return not (
        uses_state(node)
        or op.has_body
        or op.effect
        or node.after
        or node.pin is not None
        or has_late_rank(values)
        or any(UNKNOWN in value.shape or value.dtype == "string" for value in values)
    )


def regions(graph: Graph, served: frozenset[int], join_first: bool = False) -> tuple[Graph, ...]:
    """Return a graph in parts that run in order; none where no node is served, or every one is.

    The first part has the nodes that one program serves, before the first node that none does. The
    second part has such nodes, as far as they do not wait for later ones that are served. All
    others are the third part. What shapes decide is computed in every part that reads it.

    join_first: put the first two parts together, and return none if nothing is left
    """
    waits = _Waits(graph)
    first: list[Node] = []
    between: list[Node] = []
    rest: list[Node] = []
    for node in graph.nodes:
        if node.outputs[0] in waits.decided:
            continue
        if waits.on(node, rest) or (node.id in served and waits.on(node, between)):
            rest.append(node)
        elif node.id in served:
            first.append(node)
        else:
            between.append(node)
    if join_first:
        return waits.parts([[*first, *between], rest]) if rest else ()
    if not first or not between:
        return ()
    return waits.parts([first, between, rest] if rest else [first, between])


class _Waits:
    """What nodes of a graph wait for, when shapes decide some values."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self.decided = graph, decided_by_shapes(graph)
        self._sources: dict[int, frozenset[int]] = {}
        for node in graph.nodes:
            if node.outputs[0] in self.decided:
                read = frozenset().union(*(self._source(value) for value in node.used))
                self._sources |= dict.fromkeys(node.outputs, read)

    def _source(self, value: int) -> frozenset[int]:
        """Return the values of a run that a value is, or whose shapes decide it."""
        if self._graph.values[value].is_constant:
            return frozenset()
        return self._sources.get(value, frozenset({value}))

    def on(self, node: Node, others: Sequence[Node]) -> bool:
        """Whether a node waits for one of others."""
        made = {out for other in others for out in other.outputs}
        ids = {other.id for other in others}
        reads = frozenset().union(*(self._source(value) for value in node.used))
        return not made.isdisjoint(reads) or not ids.isdisjoint(node.after)

    def parts(self, groups: Sequence[Sequence[Node]]) -> tuple[Graph, ...]:
        """Return each group of nodes as a graph, with the nodes that compute what shapes decide."""
        graph = self._graph
        whole = [self._with_decided(group) for group in groups]
        outs = [value for value in graph.outputs if value in self.decided]
        if outs:  # the last part makes them
            makers = [node for node in graph.nodes if set(outs).intersection(node.outputs)]
            whole[-1] = self._with_decided([*groups[-1], *makers])
        made: list[Graph] = []
        for k, nodes in enumerate(whole):
            later = {value for others in whole[k + 1 :] for node in others for value in node.used}
            wanted = later | set(graph.outputs)
            own = [out for node in nodes for out in node.outputs]
            decided = self.decided if k + 1 < len(whole) else frozenset[int]()
            results = [out for out in own if out in wanted and out not in decided]
            made.append(part_of(graph, f"region {k}", nodes, results))
        return tuple(made)

    def _with_decided(self, nodes: Sequence[Node]) -> list[Node]:
        """Return nodes in graph order, with those that compute what shapes decide for them."""
        needed = {value for node in nodes for value in node.used}
        ids = {node.id for node in nodes}
        for node in reversed(self._graph.nodes):
            if node.outputs[0] in self.decided and not needed.isdisjoint(node.outputs):
                ids.add(node.id)
                needed.update(node.used)
        return [node for node in self._graph.nodes if node.id in ids]
