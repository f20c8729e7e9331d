"""Splits as text: `conv1=cpu,opencl:rows`, or a region `conv1..conv5=npu,cpu:channels:96`.

    REGION = DEVICE,DEVICE[,DEVICE] : KIND [: CUT,CUT]

REGION is a node, named by its first output; FIRST..LAST with every node between the two; or `*`,
the whole graph. KIND is rows, channels or batch. CUTs say where one device's stretch ends; without
them the cost model balances the devices.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from trireme.errors import PlacementError
from trireme.graph import Graph, node_names
from trireme.parallel.split import KINDS, Kind, Split

_FIX = "NODE=cpu,opencl:rows, FIRST..LAST=npu,cpu:channels:96 or *=npu,cpu:batch"


@dataclass(frozen=True)
class Request:
    """A split as it was asked for; cuts are empty where the cost model is to choose them."""

    nodes: tuple[int, ...]
    kind: Kind
    devices: tuple[str, ...]
    cuts: tuple[int, ...]


def parse(graph: Graph, text: str, devices: Collection[str]) -> Request:
    """Return what a text asks of a graph.

    Errors: PlacementError, if it is not of that form, or a node or device is not there
    """
    region, _, rest = text.rpartition("=")
    names, _, tail = rest.partition(":")
    kind, _, numbers = tail.partition(":")
    wanted = tuple(name.strip() for name in names.split(","))
    if not region or kind not in KINDS or len(wanted) < 2 or len(set(wanted)) < len(wanted):
        raise PlacementError(
            f"split {text!r} is not a region, devices and one of {', '.join(KINDS)}", fix=_FIX
        )
    for name in wanted:
        if name not in devices:
            raise PlacementError(
                f"split {text!r}: {name!r} is not among the devices {', '.join(devices)}"
            )
    try:
        cuts = tuple(int(number) for number in numbers.split(",") if number)
    except ValueError:
        raise PlacementError(f"split {text!r}: the cuts must be numbers", fix=_FIX) from None
    return Request(_region(graph, region, text), kind, wanted, cuts)


def _region(graph: Graph, name: str, text: str) -> tuple[int, ...]:
    if name == "*":
        return tuple(node.id for node in graph.nodes)
    by_name = {known: node for node, known in node_names(graph).items()}
    if name in by_name:
        return (by_name[name],)
    ends = [part for part in name.split("..") if part]
    for end in ends:
        if end not in by_name:
            near = [known for known in by_name if end in known][:5] or list(by_name)[:5]
            raise PlacementError(
                f"split {text!r}: no node is called {end!r}", facts=[f"there is {n}" for n in near]
            )
    found = between(graph, by_name[ends[0]], by_name[ends[-1]])
    if not found:
        raise PlacementError(f"split {text!r}: no path leads from {ends[0]!r} to {ends[-1]!r}")
    return found


def between(graph: Graph, first: int, last: int) -> tuple[int, ...]:
    """Return the nodes on the paths from one node to another, both included; () if there is none.

    Such a set is convex: a path that leaves it would be on a path from the first to the last.
    """
    above, below = reach(graph)
    both = below[first] & above[last]
    return tuple(n.id for i, n in enumerate(graph.nodes) if both >> i & 1)


def reach(graph: Graph) -> tuple[dict[int, int], dict[int, int]]:
    """Return, by node id, the nodes from which a path leads to it, and those to which one leads
    from it, itself among both: as bits, by place in the graph.
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


def text_of(graph: Graph, split: Split) -> str:
    """Return the text of a split of a graph; `parse` reads it."""
    names, nodes = node_names(graph), split.nodes
    if len(nodes) == 1:
        region = names[nodes[0]]
    elif len(nodes) == len(graph.nodes):
        region = "*"
    else:
        region = f"{names[nodes[0]]}..{names[nodes[-1]]}"
    cuts = ",".join(map(str, split.cuts))
    return f"{region}={','.join(split.devices)}:{split.kind}:{cuts}"
