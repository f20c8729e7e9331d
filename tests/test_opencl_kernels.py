"""The OpenCL device's kernels against the references: every op sample that the device takes."""

import functools

import opencl
import pytest
from op_samples import assert_close, op_samples, sample_graph

from trireme.devices.opencl import open_device
from trireme.interpret import interpret
from trireme.op import get_op

FIRST_OUTPUT = ("max_pool", "layer_normalization")


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    opencl.need_opencl()
    made = open_device(cache_dir=tmp_path_factory.mktemp("programs"))
    yield made
    made.close()


@functools.cache
def samples():
    """The graphs and feeds of all samples, by id; of some ops the first output alone."""
    return {
        name: sample_graph(op, sample, 1 if op.name in FIRST_OUTPUT else None)
        for op, sample, name in op_samples()
    }


@pytest.fixture(scope="module")
def executables(device):
    """Every sample the device takes, compiled together: one build instead of hundreds."""
    taken = {
        name: graph
        for name, (graph, _) in samples().items()
        if all(device.unsupported_reason(graph, node) is None for node in graph.nodes)
    }
    return dict(zip(taken, device.compile(list(taken.values())), strict=True))


@pytest.mark.parametrize("name", samples())
def test_kernels_agree_with_the_reference(device, executables, name):
    graph, feeds = samples()[name]
    if name not in executables:
        pytest.skip(device.unsupported_reason(graph, graph.nodes[0]))
    wanted = interpret(graph, feeds)
    found, _ = opencl.run(device, graph, feeds, executables[name])
    rtol = get_op(graph.nodes[0].op).rtol
    for value, array in zip(graph.outputs, found, strict=True):
        quantised = graph.type(value).quant is not None
        assert_close(array, wanted[value], 0 if quantised else rtol, name)
