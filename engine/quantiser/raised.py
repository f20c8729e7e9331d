"""Channels whose weights are so small that the bias, which shares their scale, raises it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trireme.ir.graph import Graph, Node, node_names
from trireme.ops.integer import dtype_limits
from trireme.quantiser.emit import Emitted
from trireme.quantiser.encode import channel_peaks
from trireme.quantiser.scheme import channel_axis, is_product

_LEAST_FACTOR = 2.0
"""A scale that is raised less keeps the weights within a bit."""
_LISTED = 3


def raised_scales(graph: Graph, emitted: Emitted) -> tuple[str, ...]:
    """Return the sentences on the products whose weights lose steps to their bias.

    graph: the float graph that was emitted
    """
    names = node_names(graph)
    found = []
    for node, raised, channels in _raised(graph, emitted):
        found.append(
            f"a bias raises the scale of {raised} of {channels} channels of {node.op} "
            f"'{names[node.id]}': their weights are tiny"
        )
    if len(found) > _LISTED:
        more = len(found) - _LISTED
        return (*found[:_LISTED], f"a bias raises scales of {more} more products")
    return tuple(found)


def _raised(graph: Graph, emitted: Emitted) -> Iterator[tuple[Node, int, int]]:
    """Yield each product with raised scales, the number of these, and of its channels."""
    for node in graph.nodes:
        if not is_product(node) or node.outputs[0] not in emitted.integers:
            continue
        made = emitted.graph.producer(emitted.integers[node.outputs[0]])
        real = graph.values[node.used[1]].data
        if made is None or not is_product(made) or real is None:
            continue  # one that stays in floats makes its integers by a quantize
        weights = emitted.graph.type(made.used[1])
        if weights.quant is None:
            continue
        peaks = channel_peaks(real, channel_axis(node.op, real.ndim))
        own = peaks / dtype_limits(weights.dtype)[1]
        scales = np.array(weights.quant.scales)
        raised = int(np.sum((peaks > 0) & (scales >= _LEAST_FACTOR * own)))
        if raised:
            yield node, raised, len(peaks)
