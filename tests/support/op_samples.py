"""The samples of the ops, each as a graph of one node or as parameters of a test."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from _pytest.mark.structures import ParameterSet

import trireme.ops  # noqa: F401 - fills the registry
from trireme.ir.builder import graph_of_sample
from trireme.ir.graph import Graph
from trireme.ir.interpreter import interpret
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


def by_op(
    keep: Callable[[OpDef], bool] = lambda op: True,
    also: Callable[[OpDef, Sample], bool] = lambda op, sample: True,
) -> Iterator[ParameterSet]:
    """Every op with its samples [(sample, id)], as parameters of a test that runs all of them.

    A test an op: where a sample takes a millisecond, pytest takes longer to run a test of it.
    also: which samples of the op
    """
    groups = itertools.groupby(op_samples(keep), lambda case: case[0])
    for op, cases in groups:
        samples = [(sample, name) for _, sample, name in cases if also(op, sample)]
        if samples:
            yield pytest.param(op, samples, id=op.name)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Add the sample's name to an error."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"sample {name}")
        raise


def interpreted(op: OpDef, sample: Sample, outputs: int | None = None) -> tuple[Graph, list[Array]]:
    """The reference's outputs of a sample, in order, with the graph they came from."""
    graph, feeds = sample_graph(op, sample, outputs)
    results = interpret(graph, feeds)
    return graph, [results[value] for value in graph.outputs]


def assert_close(found: Array, wanted: Array, rtol: float, what: str = "") -> None:
    """Same shape, dtype, NaNs and infinities; finite values within rtol of the largest one."""
    assert found.shape == wanted.shape, f"{what}: shape {found.shape}, expected {wanted.shape}"
    assert found.dtype == wanted.dtype, f"{what}: {found.dtype}, expected {wanted.dtype}"
    if found.dtype.kind == "V":  # numpy knows no NaN of ml_dtypes
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    if found.dtype.kind not in "fc" or rtol == 0:
        np.testing.assert_array_equal(found, wanted, err_msg=what)
        return
    a, b = found.astype(np.complex128), wanted.astype(np.complex128)
    odd = ~np.isfinite(b)
    np.testing.assert_array_equal(a[odd], b[odd], err_msg=what)
    assert np.isfinite(a[~odd]).all(), f"{what}: not finite where {wanted} is"
    if (~odd).any():
        limit = rtol * max(np.abs(b[~odd]).max(), 1e-30)
        worst = np.abs(a[~odd] - b[~odd]).max()
        assert worst <= limit, f"{what}: off by {worst:.3g}, allowed {limit:.3g}"
