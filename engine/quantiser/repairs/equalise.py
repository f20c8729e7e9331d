"""Cross-layer equalisation: channels of unlike size between two products become alike.

A product followed by another may make channel i smaller by s_i, if the other's weights for it grow
by s_i. The graph's meaning stays, because a relu is positively homogeneous, as max pools are.
Weights have a scale for each channel here. So what one scale has to serve are the values between
the two, and their peaks take the place of the first product's weights:

    s_i = sqrt(r_i / w_i),  r_i the peak of channel i of the value, w_i that of its readers' weights

A depthwise product has a scale for each input channel too, so there s_i = r_i.

A clamp at 6 is not homogeneous. Channels that a relu6 cuts, or nearly so, keep their size, s_i = 1.
The others grow at most until twice the peak of the samples reaches 6, where the clamp cuts them.

Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, 2019
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.quantiser.repairs.edit import GraphEdit
from trireme.quantiser.repairs.products import (
    bounded,
    chains,
    channel_peaks,
    groups_of,
    input_peaks,
    products,
    scaled_inputs,
    weights,
)
from trireme.quantiser.samples import Feeds
from trireme.support.dtypes import Array

_THROUGH = frozenset({"max_pool", "average_pool", "relu"})
_ACTIVATIONS = ("", "relu", "relu6")
_CLAMP = 6.0
_ROOM = 2.0
"""Times the peak of the samples that a channel below the clamp may have."""
_MOST = 64.0
"""The most that a channel grows or shrinks."""


@dataclass(frozen=True)
class _Pair:
    first: Node
    second: Node
    value: int


def equalised(
    graph: Graph, taken: frozenset[int], feeds: list[Feeds], threads: int | None
) -> tuple[Graph, str] | str:
    """Return the graph with its pairs of products equalised, or why there is nothing to do."""
    known = products(graph, taken)
    pairs = list(_pairs(graph, known))
    if not pairs:
        return "no product is followed by another alone"
    peaks = channel_peaks(graph, [pair.value for pair in pairs], feeds, threads)
    edit = GraphEdit(graph)
    for pair in pairs:
        _equalise(graph, edit, pair, peaks[pair.value])
    return edit.finish(), f"{len(pairs)} pairs of products"


def _pairs(graph: Graph, known: list[Node]) -> list[_Pair]:
    ids = {node.id for node in known}
    pairs = []
    for first in known:
        if first.attrs["activation"] not in _ACTIVATIONS:
            continue
        for value, reader in chains(graph, first, _THROUGH):
            if reader.id in ids and reader.used[0] == value and reader.used.count(value) == 1:
                pairs.append(_Pair(first, reader, first.outputs[0]))
    return pairs


def _equalise(graph: Graph, edit: GraphEdit, pair: _Pair, peaks: Array) -> None:
    first, second = pair.first, pair.second
    w = edit.data(second.id, 1)
    assert w is not None, second.label
    reads = np.maximum(input_peaks(graph, second), 1e-12)
    depthwise = groups_of(second) == len(peaks) and groups_of(second) > 1
    live = np.maximum(peaks, 1e-6 * peaks.max(initial=1e-30))
    factors = bounded(live if depthwise else np.sqrt(live / reads), _MOST)
    if first.attrs["activation"] == "relu6":
        factors = _under_clamp(factors, peaks)
    edit.set_constant(second.id, 1, scaled_inputs(w, second, factors))
    own = edit.data(first.id, 1)
    assert own is not None, first.label
    shape = (-1, *[1] * (weights(graph, first).ndim - 1))
    edit.set_constant(first.id, 1, np.asarray(own / factors.reshape(shape), np.float32))
    bias = edit.data(first.id, 2)
    if bias is not None:
        edit.set_constant(first.id, 2, np.asarray(bias / factors, np.float32))


def _under_clamp(factors: Array, peaks: Array) -> Array:
    """Return factors that keep what a clamp cuts: 1 for its channels, none too small for others."""
    cut = peaks * _ROOM >= _CLAMP
    unit = np.exp(np.log(factors[cut]).mean()) if cut.any() else 1.0
    return np.where(cut, 1.0, np.maximum(factors / unit, peaks * _ROOM / _CLAMP))
