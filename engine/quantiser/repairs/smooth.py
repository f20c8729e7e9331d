"""SmoothQuant: the difficulty of a transformer's activations moves into the weights.

Channel i of a product's input is divided by s_i, and the weights that read it grow by s_i:

    s_i = r_i^alpha / w_i^(1 - alpha),  r_i the peak of the channel, w_i that of its weights

The division is folded into the scale and shift of the norm before, where only products read the
norm, and is a mul of its own elsewhere. The float graph keeps its meaning.

Source: Xiao et al., SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models, 2022
"""

from __future__ import annotations

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.quantiser.repairs.edit import GraphEdit
from trireme.quantiser.repairs.products import (
    bounded,
    channel_peaks,
    input_peaks,
    products,
    scaled_inputs,
)
from trireme.quantiser.samples import Feeds
from trireme.support.dtypes import Array

ALPHA = 0.5
_MOST = 64.0
_UNLIKE = 3.0
"""A value is smoothed by a mul where its largest channel is so many times the median."""
_NORMS = ("layer_normalization", "rms_normalization")


def smoothed(
    graph: Graph, taken: frozenset[int], feeds: list[Feeds], threads: int | None
) -> tuple[Graph, str] | str:
    """Return the graph with the inputs of its products smoothed, or why there is nothing to do."""
    readers = _readers(graph, taken)
    if not readers:
        return "no product reads a value of floats"
    peaks = channel_peaks(graph, readers, feeds, threads)
    edit, folded, multiplied = GraphEdit(graph), 0, 0
    for value, nodes in readers.items():
        norm = _norm_of(graph, value, nodes)
        own = peaks[value]
        unlike = own.max(initial=0.0) > _UNLIKE * max(float(np.median(own)), 1e-30)
        if norm is None and not unlike:
            continue
        factors = _factors(graph, own, nodes)
        for node in nodes:
            w = edit.data(node.id, 1)
            assert w is not None, node.label
            edit.set_constant(node.id, 1, scaled_inputs(w, node, factors))
        if norm is None:
            edit.multiply(value, np.asarray(1 / factors, np.float32), [n.id for n in nodes])
            multiplied += 1
        else:
            _fold(edit, norm, factors)
            folded += 1
    if not folded + multiplied:
        return "the channels of the products' inputs are alike"
    return edit.finish(), f"{folded} values by their norms, {multiplied} by a mul"


def _readers(graph: Graph, taken: frozenset[int]) -> dict[int, list[Node]]:
    """Return the products that read each value of floats, by the value."""
    found: dict[int, list[Node]] = {}
    for node in products(graph, taken):
        value = node.used[0]
        maker = graph.producer(value)
        padded = node.op == "conv" and any(node.attrs["pads"])
        if maker is not None and maker.id not in taken and not padded:
            found.setdefault(value, []).append(node)
    return found


def _norm_of(graph: Graph, value: int, nodes: list[Node]) -> Node | None:
    """Return the norm that a factor can be folded into: only these products read its value."""
    maker = graph.producer(value)
    if maker is None or maker.op not in _NORMS or graph.is_output(value):
        return None
    rank = len(graph.type(value).shape)
    if {n.id for n in graph.users(value)} != {n.id for n in nodes}:
        return None
    if int(maker.attrs.get("axis", -1)) % rank != rank - 1:
        return None
    constants = [graph.values[i] for i in maker.used[1:]]
    channels = graph.type(value).dims[-1]
    flat = all(one.is_constant and one.shape == (channels,) for one in constants)
    return maker if flat and constants else None


def _factors(graph: Graph, peaks: Array, nodes: list[Node]) -> Array:
    reads = np.max([input_peaks(graph, node) for node in nodes], axis=0)
    live = np.maximum(peaks.astype(np.float64), 1e-5 * peaks.max(initial=1e-30))
    return bounded(live**ALPHA / np.maximum(reads, 1e-12) ** (1 - ALPHA), _MOST)


def _fold(edit: GraphEdit, norm: Node, factors: Array) -> None:
    for position in range(1, len(norm.inputs)):
        data = edit.data(norm.id, position)
        if data is not None:
            edit.set_constant(norm.id, position, np.asarray(data / factors, np.float32))
