"""Bias correction: the mean error that a product's integers make goes into its bias.

Rounded weights and clipped inputs shift the mean of each output channel. The shift is measured on
samples with the inputs made of float values, between what the integers make and what the floats
make, over the elements that no clamp holds. It is taken from the bias.

Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, 2019,
section 4.2 (empirical)
"""

from __future__ import annotations

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.quantiser.measure import paired
from trireme.quantiser.repairs.edit import GraphEdit
from trireme.quantiser.repairs.products import products, weights
from trireme.quantiser.samples import Feeds
from trireme.quantiser.trial import QuantTrial
from trireme.support.dtypes import Array


def corrected(
    trial: QuantTrial, method: str, real: Graph, feeds: list[Feeds], threads: int | None
) -> tuple[Graph, str] | str:
    """Return the graph with its biases corrected, or why there is nothing to do.

    real: the graph with float weights that have not been rounded
    """
    graph = trial.graph
    nodes = products(graph, trial.selection.taken)
    if not nodes:
        return "no product has channels last"
    shifts = _shifts(trial, method, real, nodes, feeds, threads)
    edit = GraphEdit(graph)
    for node in nodes:
        bias = edit.data(node.id, 2)
        if bias is None:
            bias = np.zeros(len(weights(graph, node)), np.float32)
        name = f"{graph.values[node.used[1]].first_name}_bias"
        made = np.asarray(bias - shifts[node.outputs[0]], np.float32)
        edit.set_constant(node.id, 2, made, name)
    return edit.finish(), f"{len(nodes)} biases"


def _shifts(
    trial: QuantTrial,
    method: str,
    real: Graph,
    nodes: list[Node],
    feeds: list[Feeds],
    threads: int | None,
) -> dict[int, Array]:
    """Return the mean error made in each channel of each product, by the value it makes."""
    limits = {
        node.outputs[0]: get_op(node.attrs["activation"]).clamp
        for node in nodes
        if node.attrs["activation"]
    }
    sums: dict[int, Array] = {}
    counts: dict[int, Array] = {}
    values = [node.outputs[0] for node in nodes]
    apart = trial(method, apart=True)
    for exact, made in paired(real, apart, values, feeds, threads):
        for value in values:
            x = exact[value].reshape(-1, exact[value].shape[-1])
            error = made[value].reshape(x.shape) - x
            if (clamp := limits.get(value)) is not None:
                free = (x > clamp[0]) & (x < clamp[1])
                error, count = np.where(free, error, 0), free.sum(axis=0)
            else:
                count = np.full(x.shape[-1], len(x))
            sums[value] = sums.get(value, 0) + error.sum(axis=0, dtype=np.float64)
            counts[value] = counts.get(value, 0) + count
    return {value: sums[value] / np.maximum(counts[value], 1) for value in values}
