"""`with trireme.device(...)`: pins in graphs, the device of eager calls; honoured or refused."""

import threading

import numpy as np
import pytest
from onnx import TensorProto, helper

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.device_scope import named_device
from trireme.ir.graph import TensorType
from trireme.runtime.eager import eager
from trireme.support.errors import DeviceError, PlacementError

X = np.random.default_rng(14).standard_normal((4, 8)).astype(np.float16)
HALF = TensorType((4, 8), "float16")


def two_devices():
    """relu and tanh inside a block for the npu, the rest outside."""
    b = GraphBuilder("tagged")
    x = b.input("x", HALF)
    with trireme.device("npu"):
        inner = b.add("tanh", b.add("relu", x))
        with trireme.device("cpu"):
            middle = b.add("neg", inner)
        with trireme.device(None):
            free = b.add("sigmoid", middle)
        own = b.add("relu", free, pin="cpu")
    return b.finish(b.add("add", own, inner, names=["y"]))


def test_nodes_of_a_block_have_its_pin():
    assert [(node.op, node.pin) for node in two_devices().nodes] == [
        ("relu", "npu"),
        ("tanh", "npu"),
        ("neg", "cpu"),
        ("sigmoid", None),
        ("relu", "cpu"),
        ("add", None),
    ]
    assert named_device() is None


def test_a_session_honours_the_pins():
    with trireme.Session(two_devices(), devices=["cpu", "npu"]) as session:
        placed = session.placement.device_of
        for node in session.graph.nodes:
            assert node.pin in (None, placed[node.id])
        assert {node.pin for node in session.graph.nodes} >= {"cpu", "npu"}
        got = session.run({"x": X})["y"]
    inner = np.tanh(np.maximum(X, 0).astype(np.float32))
    want = np.maximum(1 / (1 + np.exp(inner)), 0) + inner
    np.testing.assert_allclose(got.astype(np.float32), want, atol=4e-3)


def test_a_pin_that_a_device_refuses_says_why():
    b = GraphBuilder("refused")
    with trireme.device("npu"):
        y = b.add("relu", b.input("x", TensorType((4, 8), "float64")))
    with pytest.raises(PlacementError, match="npu .* tensors must be of a dtype that the NPU has"):
        trireme.Session(b.finish(y), devices=["cpu", "npu"])


def test_a_pin_to_a_device_that_is_not_open_is_an_error():
    with pytest.raises(PlacementError, match="npu"):
        trireme.Session(two_devices(), devices=["cpu"])


def test_eager_calls_run_on_the_device_of_the_block():
    x = eager.tensor(X)
    with trireme.device("npu"):
        y = eager.relu(x) + 1
        assert y.device == "npu"
        assert eager.tanh(x, device="cpu").device == "cpu"
        with pytest.raises(PlacementError, match="npu cannot run cast"):
            x.astype(np.float64)
    z = y * 2
    assert z.device == "npu"
    with trireme.device("cpu"):
        assert (z + eager.relu(x, device="host")).device == "cpu"
    with trireme.device("tpu"), pytest.raises(DeviceError, match="unknown device 'tpu'"):
        eager.relu(x)


def test_python_functions_stay_on_the_host():
    double = trireme.python_op(lambda x: x + x, name="double")
    reason = r"the host calls Python functions \(here double\)"
    with trireme.device("npu"), pytest.raises(PlacementError, match=reason):
        double(eager.tensor(X))
    b = GraphBuilder("function")
    with trireme.device("cpu"):
        y = b.add("python", b.input("x", HALF), **double.attrs())
    with pytest.raises(PlacementError, match=reason):
        trireme.Session(b.finish(y))


def test_models_that_are_converted_in_a_block_are_not_pinned():
    info = helper.make_tensor_value_info
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph(
        [node], "g", [info("x", TensorProto.FLOAT, [2])], [info("y", TensorProto.FLOAT, [2])]
    )
    opsets = [helper.make_opsetid("", 20)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    with trireme.device("npu"):
        assert [node.pin for node in trireme.convert(data).nodes] == [None]
        with trireme.Session(data) as session:
            assert session.run({"x": np.float32([-1, 1])})["y"].tolist() == [0, 1]
        assert named_device() == "npu"


def test_a_block_ends_with_an_error_and_is_of_one_thread():
    with pytest.raises(ZeroDivisionError), trireme.device("npu"):
        seen = []
        thread = threading.Thread(target=lambda: seen.append(named_device()))
        thread.start()
        thread.join()
        assert seen == [None] and named_device() == "npu"
        raise ZeroDivisionError
    assert named_device() is None


@pytest.mark.parametrize("name", ["", 3])
def test_a_name_is_a_text(name):
    with pytest.raises(PlacementError, match="expected the name of a device"), trireme.device(name):
        pass


def doubled(x, n):
    """A loop whose body has a block for the npu."""
    for _ in range(n):
        with trireme.device("npu"):
            x = np.maximum(x, 0) + x
    return x


def branched(x):
    """A branch that has a block for the npu."""
    if x.sum() > 0:
        with trireme.device("npu"):
            x = np.maximum(x, 0) * 2
    return x


def growing(x, n):
    """A loop of growing shapes whose body has a block for the npu."""
    for _ in range(n):
        with trireme.device("npu"):
            x = np.maximum(x, 0)
        x = np.concatenate([x, x])
    return x


PROGRAMS = {doubled: (np.int64(3),), branched: (), growing: (np.int64(2),)}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_pins_in_bodies_are_honoured(program):
    case = X, *PROGRAMS[program]
    graph = trireme.capture(program, *case).graph()
    names = [value.name for value in graph.input_values()]
    with trireme.Session(graph, devices=["cpu", "npu"]) as session:
        (got,) = session.run(dict(zip(names, map(np.asarray, case), strict=True))).values()
        if program is not growing:  # it runs in stages
            feeds = dict(zip(names, map(np.asarray, case), strict=True))
            assert "npu      virtual" in str(session.profile(feeds, runs=1))
    np.testing.assert_allclose(got, program(*case), rtol=1e-2)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_pin_in_a_body_that_a_device_refuses_is_an_error(program):
    """Bodies of types that only a run knows are placed, and refused, by the run."""
    case = X.astype(np.float32), *PROGRAMS[program]
    graph = trireme.capture(program, *case).graph()
    names = [value.name for value in graph.input_values()]
    with pytest.raises(PlacementError, match="relu.*npu|no device can run relu"):
        session = trireme.Session(graph, devices=["cpu", "npu"])
        assert program is growing, "known types are refused before a run"
        session.run(dict(zip(names, map(np.asarray, case), strict=True)))
