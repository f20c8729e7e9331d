"""Indices and lengths known only in a run: negative ones count from the end, wrong ones end it.

Every device says the same sentence; ONNX Runtime refuses the same inputs.
"""

import numpy as np
import onnx
import pytest
from cpu_run import node_graph
from onnx import helper
from opencl import need_opencl

from trireme import PlacementError, RunError, Session
from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.runtime.program.options import AS_GIVEN, ExecutionOptions

F = np.float32
X = np.arange(20, dtype=F).reshape(5, 4)
WIDE = (1 << 32) + 1
"""Cut to 32 bits it would be 1."""


def ints(*values, shape=None, dtype=np.int64):
    array = np.array(values, dtype)
    return array if shape is None else array.reshape(shape)


CASES = {
    # name: op, inputs with right indices, attributes, where the indices are, wrong ones, sentence
    "gather": ("gather", [X, ints(4, -5, 0)], {"axis": 0}, 1, (5, -6, WIDE), "5 elements"),
    "gather last axis": ("gather", [X, ints(3, -4)], {"axis": -1}, 1, (4, -5, -WIDE), "4 elements"),
    "gather int32": (
        "gather", [X, ints(4, -5, dtype=np.int32)], {"axis": 0}, 1, (5, 2**31 - 1), "5 elements",
    ),
    "gather_elements": (
        "gather_elements", [X, ints(4, -5, 0, 1, shape=(1, 4))], {"axis": 0}, 1, (5, WIDE),
        "5 elements",
    ),
    "gather_nd": (
        "gather_nd", [X, ints(4, -4, -5, 3, shape=(2, 2))], {}, 1, (4, WIDE), "4 elements",
    ),
    "scatter_elements": (
        "scatter_elements", [X, ints(4, -5, 0, 1, shape=(1, 4)), X[:1]], {"axis": 0}, 1,
        (5, -6, WIDE), "5 elements",
    ),
    "scatter_nd": ("scatter_nd", [X, ints(-5, shape=(1, 1)), X[:1]], {}, 1, (5, WIDE),
                   "5 elements"),
    "roi_align": (
        "roi_align", [np.ones((2, 1, 4, 4), F), np.array([[0, 0, 3, 3]] * 2, F), ints(1, 0)],
        {"output_height": 1, "output_width": 1}, 2, (2, -1, WIDE), "0..1",
    ),
    "reverse_sequence": ("reverse_sequence", [X, ints(5, 0, 1, 2)], {}, 1, (6, -1, WIDE), "0..5"),
    "gru": (
        "gru", [np.ones((3, 2, 4), F), np.ones((1, 6, 4), F), np.ones((1, 6, 2), F), None,
                ints(0, 3, dtype=np.int32)], {"hidden_size": 2}, 4, (4, -1), "0..3",
    ),
    "max_unpool": (
        "max_unpool", [np.ones((1, 1, 2, 2), F), ints(5, 7, 13, 15, shape=(1, 1, 2, 2))],
        {"kernel_shape": (2, 2), "strides": (2, 2)}, 1, (16, -1), "0..15",
    ),
}  # fmt: skip
ONNX = {
    "roi_align": "RoiAlign", "gru": "GRU", "gather_nd": "GatherND", "scatter_nd": "ScatterND",
    "gather_elements": "GatherElements", "scatter_elements": "ScatterElements",
    "reverse_sequence": "ReverseSequence", "max_unpool": "MaxUnpool", "gather": "Gather",
}  # fmt: skip


def with_index(case, wrong):
    """Return a case's inputs with its last index replaced."""
    inputs, position = list(CASES[case][1]), CASES[case][3]
    inputs[position] = inputs[position].copy()
    inputs[position].reshape(-1)[-1] = wrong
    return inputs


def graph_of(case, constants=()):
    op, inputs, attrs = CASES[case][:3]
    return node_graph(op, inputs, attrs, constants)[0]


def feeds_of(graph, inputs):
    given = dict(zip([f"x{i}" for i in range(len(inputs))], inputs, strict=True))
    return {value.name: given[value.name] for value in graph.input_values()}


def session_on(device, graph):
    if device == "opencl":
        need_opencl()
    try:
        return Session(
            graph, devices=[device], execution_options=AS_GIVEN, calibration=Calibration()
        )
    except PlacementError as error:
        pytest.skip(f"{device} refuses it: {error.summary}")


def reference_error(graph, inputs):
    by_name = feeds_of(graph, inputs)
    with pytest.raises(RunError) as caught:
        interpret(graph, {value.id: by_name[value.name] for value in graph.input_values()})
    return caught.value.summary


@pytest.mark.parametrize("device", ["host", "cpu", "opencl"])
@pytest.mark.parametrize("case", CASES)
def test_every_device_says_the_same_of_a_wrong_index(device, case):
    graph = graph_of(case)
    right, wrong, said = CASES[case][1], CASES[case][4], CASES[case][5]
    feeds = feeds_of(graph, right)
    by_id = {value.id: feeds[value.name] for value in graph.input_values()}
    want = list(interpret(graph, by_id).values())
    with session_on(device, graph) as session:
        for index in wrong:
            inputs = with_index(case, index)
            expected = reference_error(graph, inputs)
            assert f" {index} is outside" in expected and said in expected
            with pytest.raises(RunError) as caught:
                session.run(feeds_of(graph, inputs))
            assert caught.value.summary == expected
            got = session.run(feeds)  # and it works again
            np.testing.assert_allclose(next(iter(got.values())), want[0], rtol=1e-6)


