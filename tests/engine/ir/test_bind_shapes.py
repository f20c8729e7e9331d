"""Shapes of inputs that a model leaves open: for graphs and .trm files as for ONNX models, and what
errors advise where they are missing.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper

import trireme
from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.runtime.options import ExecutionOptions
from trireme.runtime.session import Session
from trireme.support.errors import ConvertError, PlanError, ShapeError
from trireme.tools.cli import main


def open_model(shape=("N", 3, "H", "W"), extra=()):
    """An ONNX model of an open shape: relu(input) + input, averaged over rows and columns."""
    nodes = [
        helper.make_node("Relu", ["input"], ["inner"]),
        helper.make_node("Add", ["inner", "input"], ["sum"]),
        helper.make_node("GlobalAveragePool", ["sum"], ["y"]),
        *extra,
    ]
    x = helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "open", [x], [y])
    imports = [helper.make_opsetid("", 22)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


SHAPES = {"input": (2, 3, 5, 4)}
X = np.arange(-60, 60, dtype=np.float32).reshape(SHAPES["input"])
WANTED = (np.maximum(X, 0) + X).mean((2, 3), keepdims=True)


@pytest.fixture(params=["bytes", "path", "graph", ".trm", "bytes of .trm"])
def model(request, tmp_path):
    data = open_model()
    if request.param == "bytes":
        return data
    path = tmp_path / "open.onnx"
    path.write_bytes(data)
    if request.param == "path":
        return path
    graph = trireme.convert(data)
    if request.param == "graph":
        return graph
    trireme.save(graph, tmp_path / "open.trm")
    return (
        tmp_path / "open.trm" if request.param == ".trm" else (tmp_path / "open.trm").read_bytes()
    )


def test_a_session_takes_shapes_for_every_kind_of_model(model, tmp_path):
    for _ in range(2):
        with Session(
            model, shapes=SHAPES, execution_options=ExecutionOptions(model_cache=tmp_path / "cache")
        ) as session:
            assert session.inputs[0].shape == SHAPES["input"]
            np.testing.assert_allclose(session.run({"input": X})["y"], WANTED, rtol=1e-5)


def test_without_shapes_the_error_names_the_models_input(model, tmp_path):
    with pytest.raises(PlanError) as caught:
        Session(model, execution_options=ExecutionOptions(model_cache=tmp_path / "cache"))
    assert caught.value.fix == (
        "give the inputs' shapes, e.g. --shape input=1,3,224,224, "
        "or shapes={'input': (1, 3, 224, 224)} in Python"
    )
    assert "input" in caught.value.summary and "inner" not in str(caught.value)


def test_the_advice_can_be_followed_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "open.onnx"
    path.write_bytes(open_model())
    assert main(["run", str(path)]) != 0
    advised = capsys.readouterr().err.partition("e.g. ")[2].partition(", or")[0].split()
    assert advised == ["--shape", "input=1,3,224,224"]
    assert main(["run", str(path), *advised]) == 0


def test_a_shape_that_values_decide_has_no_such_advice():
    builder = GraphBuilder("rows")
    x = builder.input("x", TensorType((4,), "float32"))
    with pytest.raises(PlanError) as caught:
        Session(builder.finish(builder.add("non_zero", x)))
    assert caught.value.fix == ""


def test_an_input_without_a_shape_is_named():
    with pytest.raises(ConvertError, match=r"--shape input=1,3,224,224"):
        trireme.convert(open_model(None))


def test_padding_that_depends_on_an_open_size_names_the_models_input():
    extra = [
        helper.make_node(
            "MaxPool", ["sum"], ["z"], kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER"
        )
    ]
    with pytest.raises(ConvertError, match=r"--shape input=1,3,224,224"):
        trireme.convert(open_model(extra=extra))


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ({"x": (1, 2)}, "no input is called 'x'"),
        ({"input": (1, 3)}, "expected 4 dimensions"),
        ({"input": (1, 4, 5, 5)}, "was given"),
        ({"input": (-1, 3, 5, 5)}, "was given"),
    ],
)
def test_shapes_that_do_not_fit(shapes, sentence):
    with pytest.raises(ShapeError, match=sentence):
        bind_shapes(trireme.convert(open_model()), shapes)


def test_an_open_dimension_may_be_0():
    bound = bind_shapes(trireme.convert(open_model()), {"input": (0, 3, 5, 5)})
    assert bound.type(bound.outputs[0]).shape == (0, 3, 1, 1)


def test_a_symbol_is_bound_in_every_input_and_within_its_bounds():
    builder = GraphBuilder("pair")
    builder.symbols["N"] = (1, 8)
    a, b = (builder.input(name, TensorType(("N", 2), "float32")) for name in "ab")
    graph = builder.finish(builder.add("add", a, b, names=["y"]))
    bound = bind_shapes(graph, {"a": (3, 2)})
    assert [value.shape for value in (*bound.input_values(), *bound.output_values())] == [
        (3, 2)
    ] * 3
    assert bound.symbols == {}
    with pytest.raises(ShapeError, match="symbol N is bound to 3 and to 4"):
        bind_shapes(graph, {"a": (3, 2), "b": (4, 2)})
    with pytest.raises(ShapeError, match=r"symbol N is 9, expected 1\.\.8"):
        bind_shapes(graph, {"a": (9, 2)})


def test_bodies_of_control_flow_are_bound_too():
    body = GraphBuilder("body")
    inner = body.input("inner", TensorType(("N",), "float32"))
    body = body.finish(body.add("relu", inner))
    builder = GraphBuilder("outer")
    condition = builder.input("condition", TensorType((), "bool"))
    x = builder.input("x", TensorType(("N",), "float32"))
    made = builder.add("if", condition, x, then_branch=body, else_branch=body, names=["y"])
    bound = bind_shapes(builder.finish(made), {"x": (3,)})
    assert bound.type(bound.outputs[0]).shape == (3,)
    assert bound.nodes[0].attrs["then_branch"].type(0).shape == (3,)
    feeds = {"condition": np.array(True), "x": np.array([-1, 0, 2], np.float32)}
    np.testing.assert_array_equal(run_reference(bound, feeds)["y"], [0, 0, 2])
