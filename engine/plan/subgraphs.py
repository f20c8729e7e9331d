"""Group the nodes of a placement into tasks: one launch each, in an order in which they can run.

There are two options, and every choice gives the same values. `execution`: "sunk" makes one task of
each task of the placement, "interactive" one task of each node. `subgraphs`: "merged" is one graph
whose copies start as early as they can. In "split" the regions run one after another. A region's
input copies come right before it, and the copies of the graph's outputs right after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from trireme.ir.graph import Node
from trireme.placement.placement import Placement
from trireme.support.records import dataclass

Subgraphs = Literal["merged", "split"]
Execution = Literal["sunk", "interactive"]


@dataclass(frozen=True)
class TaskGroup:
    """Nodes that run as one task. `subgraph` numbers regions in plan order, their copies too."""

    device: str
    level: int
    subgraph: int
    nodes: tuple[Node, ...]


def group_nodes(
    placement: Placement, subgraphs: Subgraphs, execution: Execution
) -> list[TaskGroup]:
    """Return the groups in an order in which they can run.

    A region is a task of the placement; its level is the task's number there.
    """
    levels = placement.stage_of
    regions = _regions(placement, levels)
    if subgraphs == "split":
        return _split(placement, regions, execution)
    return _merged(placement, regions, levels, execution)


_Region = tuple[int, str, list[Node]]


def _regions(placement: Placement, levels: Mapping[int, int]) -> list[_Region]:
    """Return (level, device, nodes) of each region, by level, devices in order of appearance."""
    regions: dict[tuple[int, str], list[Node]] = {}
    for node in placement.graph.nodes:
        if node.op != "copy":
            key = levels[node.id], placement.device_of[node.id]
            regions.setdefault(key, []).append(node)
    ordered = sorted(regions.items(), key=lambda region: region[0][0])
    return [(level, device, nodes) for (level, device), nodes in ordered]


def _cut(region: _Region, subgraph: int, execution: Execution) -> list[TaskGroup]:
    level, device, nodes = region
    parts = [nodes] if execution == "sunk" else [[node] for node in nodes]
    return [TaskGroup(device, level, subgraph, tuple(part)) for part in parts]


def _merged(
    placement: Placement,
    regions: Sequence[_Region],
    levels: Mapping[int, int],
    execution: Execution,
) -> list[TaskGroup]:
    """Return the regions' groups; each copy is a group right after its value's maker."""
    graph = placement.graph
    copies: dict[int | None, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "copy":
            producer = graph.producer(node.used[0])
            copies.setdefault(producer.id if producer else None, []).append(node)

    def after(node: Node | None, subgraph: int) -> list[TaskGroup]:
        level = levels[node.id] if node else 0
        mine = copies.get(node.id if node else None, ())
        return [TaskGroup(placement.device_of[copy.id], level, subgraph, (copy,)) for copy in mine]

    ordered = after(None, 0)
    for subgraph, region in enumerate(regions):
        for group in _cut(region, subgraph, execution):
            ordered.append(group)
            ordered += [copy for node in group.nodes for copy in after(node, subgraph)]
    return ordered


def _split(
    placement: Placement, regions: Sequence[_Region], execution: Execution
) -> list[TaskGroup]:
    """Return each region's groups: its input copies, its nodes, the copies of its outputs."""
    graph = placement.graph
    ordered: list[TaskGroup] = []
    copied: set[int] = set()

    def copy(node: Node, level: int, subgraph: int) -> None:
        if node.id not in copied:
            copied.add(node.id)
            ordered.append(TaskGroup(placement.device_of[node.id], level, subgraph, (node,)))

    outputs = set(graph.outputs)
    leaving = {
        node.used[0]: node
        for node in graph.nodes
        if node.op == "copy" and node.outputs[0] in outputs
    }
    for subgraph, region in enumerate(regions):
        level, _, nodes = region
        for node in nodes:
            for maker in map(graph.producer, node.used):
                if maker is not None and maker.op == "copy":
                    copy(maker, level, subgraph)
        ordered += _cut(region, subgraph, execution)
        for value in (out for node in nodes for out in node.outputs):
            if value in leaving:
                copy(leaving[value], level, subgraph)
    return ordered
