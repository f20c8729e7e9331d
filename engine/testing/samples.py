"""The samples of the ops, each as a graph of one node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import trireme.ops  # noqa: F401 - fills the registry
from trireme.ir.builder import graph_of_sample
from trireme.ir.graph import Graph
from trireme.ir.op import OpDef, Sample, all_ops
from trireme.support.dtypes import Array

SEED = 20261121


def op_samples(
    keep: Callable[[OpDef], bool] = lambda op: True,
) -> Iterator[tuple[OpDef, Sample, str]]:
    """Yield (op, sample, id) for every sample of the ops that `keep` says yes to."""
    for op in all_ops():
        if keep(op):
            samples = op.samples(np.random.default_rng(SEED))
            for number, sample in enumerate(samples):
                note = sample.note.replace(" ", "_") or "plain"
                yield op, sample, f"{op.name}-{number}-{note}"


def outputs_of(op: OpDef, sample: Sample) -> int:
    """Return how many outputs a node of the sample has: all of them, or what a split makes."""
    least, most = op.out_arity
    if most is not None:
        return most
    if op.name == "split":
        return int(sample.attrs.get("num_outputs") or np.asarray(sample.inputs[1]).size)
    return least


def sample_graph(
    op: OpDef, sample: Sample, outputs: int | None = None
) -> tuple[Graph, dict[int, Array]]:
    """Return a graph of one node that computes the sample, and what to feed it by value id."""
    count = outputs_of(op, sample) if outputs is None else outputs
    graph = graph_of_sample(op, sample, count, "test:sample")
    return graph, feeds_of(graph, sample)


def feeds_of(graph: Graph, sample: Sample) -> dict[int, Array]:
    """Return what to feed the graph of a sample, by value id."""
    inputs = enumerate(sample.inputs)
    given: list[Any] = [x for at, x in inputs if x is not None and at not in sample.constants]
    return dict(zip(graph.inputs, map(np.asarray, given), strict=True))
