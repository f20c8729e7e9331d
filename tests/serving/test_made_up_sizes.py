"""Models of open shapes that refuse the sizes of the run before they serve, or run in stages."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from trireme.serving.config import ModelSettings
from trireme.serving.layout import ModelFile, stamp_of
from trireme.serving.opening import open_model


def served(path, nodes, x, weights=()):
    y = helper.make_tensor_value_info("y", nodes[-1][2], None)
    made = [helper.make_node(op, names.split(), [out]) for op, names, _, out in nodes]
    graph = helper.make_graph(made, "g", [x], [y], list(weights))
    opset = [helper.make_opsetid("", 17)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    )
    return open_model(ModelFile("net", 1, path, stamp_of(path)), ModelSettings())


@pytest.mark.parametrize("size", [3, 9])
def test_a_model_that_refuses_made_up_sizes_serves(size, tmp_path, caplog):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, "t"])
    w = numpy_helper.from_array(np.ones((1, 1, 3), np.float32), "w")
    with caplog.at_level(logging.WARNING):
        model = served(tmp_path / "m.onnx", [("Conv", "x w", TensorProto.FLOAT, "y")], x, [w])
    assert "'net' serves without a run before" in caplog.text
    with model.session:
        got = model.run({"x": np.ones((1, 1, size), np.float32)})["y"]
        np.testing.assert_array_equal(got, np.full((1, 1, size - 2), 3, np.float32))


def test_a_model_that_runs_in_stages_answers_each_request(tmp_path):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    model = served(tmp_path / "m.onnx", [("NonZero", "x", TensorProto.INT64, "y")], x)
    model.facts = replace(model.facts, devices=("cpu", "host"))
    with model.session:
        for _ in range(3):
            got = model.run({"x": np.array([0, 1, 2], np.float32)})["y"]
            np.testing.assert_array_equal(got, [[1, 2]])
