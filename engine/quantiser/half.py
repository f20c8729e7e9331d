"""Nodes that compute in float16: what they read and store, and which nodes of a machine may."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trireme.backend.device import Device
from trireme.cost.model import CostModel
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Node, TensorType
from trireme.support.errors import GraphError

HALF, REAL = "float16", "float32"
_MOST_HALF = float(np.finfo(np.float16).max)


def half_nodes(graph: Graph, costs: CostModel) -> frozenset[int]:
    """Return the nodes of floats that some device runs faster in float16 than in float32."""
    faster = [one for one in costs.devices.values() if _is_faster(one)]
    if not faster:
        return frozenset()
    alone = ((node.id, half_alone(graph, node)) for node in graph.nodes)
    return frozenset(
        node
        for node, made in alone
        if made is not None
        and any(device.unsupported_reason(made, made.nodes[0]) is None for device in faster)
    )


def _is_faster(device: Device) -> bool:
    rates = device.spec.flops
    return rates.get(HALF, 0.0) > rates.get(REAL, 0.0)


def half_alone(graph: Graph, node: Node) -> Graph | None:
    """Return a graph of one node in float16; None where it has no such form."""
    dtypes = {graph.type(out).dtype for out in node.outputs}
    if dtypes != {REAL} or not _fits(graph, node):
        return None
    b = GraphBuilder("half")

    def read(value: int) -> int:
        known = graph.values[value]
        if known.data is not None:
            return b.constant(known.name, known.data)
        dtype = HALF if known.dtype == REAL else known.dtype
        return b.input(f"x{value}", TensorType(known.type.shape, dtype))

    try:
        made = add_half(b, graph, node, read)
    except GraphError:
        return None
    if {b.values[out].dtype for out in made} != {HALF}:
        return None
    return b.finish(*made)


def _fits(graph: Graph, node: Node) -> bool:
    """Whether float16 has the constants of a node, and it reads some value of floats."""
    known = [graph.values[value] for value in node.used]
    constants = [one.data for one in known if one.data is not None and one.dtype == REAL]
    fits = all(np.abs(data).max(initial=0.0) <= _MOST_HALF for data in constants)
    return fits and any(one.data is None and one.dtype == REAL for one in known)


def add_half(
    b: GraphBuilder, graph: Graph, node: Node, read: Callable[[int], int]
) -> tuple[int, ...]:
    """Add a node of a float graph that computes in float16; return its outputs.

    read: gives an input in the builder, in float16 where it is no constant of floats
    Errors: GraphError, if its op takes no float16
    """
    inputs: list[int | None] = []
    for value in node.inputs:
        known = None if value is None else graph.values[value]
        if known is not None and known.data is not None and known.dtype == REAL:
            inputs.append(b.constant(known.name, known.data.astype(np.float16)))
        else:
            inputs.append(None if value is None else read(value))
    return b.add_node(
        node.op,
        inputs,
        node.attrs,
        outputs=len(node.outputs),
        names=[f"{graph.values[out].name}_{HALF}" for out in node.outputs],
        source=node.source,
        pin=node.pin,
    )
