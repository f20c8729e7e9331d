"""Ops with an activation, in float16: every kernel loads and stores what the memory holds."""

from dataclasses import replace

import numpy as np
import opencl
import pytest
from op_samples import assert_close, sample_graph
from retyped import retype, samples_of

from trireme.backend.registry import open_device
from trireme.ir.interpreter import interpret
from trireme.ir.op import all_ops

ACTIVATED = [op.name for op in all_ops() if "activation" in op.attrs]
CLOSE = 2e-3
"""Of float16, whose last bit is 1e-3, where a kernel rounds after its activation alone."""


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    opencl.need_opencl()
    made = open_device("opencl", cache_dir=tmp_path_factory.mktemp("programs"))
    made.programs.options.append("-cl-opt-disable")
    yield made
    made.close()


def halves(name):
    """Graphs of an op's samples with every float32 input in float16, and their feeds."""
    op = next(op for op in all_ops() if op.name == name)
    for sample in samples_of(op):
        positions = [
            at
            for at, array in enumerate(sample.inputs)
            if array is not None and array.dtype == np.float32
        ]
        if positions and not sample.quants:
            half = retype(sample, positions, "float16")
            for activation in ("", "relu", "hard_swish"):
                yield sample_graph(
                    op, replace(half, attrs={**half.attrs, "activation": activation})
                )


@pytest.mark.parametrize("name", ACTIVATED)
def test_an_op_with_an_activation_in_float16(device, name):
    taken = [
        (graph, feeds)
        for graph, feeds in halves(name)
        if all(device.unsupported_reason(graph, node) is None for node in graph.nodes)
    ]
    made = device.compile([graph for graph, _ in taken]) if taken else ()
    for (graph, feeds), executable in zip(taken, made, strict=True):
        wanted = interpret(graph, feeds)
        found, _ = opencl.run(device, graph, feeds, executable)
        for value, array in zip(graph.outputs, found, strict=True):
            assert_close(array, wanted[value], CLOSE, f"{name} {graph.nodes[0].attrs}")


def test_some_of_them_are_taken(device):
    taken = [
        name
        for name in ACTIVATED
        for graph, _ in halves(name)
        if device.unsupported_reason(graph, graph.nodes[0]) is None
    ]
    assert {"add", "concat"} <= set(taken), taken
