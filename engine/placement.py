"""What `place` answers: a device for every node, copy nodes where a value crosses, and the reasons.

After this stage a value lives in exactly one memory space; a tensor crosses a pair of spaces once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trireme.cost import Estimate, Links
from trireme.device import HOST, DeviceSpec
from trireme.graph import Graph, Node, Value


@dataclass(frozen=True)
class Choice:
    """Where one node goes, what it would take anywhere, and why some devices refuse it."""

    device: str
    estimates: Mapping[str, Estimate]
    refusals: Mapping[str, str]
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """A graph over devices.

    source: the graph as it was placed; its node ids are the keys of `choices`
    graph: the same nodes with the same ids, and the copy nodes (ids above all others)
    device_of: node id of `graph` -> device; a copy's is "from>to", two memory spaces
    memory_of: value id of `graph` -> the memory space it lives in (constants are everywhere)
    makespan_s: predicted seconds of a run in virtual time; lower_bound_s: no placement is faster
    candidates: predicted seconds of the placements compared ("cpu only", "search", ...)
    unused: for each device that got no node, why
    """

    source: Graph
    graph: Graph
    specs: Mapping[str, DeviceSpec]
    links: Links
    launch_s: Mapping[str, float]
    choices: Mapping[int, Choice]
    device_of: Mapping[int, str]
    memory_of: Mapping[int, str]
    makespan_s: float
    lower_bound_s: float
    candidates: Mapping[str, float]
    unused: Mapping[str, str]

    @property
    def gap(self) -> float:
        """How far the prediction may be above the best possible: 0.0 is proven optimal."""
        return self.makespan_s / self.lower_bound_s - 1 if self.lower_bound_s else 0.0

    def nodes_on(self, device: str) -> list[Node]:
        """Return the nodes of the source graph that run on a device."""
        return [node for node in self.source.nodes if self.device_of[node.id] == device]

    def copies(self) -> list[Node]:
        """Return the copy nodes, in graph order."""
        return [node for node in self.graph.nodes if node.op == "copy"]

    def to_json(self) -> dict[str, Any]:
        """Return the placement as plain data."""
        return {
            "makespan_s": self.makespan_s,
            "lower_bound_s": self.lower_bound_s,
            "gap": self.gap,
            "candidates": dict(self.candidates),
            "unused": dict(self.unused),
            "nodes": [self._node_json(node) for node in self.source.nodes],
            "copies": [self._copy_json(node) for node in self.copies()],
        }

    def _node_json(self, node: Node) -> dict[str, Any]:
        choice = self.choices[node.id]
        return {
            "id": node.id,
            "op": node.op,
            "source": node.source,
            "device": choice.device,
            "estimates_s": {name: e.seconds for name, e in choice.estimates.items()},
            "estimate_source": {name: e.source for name, e in choice.estimates.items()},
            "refusals": dict(choice.refusals),
            "notes": dict(choice.notes),
        }

    def _copy_json(self, node: Node) -> dict[str, Any]:
        source, target = self.device_of[node.id].split(">")
        nbytes = self.graph.type(node.outputs[0]).nbytes
        return {
            "id": node.id,
            "value": self.graph.values[node.used[0]].name,
            "from": source,
            "to": target,
            "bytes": nbytes,
            "estimate_s": self.links.seconds(nbytes, source, target),
        }

    def __str__(self) -> str:
        counts = {name: len(self.nodes_on(name)) for name in self.specs}
        where = ", ".join(f"{name} {count}" for name, count in counts.items())
        lines = [
            f"placement of {self.source.name!r}: {where} nodes, {len(self.copies())} copies",
            f"  predicted {_time(self.makespan_s)}, lower bound {_time(self.lower_bound_s)}"
            f" (gap {self.gap:.0%})",
        ]
        lines += [f"  {name}: {_time(s)}" for name, s in self.candidates.items()]
        lines += [f"  {name} has nothing to do: {why}" for name, why in self.unused.items()]
        return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def crosses(specs: Mapping[str, DeviceSpec], source: str | None, target: str) -> bool:
    """Whether going from one device (None: a graph input in host memory) to another is a step.

    Between devices it always is, even where they share memory, so that the level of a region rises
    along every edge between regions and merging by level cannot make a cycle.
    """
    if source is None:
        return specs[target].memory != HOST
    return source != target


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
        self.device_of[node.id] = f"{self.memory_of[value]}>{memory}"
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
