"""The products of a graph that repairs change: their weights by channel, and what they read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.quantiser.samples import Feeds
from trireme.quantiser.scheme import is_product
from trireme.quantiser.statistics import run_watched
from trireme.support.dtypes import Array


def products(graph: Graph, taken: frozenset[int]) -> list[Node]:
    """Return the conv and fully_connected nodes that become integers, channels last."""
    return [
        node
        for node in graph.nodes
        if node.id in taken
        and is_product(node)
        and (node.op == "fully_connected" or (node.op == "conv" and is_last(graph, node)))
    ]


def is_last(graph: Graph, node: Node) -> bool:
    """Whether a conv is one of images with its channels last."""
    return node.attrs["layout"] == "NHWC" and len(graph.type(node.used[0]).shape) == 4


def weights(graph: Graph, node: Node) -> Array:
    """Return the weights of a product: conv [O,KH,KW,C/groups], fully_connected [O,C]."""
    data = graph.values[node.used[1]].data
    assert data is not None, node.label  # selected only where they are constant
    return data


def groups_of(node: Node) -> int:
    """Return the number of groups of a product."""
    return int(node.attrs.get("groups", 1))


def input_peaks(graph: Graph, node: Node) -> Array:
    """Return the largest weight that each input channel meets.

    Shapes: -> [C]
    """
    w, groups = np.abs(weights(graph, node)), groups_of(node)
    w = w.reshape(groups, w.shape[0] // groups, -1, w.shape[-1])
    peaks: Array = w.max(axis=(1, 2)).reshape(-1)
    return peaks


def channel_peaks(
    graph: Graph, values: Iterable[int], feeds: Iterable[Feeds], threads: int | None
) -> Mapping[int, Array]:
    """Return the largest magnitude in each last-axis channel of values over some samples."""
    wanted = tuple(dict.fromkeys(values))
    found: dict[int, Array] = {}
    for made in run_watched(graph, wanted, feeds, threads):
        for value in wanted:
            x = made[value]
            peaks = np.abs(x).reshape(-1, x.shape[-1]).max(axis=0)
            found[value] = np.maximum(found.get(value, peaks), peaks)
    return found


def scaled_inputs(w: Array, node: Node, factors: Array) -> Array:
    """Return the weights of a product whose input channels are divided by `factors` before it.

    Shapes: factors [C]
    """
    groups = groups_of(node)
    wide = w.reshape(groups, w.shape[0] // groups, -1, w.shape[-1]).astype(np.float64)
    made = wide * factors.reshape(groups, 1, 1, -1)
    return np.asarray(made.reshape(w.shape), np.float32)


def bounded(factors: Array, most: float) -> Array:
    """Return factors scaled to 1 in the geometric mean, and kept within `most` of it."""
    logs = np.log(np.maximum(factors, 1e-30))
    return np.asarray(np.exp(np.clip(logs - np.median(logs), -np.log(most), np.log(most))))


def chains(graph: Graph, node: Node, through: frozenset[str]) -> Iterator[tuple[int, Node]]:
    """Yield the values from a node on and their only readers, through ops that keep channels."""
    value = node.outputs[0]
    while not graph.is_output(value) and len(readers := graph.users(value)) == 1:
        yield value, readers[0]
        if readers[0].op not in through or readers[0].used[0] != value:
            return
        value = readers[0].outputs[0]