@pytest.mark.parametrize("device", ["host", "cpu", "opencl"])
@pytest.mark.parametrize("case", CASES)
def test_one_run_tells_all_of_its_wrong_indices(device, case):
    """The next run is about its own indices, however many of the last were wrong."""
    graph = graph_of(case)
    inputs, wrong = with_index(case, 0), max(CASES[case][4])
    inputs[CASES[case][3]][...] = wrong
    right, bad = feeds_of(graph, CASES[case][1]), feeds_of(graph, inputs)
    with session_on(device, graph) as session:
        for _ in range(2):
            with pytest.raises(RunError, match=f" {wrong} is outside"):
                session.run(bad)
            session.run(right)


@pytest.mark.parametrize("device", ["host", "cpu", "opencl"])
def test_a_wrong_constant_index_is_told_in_the_run(device):
    graph, _ = node_graph("gather", with_index("gather", WIDE), {"axis": 0}, {1})
    said = f"index {WIDE} is outside the 5 elements"
    with session_on(device, graph) as session, pytest.raises(RunError, match=said):
        session.run({"x0": X})


def embedding_and_more(pins=("opencl", "opencl")):
    """Two gathers, one behind the other with a kernel between: a chain of copies and launches."""
    b = GraphBuilder("chain")
    x = b.input("x", TensorType((5, 4), "float32"))
    i = b.input("i", TensorType((64,), "int64"))
    j = b.input("j", TensorType((3,), "int64"))
    rows = b.add("gather", x, i, axis=0, source="t:first", pin=pins[0])
    more = b.add("relu", rows, source="t:relu")
    picked = b.add("gather", more, j, axis=0, source="t:second", pin=pins[1])
    return b.finish(b.add("neg", picked, names=["y"], source="t:neg"))


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize("execution", ["sunk", "interactive"])
def test_the_first_wrong_index_of_a_chain_is_the_one_told(mode, execution):
    need_opencl()
    good = {"x": X, "i": np.zeros(64, np.int64), "j": ints(0, -64, 63)}
    with Session(
        embedding_and_more(),
        devices=["opencl"],
        execution_options=ExecutionOptions(passes=(), execution=execution),
        mode=mode,
        calibration=Calibration(),
    ) as session:
        for _ in range(3):
            both = {**good, "i": good["i"].copy(), "j": ints(0, 64, 77)}
            both["i"][[7, 9, 50]] = -6, WIDE, 5
            with pytest.raises(RunError, match=r"t:first\): index -6 is outside the 5 elements"):
                session.run(both)
            with pytest.raises(RunError, match=r"t:second\): index 64 is outside the 64"):
                session.run({**both, "i": good["i"]})
            stream = session.stream([good, {**both, "i": good["i"]}])
            with stream, pytest.raises(RunError, match=r"t:second\): index 64"):
                list(stream)
            np.testing.assert_array_equal(session.run(good)["y"], -X[[0, 0, 0]])


@pytest.mark.parametrize("case", CASES)
def test_onnx_runtime_refuses_the_same_indices(case):
    onnxruntime = pytest.importorskip("onnxruntime")
    op, inputs, attrs = CASES[case][:3]
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
        if n
    ]
    node = helper.make_node(ONNX[op], names, ["y"], **attrs)
    graph = helper.make_graph([node], case, given, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    with Session(
        model.SerializeToString(),
        execution_options=ExecutionOptions(model_cache=None),
        calibration=Calibration(),
    ) as ours:
        feeds = {n: a for n, a in zip(names, inputs, strict=True) if n}
        (want,), (got,) = peer.run(None, feeds), ours.run(feeds).values()
        np.testing.assert_allclose(got, want, rtol=1e-5)
        for wrong in CASES[case][4]:
            feeds = {n: a for n, a in zip(names, with_index(case, wrong), strict=True) if n}
            with pytest.raises(Exception, match=r"out of|invalid ind|Invalid|gather_elements"):
                peer.run(None, feeds)
            with pytest.raises(RunError, match=f" {wrong} is outside"):
                ours.run(feeds)


def test_one_hot_of_a_wrong_index_is_all_off():
    """As ONNX says, and ONNX Runtime does: no error."""
    inputs = [ints(0, 9, -1, -9, WIDE, -WIDE), np.array(4, np.int64), np.array([0, 1], F)]
    graph, _ = node_graph("one_hot", inputs, {"axis": -1}, {1, 2})
    with Session(
        graph, devices=["cpu"], execution_options=AS_GIVEN, calibration=Calibration()
    ) as session:
        (got,) = session.run({"x0": inputs[0]}).values()
    np.testing.assert_array_equal(got.argmax(1) * got.any(1), [0, 0, 3, 0, 0, 0])
    np.testing.assert_array_equal(got.sum(1), [1, 0, 1, 0, 0, 0])
