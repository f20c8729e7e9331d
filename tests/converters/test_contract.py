"""What is true of every converter: what it makes of a model, and what it says of a broken one.

The null converter of examples/ is one of them: it is what a new converter begins with.
"""

import importlib.util
import io
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tflite_builder import Op, T, model
from zoo import CHECKOUT

import trireme.ops  # noqa: F401 - fills the registry
from trireme.ir.verify import check
from trireme.model_file import convert as converters
from trireme.model_file.convert import Format, convert, register_converter
from trireme.runtime.session.session import Session
from trireme.support.errors import ConvertError, ModelFileError

SUFFIX = {"onnx": ".onnx", "tflite": ".tflite", "torch": ".pt2", "text": ".ops"}
X = np.linspace(-1, 1, 4, dtype=np.float32)


@pytest.fixture(autouse=True)
def with_null(monkeypatch):
    """Register the null converter, for one test."""
    path = CHECKOUT / "examples" / "null_converter.py"
    spec = importlib.util.spec_from_file_location("example_null_converter", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.setattr(converters, "_FORMATS", dict(converters._FORMATS))
    register_converter(Format("text", SUFFIX["text"], f"{spec.name}:convert"))


def onnx_model(op):
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", value[:1], value[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return made.SerializeToString()


def tflite_model(op):
    return model([T((4,)), T((4,))], [Op(op, [0], [1])], [0], [1])


def torch_model(op, dynamic_shapes=None):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Model(torch.nn.Module):
        def forward(self, x):
            return getattr(torch, op)(x)

    made = torch.export.export(Model(), (torch.zeros(4),), dynamic_shapes=dynamic_shapes)
    file = io.BytesIO()
    torch.export.save(made, file)
    return file.getvalue()


MODELS = {
    "onnx": (lambda: onnx_model("Neg"), lambda: onnx_model("NoSuchOp")),
    "tflite": (lambda: tflite_model("NEG"), lambda: tflite_model("LSH_PROJECTION")),
    "torch": (lambda: torch_model("neg"), lambda: torch_model("digamma")),
    "text": (lambda: b"neg", lambda: b"neg nonsense"),
}
"""Of each format: a model that negates, and one with an op that is not known."""
every = pytest.mark.parametrize("format", MODELS)


@every
def test_a_model_runs(format):
    graph = convert(MODELS[format][0](), format=format)
    check(graph)
    assert [node.op for node in graph.nodes] == ["neg"]
    (name,) = (value.name for value in graph.input_values())
    with Session(graph, devices=["host"]) as session:
        (y,) = session.run({name: X}).values()
    np.testing.assert_array_equal(y, -X)


@every
def test_a_file_is_known_by_its_suffix(format, tmp_path):
    path = tmp_path / f"model{SUFFIX[format]}"
    path.write_bytes(MODELS[format][0]())
    assert [node.op for node in convert(path).nodes] == ["neg"]


@every
def test_a_session_is_told_of_the_file(format, tmp_path):
    path, opened = tmp_path / f"model{SUFFIX[format]}", []
    path.write_bytes(MODELS[format][0]())
    convert(path, on_open=opened.append)
    assert [file.path for file in opened] == [path]


@every
def test_a_file_that_is_not_there_is_a_sentence(format, tmp_path):
    with pytest.raises(ModelFileError, match="cannot be read|cannot read"):
        convert(tmp_path / f"absent{SUFFIX[format]}", format=format)


@every
def test_nodes_know_their_source(format):
    (node,) = convert(MODELS[format][0](), format=format).nodes
    assert node.source.startswith(f"{format}:")


@every
def test_an_op_that_is_not_known_is_named(format):
    with pytest.raises(ConvertError, match=r"(?i)nosuchop|digamma|lsh_projection|nonsense"):
        convert(MODELS[format][1](), format=format)


@every
def test_what_is_no_model_is_a_sentence(format):
    with pytest.raises((ConvertError, ModelFileError)):
        convert(b"\xff\xfe nothing of the kind", format=format)


@every
def test_shapes_that_are_left_open_can_be_given(format):
    if format == "tflite":
        pytest.skip("the model has no open shape")
    source = MODELS[format][0]()
    if format == "onnx":
        opened = onnx.load_from_string(source)
        opened.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
        opened.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
        source = opened.SerializeToString()
    if format == "torch":
        source = torch_model("neg", ({0: pytest.importorskip("torch").export.Dim.DYNAMIC},))
    (value,) = convert(source, format=format, shapes={"x": (7,)}).input_values()
    assert value.type.dims == (7,)
