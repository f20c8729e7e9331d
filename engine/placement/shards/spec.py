"""Shards as text: `conv1=cpu,opencl:rows`, or a region `conv1..conv5=npu,cpu:channels:96`.

    REGION = DEVICE,DEVICE[,DEVICE] : KIND [: CUT,CUT]

REGION is a node, named by its first output; FIRST..LAST with every node between the two; or `*`,
the whole graph. KIND is rows, channels or batch. CUTs say where one device's stretch ends; without
them the cost model balances the devices.
"""

from __future__ import annotations

from collections.abc import Collection

from trireme.ir.graph import Graph, node_names
from trireme.ir.selectors import region_called
from trireme.placement.shards.shard import KINDS, Kind, ShardSpec
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass

_FIX = "NODE=cpu,opencl:rows, FIRST..LAST=npu,cpu:channels:96 or *=npu,cpu:batch"


@dataclass(frozen=True)
class Request:
    """A shard as it was asked for; cuts are empty where the cost model is to choose them."""

    nodes: tuple[int, ...]
    kind: Kind
    devices: tuple[str, ...]
    cuts: tuple[int, ...]


def parse(graph: Graph, text: str, devices: Collection[str]) -> Request:
    """Return the request of a text on a graph.

    Errors: PlacementError, if it is not of that form, or a node or device is not there
    """
    region, _, rest = text.rpartition("=")
    names, _, tail = rest.partition(":")
    kind, _, numbers = tail.partition(":")
    wanted = tuple(name.strip() for name in names.split(","))
    if not region or kind not in KINDS or len(wanted) < 2 or len(set(wanted)) < len(wanted):
        raise PlacementError(
            f"shard {text!r} is not a region, devices and one of {', '.join(KINDS)}", fix=_FIX
        )
    for name in wanted:
        if name not in devices:
            raise PlacementError(
                f"shard {text!r}: {name!r} is not among the devices {', '.join(devices)}"
            )
    try:
        cuts = tuple(int(number) for number in numbers.split(",") if number)
    except ValueError:
        raise PlacementError(f"shard {text!r}: the cuts must be numbers", fix=_FIX) from None
    return Request(region_called(graph, region, f"shard {text!r}"), kind, wanted, cuts)


def text_of(graph: Graph, shard: ShardSpec) -> str:
    """Return the text of a shard of a graph; `parse` reads it."""
    names, nodes = node_names(graph), shard.nodes
    if len(nodes) == 1:
        region = names[nodes[0]]
    elif len(nodes) == len(graph.nodes):
        region = "*"
    else:
        region = f"{names[nodes[0]]}..{names[nodes[-1]]}"
    cuts = ",".join(map(str, shard.cuts))
    return f"{region}={','.join(shard.devices)}:{shard.kind}{':' if cuts else ''}{cuts}"
