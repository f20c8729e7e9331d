"""Select nodes by name: a node's first output, FIRST..LAST, or `*` for all.

`--shard` and `--pin` take such names, and lockfiles hold those of single nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from trireme.ir.graph import Graph, node_names
from trireme.support.errors import PlacementError

_OP = "op:"


def pinned(graph: Graph, pins: Mapping[int, str] | None) -> Graph:
    """Return the graph with further nodes pinned; pins: node id -> device."""
    if not pins:
        return graph
    nodes = (replace(node, pin=pins.get(node.id, node.pin)) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def unpinned(graph: Graph, gone: Collection[str]) -> Graph:
    """Return the graph without the pins to devices that are gone."""
    if not any(node.pin in gone for node in graph.nodes):
        return graph
    nodes = (replace(n, pin=None) if n.pin in gone else n for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def pins_called(graph: Graph, pins: Mapping[Any, str], devices: Collection[str]) -> dict[int, str]:
    """Return pins by node id; where two name a node, the later holds.

    pins: a node's name or number ("#12", or 12), FIRST..LAST, `*`, or `op:softmax` for all nodes of
        an op -> device
    Errors: PlacementError, if there is no such node, or the device is not among `devices`
    """
    found: dict[int, str] = {}
    for given, device in pins.items():
        option = f"pin {given}={device}"
        if not isinstance(given, str | int):
            raise PlacementError(f"{option}: expected a node's name or id")
        name = given if isinstance(given, str) else f"#{given}"
        if device not in devices:
            raise PlacementError(
                f"{option}: {device!r} is not among the devices {', '.join(devices)}"
            )
        found.update(dict.fromkeys(nodes_called(graph, name, option), device))
    return found


def nodes_called(graph: Graph, name: str, option: str) -> tuple[int, ...]:
    """Return the ids of the nodes that a selector names: by op, or as in `region_called`.

    Errors: PlacementError, if there is no such node; its message begins with `option`
    """
    if name.startswith(_OP):
        return _of_op(graph, name.removeprefix(_OP), option)
    return region_called(graph, name, option)


def _of_op(graph: Graph, op: str, option: str) -> tuple[int, ...]:
    nodes = tuple(node.id for node in graph.nodes if node.op == op)
    if not nodes:
        ops = sorted({node.op for node in graph.nodes})
        raise PlacementError(f"{option}: no node is of op {op!r}", facts=[f"ops: {', '.join(ops)}"])
    return nodes


def region_called(graph: Graph, name: str, option: str) -> tuple[int, ...]:
    """Return the ids of the nodes of that name, in order: one node, FIRST..LAST or `*`.

    A node has its first output's name, or a number: "#12", as in messages.
    option: the option that contains the name, for errors: "shard 'conv1=cpu,npu:rows'"
    Errors: PlacementError, if there are none
    """
    if name == "*":
        return tuple(node.id for node in graph.nodes)
    by_name = {known: node for node, known in node_names(graph).items()}
    for node in graph.nodes:
        by_name.setdefault(f"#{node.id}", node.id)
    if name in by_name:
        return (by_name[name],)
    ends = [part for part in name.split("..") if part] or [name]
    for end in ends:
        if end not in by_name:
            near = [known for known in by_name if end and end in known][:5] or list(by_name)[:5]
            raise PlacementError(
                f"{option}: no node is called {end!r}", facts=[f"there is {n}" for n in near]
            )
    found = between(graph, by_name[ends[0]], by_name[ends[-1]])
    if not found:
        raise PlacementError(f"{option}: no path leads from {ends[0]!r} to {ends[-1]!r}")
    return found


def between(graph: Graph, first: int, last: int) -> tuple[int, ...]:
    """Return the nodes on the paths from one node to another, both included; () if there is none.

    Such a set is convex: a path that leaves it would be on a path from the first to the last.
    """
    above, below = reach(graph)
    both = below[first] & above[last]
    return tuple(n.id for i, n in enumerate(graph.nodes) if both >> i & 1)


def reach(graph: Graph) -> tuple[dict[int, int], dict[int, int]]:
    """Return, by node id, the ancestors and the descendants of the node, itself among both.

    A set is the bits of a number, by place in the graph.
    """
    above: dict[int, int] = {}
    below: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        makers = (graph.producer(value) for value in node.used)
        above[node.id] = 1 << i
        for maker in makers:
            above[node.id] |= above[maker.id] if maker is not None else 0
    for i, node in reversed(list(enumerate(graph.nodes))):
        below[node.id] = 1 << i
        for user in (user for value in node.outputs for user in graph.users(value)):
            below[node.id] |= below[user.id]
    return above, below
