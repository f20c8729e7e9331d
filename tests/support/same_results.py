"""Run two graphs on the references with the same random inputs and compare what comes out."""

import numpy as np

from trireme.ir.interpreter import interpret
from trireme.support.dtypes import numpy_dtype


def random_feed(type, rng):
    """A random array of a type whose unknown dimensions are 2: small floats, all of an int8."""
    shape = [dim if isinstance(dim, int) else 2 for dim in type.shape]
    dtype = numpy_dtype(type.dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = (info.min, info.max) if dtype.itemsize == 1 else (0, 9)
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def assert_same_results(before, after, *, tol=0.0, seed=0, units=0, floor=0.0, feeds=None):
    """Assert equal outputs: to the bit, within tol of the largest value, or within stored units.

    `floor` is what the largest value is at least taken for, where small ones are noise.
    """
    rng = np.random.default_rng(seed)
    arrays = feeds or [random_feed(value.type, rng) for value in before.input_values()]
    assert [v.name for v in before.output_values()] == [v.name for v in after.output_values()]
    expected = interpret(before, dict(zip(before.inputs, arrays, strict=True)))
    found = interpret(after, dict(zip(after.inputs, arrays, strict=True)))
    for old, new in zip(before.outputs, after.outputs, strict=True):
        a, b = expected[old], found[new]
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"seed {seed}"
        if a.dtype.kind in "iu" and units:
            assert np.abs(a.astype(np.int64) - b).max(initial=0) <= units, f"seed {seed}"
        elif tol and a.dtype.kind == "f":
            finite = np.abs(a[np.isfinite(a)]).max(initial=floor or 1e-30)
            np.testing.assert_allclose(b, a, rtol=0, atol=tol * finite, err_msg=f"seed {seed}")
        else:
            np.testing.assert_array_equal(b, a, err_msg=f"seed {seed}")


def op_names(graph):
    """The ops of a graph in order, as one string."""
    return " ".join(node.op for node in graph.nodes)
