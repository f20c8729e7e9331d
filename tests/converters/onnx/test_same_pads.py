"""auto_pad SAME where an open size decides the pads: one session, the shapes of ONNX Runtime."""

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from trireme.runtime.session.session import Session

SEED = 20261123
SIZES = [(1, 1), (2, 3), (7, 8), (8, 7), (9, 12), (31, 30)]


def session_model(nodes, weights, outputs):
    shape = ["n", 4, "h", "w"]
    graph = helper.make_graph(
        nodes,
        "same",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(data, name) for name, data in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def residual(auto):
    """A block with a shortcut: both sides make ceil(size / 2) rows, by windows of unlike sizes."""
    rng = np.random.default_rng(SEED)
    weights = {
        "a": rng.standard_normal((6, 4, 3, 3), np.float32),
        "b": rng.standard_normal((6, 4, 1, 1), np.float32),
        "c": rng.standard_normal((6, 1, 5, 5), np.float32),
    }
    two = {"strides": [2, 2], "auto_pad": auto}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], **two),
        helper.make_node("Conv", ["x", "b"], ["q"], **two),
        helper.make_node("Add", ["p", "q"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["s"], kernel_shape=[3, 2], **two),
        helper.make_node("Conv", ["s", "c"], ["t"], group=6, strides=[3, 1], auto_pad=auto),
        helper.make_node(
            "AveragePool", ["t"], ["y"], kernel_shape=[2, 2], count_include_pad=1, **two
        ),
    ]
    return session_model(nodes, weights, ["r", "y"])


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_pads_follow_the_sizes_of_each_run(auto):
    print("seed", SEED)
    data = residual(auto)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(SEED)
    with Session(data, devices=["cpu"]) as session:
        for batch, (high, wide) in itertools.product((1, 2), SIZES):
            x = draw.standard_normal((batch, 4, high, wide), np.float32)
            found = session.run({"x": x})
            for name, wanted in zip(("r", "y"), peer.run(None, {"x": x}), strict=True):
                assert found[name].shape == wanted.shape
                np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-4)
        assert [stage.tier for stage in session.stages] == ["polymorphic"], session.stages
