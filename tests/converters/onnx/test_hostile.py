"""ONNX files that are wrong on purpose end in a sentence, or run: sizes, scales, names, graphs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trireme
from trireme.converters.onnx.file import MOST_DENSE
from trireme.support.errors import TriremeError

FLOAT = TensorProto.FLOAT


def model_of(nodes, inputs, constants=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, shape) for shape in inputs],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def run(model):
    with trireme.Session(model.SerializeToString()) as session:
        feeds = {value.name: np.ones(value.type.dims, np.float32) for value in session.inputs}
        return session.run(feeds)


@pytest.mark.parametrize("op, attribute", [("Relu", "body"), ("Softmax", "axis")])
def test_a_graph_where_none_belongs(op, attribute):
    model = model_of([helper.make_node(op, ["x"], ["y"])], [[3]])
    wrong = model.graph.node[0].attribute.add()
    wrong.name, wrong.type = attribute, onnx.AttributeProto.GRAPH
    with pytest.raises(trireme.ConvertError, match=attribute):
        run(model)


def test_a_constant_that_is_a_graph():
    model = model_of([helper.make_node("Constant", [], ["y"])], [])
    wrong = model.graph.node[0].attribute.add()
    wrong.name, wrong.type = "value", onnx.AttributeProto.GRAPH
    with pytest.raises(TriremeError, match="Python object of type GraphProto"):
        run(model)


@pytest.mark.parametrize("size", [1 << 40, 1 << 62, (1 << 63) - 1])
def test_shapes_that_no_array_has(size):
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], allowzero=1)
    model = model_of([node], [[0]], [("shape", np.array([0, size, size]))])
    with pytest.raises(TriremeError, match="larger than any array"):
        run(model)


@pytest.mark.parametrize("scale", [1e38, 3e38, 1e-45])
@pytest.mark.parametrize("op", ["Add", "Mul", "MatMul"])
def test_scales_at_the_ends_of_float32(op, scale):
    """The integers saturate; what they stand for may be infinite."""
    quantize = lambda x, y: helper.make_node("QuantizeLinear", [x, "s", "z"], [y])  # noqa: E731
    real = lambda x, y: helper.make_node("DequantizeLinear", [x, "s", "z"], [y])  # noqa: E731
    nodes = [
        quantize("x", "q"),
        real("q", "d"),
        helper.make_node(op, ["d", "d"], ["e"]),
        quantize("e", "f"),
        real("f", "y"),
    ]
    constants = [("s", np.float32(scale)), ("z", np.int8(0))]
    assert run(model_of(nodes, [[4, 4]], constants))["y"].shape == (4, 4)


def test_sparse_tensors_are_limited_in_all():
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [[3]])
    for number in range(3):
        values = numpy_helper.from_array(np.ones(1, np.int8), f"s{number}")
        places = numpy_helper.from_array(np.zeros(1, np.int64), "places")
        sparse = helper.make_sparse_tensor(values, places, [MOST_DENSE // 4])
        model.graph.sparse_initializer.append(sparse)
    assert run(model)["y"].shape == (3,)
    for number in range(2):
        again = model.graph.sparse_initializer.add()
        again.CopyFrom(model.graph.sparse_initializer[0])
        again.values.name = f"more{number}"
    with pytest.raises(trireme.ModelFileError, match="sparse tensors take over .* elements in all"):
        run(model)


@pytest.mark.parametrize("location", ["a" * 5000, "a/" * 3000, "a" * 300])
def test_data_at_a_name_that_no_file_has(location, tmp_path):
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [[3]])
    weight = model.graph.initializer.add()
    weight.name, weight.data_type, weight.data_location = "w", FLOAT, TensorProto.EXTERNAL
    weight.dims.append(3)
    entry = weight.external_data.add()
    entry.key, entry.value = "location", location
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(trireme.ModelFileError, match="characters|File name too long"):
        trireme.convert(path)
