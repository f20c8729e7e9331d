"""Every sample of every op, as parameters of a test."""

import contextlib
import itertools

import numpy as np
import pytest

from trireme.ir.interpreter import interpret
from trireme.testing.samples import op_samples, sample_graph


def by_op(keep=lambda op: True, also=lambda op, sample: True):
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
def named(name):
    """Add the sample's name to an error."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"sample {name}")
        raise


def interpreted(op, sample, outputs=None):
    """The reference's outputs of a sample, in order, with the graph they came from."""
    graph, feeds = sample_graph(op, sample, outputs)
    results = interpret(graph, feeds)
    return graph, [results[value] for value in graph.outputs]


def assert_close(found, wanted, rtol, what=""):
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
