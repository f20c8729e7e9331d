"""A region that the OpenCL device compiled: its launches, what is fused, aliases, its memory."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import opencl
import pytest

from trireme.backend.registry import open_device
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def device(cache):
    opencl.need_opencl()
    made = open_device("opencl", cache_dir=cache)
    yield made
    made.close()


def test_a_region_is_one_launch_with_fused_chains_and_aliases(device):
    graph = opencl.region()
    executable = device.compile([graph])[0]
    found, spans = opencl.run(device, graph, opencl.feed(graph), executable, profile=True)
    opencl.assert_right(graph, found)
    assert len(executable.steps) == 3
    assert executable.kernels[0] == executable.kernels[2] == "mul+add+relu"
    assert executable.kernels[4] == "alias"
    assert [span.nodes for span in spans] == [(0, 1, 2), (3,), (6,)]
    assert all(a.end_s <= b.start_s for a, b in zip(spans, spans[1:], strict=False))
    assert all(span.start_s < span.end_s for span in spans)


FOLLOWED = {
    "matmul": [((4, 6), (6, 8)), [(8,), (4, 8)], [(4, 1)]],
    "matmul of a vector": [((2, 3, 6), (6,)), [(2, 3)], [(3,)]],
}
"""Shapes of a product's inputs, of what its kernel adds to the result, and of what it does not."""


def test_a_product_takes_along_what_fits_its_result(device):
    builder, outs, expected = GraphBuilder("followed"), [], []
    for shapes, fused, apart in FOLLOWED.values():
        x, w = (builder.input("", TensorType(shape, "float32")) for shape in shapes)
        for shape in (*fused, *apart):
            other = builder.input("", TensorType(shape, "float32"))
            outs.append(builder.add("add", builder.add("matmul", x, w), other))
            expected.append(shape in fused)
    graph = builder.finish(*outs)
    executable = device.compile([graph])[0]
    found, _ = opencl.run(device, graph, opencl.feed(graph), executable)
    opencl.assert_right(graph, found)
    kernels = [executable.kernels[node.id] for node in graph.nodes if node.op == "add"]
    assert ["+add" in kernel for kernel in kernels] == expected, kernels


def test_a_bound_call_keeps_its_memory_alive(device):
    graph = opencl.region()
    executable = device.compile([graph])[0]
    places = [device.alloc(graph.type(i).nbytes) for i in (*graph.inputs, *graph.outputs)]
    x = opencl.feed(graph)[graph.inputs[0]]
    device.write(places[0], x)
    call = executable.bind(places, device.alloc(max(executable.scratch_bytes, 1)))
    del executable
    for _ in range(9):
        device.write(device.alloc(1 << 16), np.zeros(1 << 16, np.uint8))
    call.launch().wait()
    found = np.empty((15, 7), np.float32)
    device.read(places[1], found)
    wanted = interpret(graph, {graph.inputs[0]: x})[graph.outputs[0]]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_inputs_and_constants_returned_through_aliases_are_copied(device):
    builder = GraphBuilder("aliases")
    x = builder.input("x", TensorType((6,), "float32"))
    fixed = builder.constant("fixed", np.arange(6, dtype=np.float32))
    shape = builder.constant("shape", np.array([2, 3]))
    y = builder.add("tanh", x)
    outs = [builder.add("reshape", v, shape) for v in (x, fixed, y, y)]
    graph = builder.finish(*outs)
    found, _ = opencl.run(device, graph, opencl.feed(graph))
    opencl.assert_right(graph, found)


def test_products_through_local_memory_agree(cache):
    opencl.need_opencl()
    builder = GraphBuilder("product")
    rng = np.random.default_rng(3)
    x = builder.input("x", TensorType((45, 37), "float32"))
    w = builder.constant("w", rng.standard_normal((50, 37)).astype(np.float32))
    b = builder.constant("b", rng.standard_normal(50).astype(np.float32))
    graph = builder.finish(builder.add("fully_connected", x, w, b, activation="relu"))
    device = open_device("opencl", tuning="desktop_gpu", cache_dir=cache)
    executable = device.compile([graph])[0]
    assert executable.kernels[0].endswith("_local")
    found, _ = opencl.run(device, graph, opencl.feed(graph), executable)
    wanted = interpret(graph, opencl.feed(graph))[graph.outputs[0]]
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-5)


def test_two_threads_share_an_executable(device):
    graph = opencl.region()
    executable = device.compile([graph])[0]
    with ThreadPoolExecutor(4) as pool:
        results = list(
            pool.map(
                lambda _: opencl.run(device, graph, opencl.feed(graph), executable)[0], range(24)
            )
        )
    for found in results:
        opencl.assert_right(graph, found)


def test_a_reshape_that_leaves_the_region_is_there_for_the_nodes_after_it(device):
    """Found by random graphs on random devices: relu read the output before it was copied."""
    b = GraphBuilder("reshape")
    x = b.input("x", TensorType((2, 3), "float32"))
    flat = b.add("reshape", x, b.constant("to", np.array([6])), pin="opencl", names=["flat"])
    after = b.add("relu", flat, pin="opencl", names=["after"])
    with Session(b.finish(flat, after), devices=[device], execution_options=AS_GIVEN) as session:
        for step in (1, 2):
            given = np.full((2, 3), step, np.float32)
            found = session.run({"x": given})
            np.testing.assert_array_equal(found["flat"], given.reshape(-1))
            np.testing.assert_array_equal(found["after"], given.reshape(-1))
