"""What inference lets through, the reference can compute, in the shape that inference says.

Inputs of every op's samples are changed: an axis gone, added, empty, longer or shorter. Inference
refuses the change with a sentence, or the reference runs.
"""

from dataclasses import replace

import numpy as np
import pytest
from op_samples import op_samples, sample_graph

from trireme.errors import RunError, TriremeError
from trireme.interpret import interpret
from trireme.op import all_ops

SAMPLES = 2
"""Of each op; further ones differ in attributes more than in shapes."""
LOOSE = {
    "affine_grid", "batch_to_space", "col2im", "compress", "cum_prod", "cum_sum",
    "dequantize_linear", "dft", "einsum", "gather_nd", "grid_sample", "max_unpool",
    "mean_variance_normalization", "non_max_suppression", "roi_align", "scatter_elements",
    "space_to_batch", "stft", "tensor_scatter",
}  # fmt: skip
"""Ops whose inference still lets through what their reference refuses."""


def changed(array):
    """Yield the array with one axis changed, and what was changed."""
    yield "axis before", array[None]
    yield "axis after", array[..., None]
    for axis in range(array.ndim):
        size = array.shape[axis]
        yield f"axis {axis} empty", np.take(array, [], axis)
        if size:
            yield f"axis {axis} gone", np.take(array, 0, axis)
            yield f"axis {axis} longer", np.concatenate([array, np.take(array, [0], axis)], axis)
            yield f"axis {axis} shorter", np.take(array, range(size - 1), axis)


def contradictions(op):
    """Return what inference lets through and the reference refuses or gives another shape."""
    found = []
    samples = [sample for _, sample, _ in op_samples(lambda other: other is op)][:SAMPLES]
    for sample in samples:
        for position, array in enumerate(sample.inputs):
            for what, other in () if array is None else changed(array):
                inputs = (*sample.inputs[:position], other, *sample.inputs[position + 1 :])
                try:
                    graph, feeds = sample_graph(op, replace(sample, inputs=inputs))
                except TriremeError:
                    continue
                try:
                    results = interpret(graph, feeds)
                except TriremeError as error:
                    if not isinstance(error.__cause__, RunError):  # which is of the data
                        found.append(f"input {position} {what}: {error}")
                    continue
                for value in graph.outputs:
                    type = graph.type(value)
                    if type.is_static and results[value].shape != type.dims:
                        found.append(f"input {position} {what}: {results[value].shape}, {type}")
    return found


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_inference_refuses_what_the_reference_refuses(op):
    found = contradictions(op)
    if op.name in LOOSE:
        assert found, f"{op.name} keeps its contract: take it off the list"
        pytest.xfail("known to be loose")
    assert not found, "\n".join(found[:5])
