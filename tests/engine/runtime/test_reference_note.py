"""A session tells once that nodes without a kernel take much of its time, and which."""

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from op_samples import by_op, named, sample_graph

import trireme
from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.place import place
from trireme.placement.reference_share import LEAST_SHARE, reference_nodes

pytestmark = pytest.mark.usefixtures("no_calibration")


def notes(caplog):
    """The warnings on nodes without a kernel."""
    rows = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    return [row for row in rows if "without a kernel" in row]


def slow(count=1, size=4096):
    """Products on a kernel, then ops that the cpu has none for."""
    b = GraphBuilder("slow")
    x = b.input("x", TensorType((8, size), "float32"))
    y = b.add("relu", x, names=["fast"])
    for i in range(count):
        y = b.add("acos", y, names=[f"slow{i}"])
    return b.finish(y)


def test_nodes_their_shares_and_the_way_out_are_named_once(caplog):
    feeds = {"x": np.zeros((8, 4096), np.float32)}
    with trireme.Session(slow(5)) as session:
        for _ in range(3):
            session.run(feeds)
        session.profile(feeds, runs=1)
    (note,) = notes(caplog)
    assert "'slow': 5 nodes without a kernel take " in note and "and 2 more" in note
    assert "acos 'slow0' " in note and note.count("(numpy reference: no kernel for acos") == 1
    assert "fix: give them a form or a device that has a kernel: trireme supported-ops" in note


def test_an_ordinary_model_is_no_news(caplog):
    b = GraphBuilder("ordinary")
    x = b.input("x", TensorType((8, 256), "float32"))
    w = b.constant("w", np.ones((256, 256), np.float32))
    with trireme.Session(b.finish(b.add("softmax", b.add("matmul", x, w), axis=-1))):
        assert not notes(caplog)


def test_a_small_share_is_no_news(caplog):
    b = GraphBuilder("small share")
    x = b.input("x", TensorType((512, 512), "float32"))
    y = x
    for i in range(4):
        y = b.add("matmul", y, b.constant(f"w{i}", np.ones((512, 512), np.float32)))
    little = b.input("little", TensorType((2,), "float32"))
    graph = b.finish(y, b.add("acos", little))
    with trireme.Session(graph) as session:
        (node,) = reference_nodes([session.placement])
        assert 0 < node.share < LEAST_SHARE and node.op == "acos" and not notes(caplog)


def test_the_host_is_the_reference_on_purpose(caplog):
    with trireme.Session(slow(), devices=["host"]) as session:
        session.run({"x": np.zeros((8, 4096), np.float32)})
    assert not notes(caplog)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_dynamically_quantised_convolution_is_told_where_it_has_no_kernel(
    is_open, tmp_path, caplog
):
    rng = np.random.default_rng(0)
    w = onnx.numpy_helper.from_array(rng.integers(0, 255, (8, 8, 3, 3)).astype(np.uint8), "w")
    nodes = [
        h.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        h.make_node("ConvInteger", ["q", "w", "z", "wz"], ["i"], pads=[1, 1, 1, 1]),
        h.make_node("Cast", ["i"], ["f"], to=T.FLOAT),
        h.make_node("Mul", ["f", "s"], ["y"]),
    ]
    shape = [1, 8, 16, "width" if is_open else 24]
    graph = h.make_graph(
        nodes,
        "quantised",
        [h.make_tensor_value_info("x", T.FLOAT, shape)],
        [h.make_tensor_value_info("y", T.FLOAT, None)],
        [w, onnx.numpy_helper.from_array(np.uint8(128), "wz")],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8)
    path = str(tmp_path / "quantised.onnx")
    onnx.save(model, path)
    with trireme.Session(path) as session:
        feeds = [{"x": np.ones((1, 8, 16, n), np.float32)} for n in (24, *(25, 26) * is_open)]
        for one in feeds:
            session.run(one)
        profile = session.profile(feeds[0], runs=1)
    found = [row for row in profile.nodes if "numpy reference" in row.kernel]
    assert len(notes(caplog)) == bool(found)
    if found and is_open:
        (note,) = notes(caplog)
        assert "conv" in note and "nodes of fixed sizes have more kernels" in note
        assert "--shape x=1,8,16," in note


def test_nodes_of_a_loop_count_by_its_time():
    """The loop has all of the time; its body is half on a kernel."""
    body = h.make_graph(
        [
            h.make_node("Identity", ["go"], ["go_on"]),
            h.make_node("Acos", ["a"], ["b"], name="slow"),
        ],
        "body",
        [
            h.make_tensor_value_info("i", T.INT64, []),
            h.make_tensor_value_info("go", T.BOOL, []),
            h.make_tensor_value_info("a", T.FLOAT, [64, 64]),
        ],
        [
            h.make_tensor_value_info("go_on", T.BOOL, []),
            h.make_tensor_value_info("b", T.FLOAT, [64, 64]),
        ],
    )
    outer = h.make_graph(
        [h.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        "looped",
        [h.make_tensor_value_info("x", T.FLOAT, [64, 64])],
        [h.make_tensor_value_info("y", T.FLOAT, [64, 64])],
        [onnx.numpy_helper.from_array(np.array(5), "n")],
    )
    model = h.make_model(outer, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    with trireme.Session(model.SerializeToString()) as session:
        nodes = reference_nodes([session.placement])
    assert [node.op for node in nodes] == ["acos"] * len(nodes) and nodes
    assert sum(node.share for node in nodes) > 0.5


@pytest.mark.parametrize("op, samples", list(by_op()))
def test_a_node_is_named_exactly_where_the_cpu_has_no_kernel(op, samples):
    device = open_device("cpu", threads=1)
    costs = CostModel({"cpu": device}, Calibration())
    for sample, name in samples:
        graph, _ = sample_graph(op, sample)
        nodes = graph.nodes
        if any(device.unsupported_reason(graph, node) for node in nodes):
            continue
        lacking = {node.op for node in nodes if device.kernel_note(graph, node)}
        with named(name):
            found = reference_nodes([place(graph, costs)])
            assert {one.op for one in found} == lacking
            assert sum(one.share for one in found) <= 1.0 + 1e-9
    device.close()
