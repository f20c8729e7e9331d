"""Which nodes share a kernel on OpenCL: every node is in one, and in no other."""

import numpy as np
import opencl
import pytest
from op_samples import assert_close

from trireme.backend.registry import open_device
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret

SEED = 5


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    opencl.need_opencl()
    made = open_device("opencl", cache_dir=tmp_path_factory.mktemp("programs"))
    yield made
    made.close()


def check(device, graph):
    rng = np.random.default_rng(SEED)
    feeds = {
        value.id: rng.uniform(0.1, 2, value.type.dims).astype(np.float32)
        for value in graph.input_values()
    }
    wanted = interpret(graph, feeds)
    (found,) = opencl.run(device, graph, feeds)[0]
    assert_close(found, wanted[graph.outputs[0]], 1e-5, f"seed {SEED}")


def inputs(b, *shapes):
    return [b.input(f"x{i}", TensorType(shape, "float32")) for i, shape in enumerate(shapes)]


def test_a_node_that_ends_two_chains_is_in_one_of_them(device):
    b = GraphBuilder("two chains")
    x, y = inputs(b, (6, 4), (6, 4))
    check(device, b.finish(b.add("pow", b.add("hard_sigmoid", x), b.add("abs", y))))


def test_products_and_a_chain_meet_in_one_node(device):
    b = GraphBuilder("two products")
    x, y = inputs(b, (6, 4), (4, 5))
    one = b.add("matmul", x, y)
    two = b.add("matmul", x, b.add("neg", y))
    check(device, b.finish(b.add("add", b.add("tanh", one), b.add("relu", two))))


@pytest.mark.parametrize("rows, depth, columns", [(0, 0, 5), (0, 3, 5), (3, 0, 5), (3, 4, 0)])
def test_products_without_elements(device, rows, depth, columns):
    b = GraphBuilder("empty")
    x, y = inputs(b, (rows, depth), (depth, columns))
    graph = b.finish(b.add("matmul", x, y))
    if all(device.unsupported_reason(graph, node) is None for node in graph.nodes):
        check(device, graph)
