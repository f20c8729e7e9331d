"""An ONNX model of a large weight, a large constant and a small one, as a protobuf."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def big_model(rng, channels=64):
    weights = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32)
    table = rng.standard_normal((channels,)).astype(np.float32)
    offset = rng.standard_normal((1, channels, 7, 7)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1]),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(offset, "c")),
        helper.make_node("Add", ["y", "c"], ["z"]),
    ]
    shape = (1, channels, 7, 7)
    graph = helper.make_graph(
        nodes,
        "big",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(table, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return model, weights
