"""Edit a float graph: constants of one node, a factor between a value and some of its readers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from trireme.ir.graph import Graph, Node, TensorType, Value
from trireme.ir.verify import check
from trireme.support.dtypes import Array, dtype_name


class GraphEdit:
    """Changes of a graph that keep the ids of its nodes and of the values that nodes make."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._values = dict(graph.values)
        self._nodes = {node.id: node for node in graph.nodes}
        self._before: dict[int, list[Node]] = {}
        self._next_value = max(self._values, default=-1) + 1
        self._next_node = max(self._nodes, default=-1) + 1

    def node(self, node: int) -> Node:
        """Return a node as it is now."""
        return self._nodes[node]

    def data(self, node: int, position: int) -> Array | None:
        """Return the constant that a node reads at a position, None where there is none."""
        inputs = self._nodes[node].inputs
        value = inputs[position] if position < len(inputs) else None
        return None if value is None else self._values[value].data

    def set_constant(self, node: int, position: int, data: Array, name: str = "") -> None:
        """Give a node alone a constant; other readers of the old one keep it."""
        known = self._nodes[node]
        inputs = [*known.inputs, *[None] * (position + 1 - len(known.inputs))]
        old = inputs[position]
        name = self._values[old].name if old is not None else name
        inputs[position] = self._constant(name, data)
        self._nodes[node] = replace(known, inputs=tuple(inputs))

    def multiply(self, value: int, factors: Array, readers: Collection[int]) -> None:
        """Make some readers of a value read it times constant factors."""
        first = next(node for node in self._graph.nodes if node.id in readers)
        made = self._new(replace(self._values[value], id=-1, name=f"{self._name(value)}_smooth"))
        constant = self._constant(f"{self._name(value)}_factors", factors)
        node = Node(
            self._next_node,
            "mul",
            (value, constant),
            (made,),
            {"activation": ""},
            "quantiser:smooth",
        )
        self._next_node += 1
        self._before.setdefault(first.id, []).append(node)
        for reader in readers:
            known = self._nodes[reader]
            inputs = tuple(made if i == value else i for i in known.inputs)
            self._nodes[reader] = replace(known, inputs=inputs)

    def finish(self) -> Graph:
        """Return the edited graph, verified, without the constants that nobody reads."""
        nodes = []
        for node in self._graph.nodes:
            nodes += [*self._before.get(node.id, ()), self._nodes[node.id]]
        read = {i for node in nodes for i in (*node.used, *node.outputs)}
        read.update(self._graph.inputs, self._graph.outputs)
        values = {i: value for i, value in self._values.items() if i in read}
        return check(replace(self._graph, nodes=tuple(nodes), values=values))

    def _name(self, value: int) -> str:
        return self._values[value].first_name

    def _constant(self, name: str, data: Array) -> int:
        type = TensorType(data.shape, dtype_name(data.dtype))
        return self._new(Value(-1, name, type, data))

    def _new(self, value: Value) -> int:
        made, self._next_value = self._next_value, self._next_value + 1
        self._values[made] = replace(value, id=made)
        return made
