"""Samples of ops with inputs in other dtypes than they were drawn in."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
from op_samples import op_samples

from trireme.ops.conversion import cast
from trireme.support.dtypes import NAMES, numpy_dtype

SAMPLES = 2
"""Of each op and kind of inputs; further ones differ in attributes more than in shapes."""


def samples_of(op):
    """The first samples of each list of inputs that are there, by dtype."""
    found = defaultdict(list)
    for _, sample, _ in op_samples(lambda other: other is op):
        dtypes = tuple(None if array is None else array.dtype for array in sample.inputs)
        found[dtypes, bool(sample.quants)].append(sample)
    return [sample for alike in found.values() for sample in alike[:SAMPLES]]


def with_inputs(sample, changes):
    """The sample with some inputs changed, by position."""
    inputs = (changes.get(i, array) for i, array in enumerate(sample.inputs))
    return replace(sample, inputs=tuple(inputs))


def retyped(sample):
    """Yield (what, sample) for each input, and for all inputs of one dtype, in every dtype."""
    for positions, dtype in retypings(sample):
        yield f"inputs {positions} {dtype}", retype(sample, positions, dtype)


def retypings(sample):
    """Yield the positions of each input, and of all inputs of one dtype, with every dtype."""
    alike = defaultdict(list)
    for position, array in enumerate(sample.inputs):
        if array is not None:
            alike[array.dtype].append(position)
    each = [[position] for positions in alike.values() for position in positions]
    for positions in [*each, *(some for some in alike.values() if len(some) > 1)]:
        for dtype in NAMES:
            yield positions, dtype


def retype(sample, positions, dtype):
    """The sample with some inputs in another dtype."""
    arrays = {position: recast(sample.inputs[position], dtype) for position in positions}
    return with_inputs(sample, arrays)


def recast(array, dtype):
    """The array in another dtype: what it stands for where that is a number there, else zeros."""
    if dtype.startswith("complex") or array.dtype.kind == "c":
        return array.real.astype(numpy_dtype(dtype))
    try:
        return np.asarray(cast(array, dtype))
    except ValueError:
        return np.zeros(array.shape, numpy_dtype(dtype))
