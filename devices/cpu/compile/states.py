"""Which states live in memory of the cpu, and which variables are that memory without a copy.

`assign` steps run after all other steps of a region. So a variable is a view of its state's memory
where nothing but steps of the region reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from trireme.devices.cpu.kernels.movement.states import state_reason
from trireme.ir.effects import uses_state, writes_state
from trireme.ir.graph import Graph, Node
from trireme.support.records import dataclass


@dataclass(frozen=True)
class RegionStates:
    """The states of a region.

    names: of all of them
    views: the variables that are memory of a state, with its name
    """

    names: tuple[str, ...] = ()
    views: Mapping[int, str] = field(default_factory=dict)


def why_host_keeps(graph: Graph, node: Node) -> str | None:
    """Say why the state of a node lives on the host; None where it can live on the cpu."""
    name = node.attrs["state"]
    users = [one for one in graph.nodes if uses_state(one) and one.attrs["state"] == name]
    reads = [one for one in users if not writes_state(one)]
    if (
        users != [*reads, *(one for one in users if writes_state(one))]
        or len(users) > len(reads) + 1
    ):
        return f"state {name!r} is read or written again after a write, in an order the host keeps"
    given = [graph.values[one.used[0]].data for one in reads]
    first = given[0] if given else None
    if first is None:
        return f"no constant says how state {name!r} begins, so the host keeps it"
    if not all(one is first or (one is not None and np.array_equal(one, first)) for one in given):
        return f"state {name!r} has several initial values, of which the host keeps the first"
    return state_reason(graph, node)


def states_in(graph: Graph, buffer_aliases: Mapping[int, int]) -> RegionStates:
    """Return the states of a region whose nodes the device takes."""
    users = [node for node in graph.nodes if uses_state(node)]
    taken = {buffer_aliases[value] for value in graph.outputs}
    taken |= {buffer_aliases[node.used[0]] for node in users if writes_state(node)}
    views = {
        node.outputs[0]: node.attrs["state"]
        for node in users
        if not writes_state(node) and node.outputs[0] not in taken
    }
    return RegionStates(tuple(dict.fromkeys(node.attrs["state"] for node in users)), views)
