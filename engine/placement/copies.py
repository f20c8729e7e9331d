"""Copy nodes: a value that is read in a memory space other than its own crosses once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trireme.backend.device import HOST, DeviceSpec
from trireme.backend.links import link_name
from trireme.ir.graph import Graph, Node, Value


def insert_copies(
    graph: Graph, assigned: Mapping[int, str], specs: Mapping[str, DeviceSpec]
) -> tuple[Graph, dict[int, str], dict[int, str]]:
    """Return the graph with copy nodes, the device of every node, the memory of every value.

    `assigned` gives a device for every node id. Inputs and outputs of the graph are host memory's.
    """
    splitter = _CopyInserter(graph, specs)
    for node in graph.nodes:
        splitter.add(node, assigned[node.id])
    return splitter.finish()


class _CopyInserter:
    def __init__(self, graph: Graph, specs: Mapping[str, DeviceSpec]) -> None:
        self.graph, self.specs = graph, specs
        self.values: dict[int, Value] = dict(graph.values)
        self.nodes: list[Node] = []
        self.device_of: dict[int, str] = {}
        self.memory_of: dict[int, str] = dict.fromkeys(graph.inputs, HOST)
        self.next_node = max((node.id for node in graph.nodes), default=-1) + 1
        self.copied: dict[tuple[int, str], int] = {}

    def add(self, node: Node, device: str) -> None:
        memory = self.specs[device].memory
        inputs = tuple(None if i is None else self.value_in(i, memory) for i in node.inputs)
        self.nodes.append(replace(node, inputs=inputs))
        self.device_of[node.id] = device
        self.memory_of.update(dict.fromkeys(node.outputs, memory))

    def value_in(self, value: int, memory: str) -> int:
        """Return the value, or the copy of it, that lives in the memory space."""
        if self.values[value].is_constant or self.memory_of[value] == memory:
            return value
        if (value, memory) not in self.copied:
            self.copied[value, memory] = self._copy(value, memory)
        return self.copied[value, memory]

    def _copy(self, value: int, memory: str) -> int:
        original = self.values[value]
        made = max(self.values) + 1
        self.values[made] = Value(made, f"{original.name}@{memory}", original.type)
        node = Node(self.next_node, "copy", (value,), (made,), {"to": memory}, source="place")
        self.next_node += 1
        self.nodes.append(node)
        self.device_of[node.id] = link_name(self.memory_of[value], memory)
        self.memory_of[made] = memory
        return made

    def finish(self) -> tuple[Graph, dict[int, str], dict[int, str]]:
        outputs: Sequence[int] = [self.value_in(value, HOST) for value in self.graph.outputs]
        for value, out in zip(self.graph.outputs, outputs, strict=True):
            if value != out:
                copied = self.values[out]
                self.values[out] = replace(copied, name=self.graph.values[value].name)
        graph = replace(
            self.graph, nodes=tuple(self.nodes), values=self.values, outputs=tuple(outputs)
        )
        return graph, self.device_of, self.memory_of
