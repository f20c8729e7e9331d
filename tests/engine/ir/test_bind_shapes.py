"""Shapes of inputs that a model leaves open: for graphs and .trm files as for ONNX models, and what
errors advise where they are missing.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper
from toy_device import ToyDevice

import trireme
from trireme.cost.model import CostModel
from trireme.ir.bind_shapes import bind_shapes, shapes_at
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.placement.place import place
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
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


def test_without_shapes_one_session_runs_any(model, tmp_path):
    options = ExecutionOptions(model_cache=tmp_path / "cache")
    with Session(model, execution_options=options) as session:
        np.testing.assert_allclose(session.run({"input": X})["y"], WANTED, rtol=1e-5)
        other = session.run({"input": X[:1, :, :2]})["y"]
        np.testing.assert_allclose(
            other, (np.maximum(X, 0) + X)[:1, :, :2].mean((2, 3), keepdims=True), rtol=1e-5
        )


def test_a_placement_needs_shapes_and_the_error_names_the_models_input():
    with pytest.raises(PlanError) as caught:
        place(trireme.convert(open_model()), CostModel({"cpu": ToyDevice("cpu")}))
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
    assert main(["place", str(path), *advised]) == 0


def test_an_input_without_a_shape_is_named():
    with pytest.raises(ConvertError, match=r"--shape input=1,3,224,224"):
        trireme.convert(open_model(None))


def test_padding_that_depends_on_an_open_size_names_the_models_input():
    extra = [
        helper.make_node(
            "AveragePool",
            ["sum"],
            ["z"],
            kernel_shape=[2, 2],
            strides=[2, 2],
            auto_pad="SAME_UPPER",
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


@pytest.mark.parametrize("named", [("m", "n"), ("m", "k"), ("k", "n"), ("m", 5), ("n", "n")])
def test_symbols_may_take_each_others_names(named):
    b = GraphBuilder("two")
    x = b.input("x", TensorType(("n", "m"), "float32"))
    z = b.input("z", TensorType(("n",), "float32"))
    graph = b.finish(b.add("shape", x), b.add("relu", z))
    bound = bind_shapes(graph, {"x": named})
    assert [value.shape for value in bound.input_values()] == [named, named[:1]]
    assert bound.symbols == dict.fromkeys((d for d in named if isinstance(d, str)), (0, None))
    twice = bind_shapes(bound, {"x": (3, 3 if named == ("n", "n") else 5)})
    assert [value.shape for value in twice.input_values()][1] == (3,)


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


@pytest.mark.parametrize(
    ("dim", "bounds"),
    [("n", (0, None)), ("n<=8", (0, 8)), ("2<=n<=8", (2, 8)), ("2<=n", (2, None))],
)
def test_a_symbol_keeps_its_bounds(dim, bounds):
    graph = bind_shapes(trireme.convert(open_model()), {"input": (dim, 3, 5, "W")})
    assert graph.type(graph.inputs[0]).shape == ("n", 3, 5, "W")
    assert graph.symbols == {"n": bounds, "W": (0, None)}
    outside = (bounds[1] or 99) + 1 if bounds[1] else bounds[0] - 1
    if outside >= 0 and bounds != (0, None):
        with pytest.raises(ShapeError, match=f"symbol n is {outside}"):
            bind_shapes(graph, {"input": (outside, 3, 5, 5)})


@pytest.mark.parametrize("dim", ["", "?", "n<8", "8<=n<=2", "n<=m", "a b"])
def test_a_symbol_that_cannot_be_read(dim):
    with pytest.raises(ShapeError, match="dimension"):
        bind_shapes(trireme.convert(open_model()), {"input": (dim, 3, 5, 5)})


def test_bounds_of_one_symbol_hold_together():
    b = GraphBuilder("two")
    x, z = (b.input(name, TensorType(("n", "m"), "float32")) for name in "xz")
    graph = b.finish(b.add("add", x, z))
    bound = bind_shapes(graph, {"x": ("4<=n<=64", "m"), "z": ("n<=32", "m")})
    assert bound.symbols["n"] == (4, 32)
    assert bind_shapes(bound, {"x": ("8<=n<=128", "m")}).symbols["n"] == (8, 32)
    with pytest.raises(ShapeError, match="symbol n: no size is within 0..8 and 9.."):
        bind_shapes(graph, {"x": ("n<=8", "m"), "z": ("9<=n", "m")})
    with pytest.raises(ShapeError, match="symbol n: no size is within 4..32 and 33.."):
        bind_shapes(bound, {"x": ("33<=n", "m"), "z": ("33<=n", "m")})
    with pytest.raises(ShapeError, match="symbol n is 33, expected 4..32"):
        shapes_at(bound, {"n": 33})
