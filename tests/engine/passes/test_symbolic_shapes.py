"""Dimensions that follow from shape arithmetic are expressions of the model's symbols."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import trireme
from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.builder import GraphBuilder
from trireme.ir.contents import followed
from trireme.ir.dims import add, floor_divide, multiply, substituted
from trireme.ir.graph import UNKNOWN, TensorType
from trireme.ir.op import get_op
from trireme.passes.pipeline import optimise


def attention_like():
    """An ONNX model that computes the shapes of its reshapes, as exporters write them."""
    ints = {
        "first": [0],
        "second": [1],
        "one": [1],
        "heads": [4],
        "rest": [-1],
        "zero": [0],
        "step": [1],
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Gather", ["dims", "first"], ["batch"]),
        helper.make_node("Gather", ["dims", "second"], ["seq"]),
        helper.make_node("Concat", ["batch", "seq", "heads", "rest"], ["split"], axis=0),
        helper.make_node("Reshape", ["x", "split"], ["parts"]),
        helper.make_node("Transpose", ["parts"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Mul", ["batch", "heads"], ["rows"]),
        helper.make_node("Concat", ["rows", "seq", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["turned", "flat"], ["y"]),
        helper.make_node("Slice", ["table", "zero", "seq", "zero", "step"], ["places"]),
        helper.make_node("Add", ["x", "places"], ["z"]),
    ]
    weights = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in ints.items()]
    weights.append(numpy_helper.from_array(np.ones((32, 8), np.float32), "table"))
    graph = helper.make_graph(
        nodes,
        "shapes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", 8])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z")],
        weights,
    )
    imports = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def test_computed_shapes_become_expressions():
    graph = optimise(trireme.convert(attention_like(), shapes={"x": ("b<=4", "s<=32", 8)}))
    y, z = graph.output_values()
    assert y.shape == ("4*b", "s", 2)
    assert z.shape == ("b", "s", 8)
    assert not any("?" in value.shape for value in graph.values.values())


def test_an_unbounded_slice_keeps_the_smaller_of_two():
    graph = optimise(trireme.convert(attention_like()))
    cut = [v.shape for v in graph.values.values() if "min(32,s)" in v.shape]
    assert cut
    assert graph.type(graph.outputs[1]).shape == ("b", "s", 8)  # what runs at all


@pytest.mark.parametrize("shape", [(1, 5, 8), (3, 32, 8), (4, 1, 8)])
def test_expressions_and_results_are_the_peers(shape):
    data = attention_like()
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    wanted = onnxruntime.InferenceSession(data).run(None, {"x": x})
    graph = optimise(trireme.convert(data, shapes={"x": ("b<=4", "s<=32", 8)}))
    sizes = {"b": shape[0], "s": shape[1]}
    for value, array in zip(graph.output_values(), wanted, strict=True):
        assert tuple(substituted(dim, sizes) for dim in value.shape) == array.shape
    bound = optimise(bind_shapes(graph, {"x": shape}))
    with trireme.Session(bound) as session:
        for array, found in zip(wanted, session.run({"x": x}).values(), strict=True):
            np.testing.assert_allclose(found, array, rtol=1e-6)


def expanded():
    """An ONNX model that expands to sizes, -1 for the one there is, as TorchScript."""
    constants = {"first": [0], "rest": [-1], "minus": [-1, -1, -1], "ones": [1, 1, 1]}
    nodes = [
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Gather", ["dims", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest", "rest"], ["asked"], axis=0),
        helper.make_node("Equal", ["asked", "minus"], ["is_rest"]),
        helper.make_node("Where", ["is_rest", "ones", "asked"], ["sizes"]),
        helper.make_node("Expand", ["token", "sizes"], ["tokens"]),
        helper.make_node("Concat", ["tokens", "x"], ["y"], axis=1),
    ]
    weights = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()]
    weights.append(numpy_helper.from_array(np.ones((1, 1, 8), np.float32), "token"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "expanded", [x], [y], weights)
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


def test_sizes_that_are_compared_and_chosen_are_followed():
    data = expanded()
    x = np.random.default_rng(0).standard_normal((3, 5, 8)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(data).run(None, {"x": x})
    with trireme.Session(data) as session:
        (y,) = session.graph.output_values()
        assert y.shape == ("b", "s+1", 8)
        np.testing.assert_array_equal(session.run({"x": x})["y"], wanted)
        assert [stage.tier for stage in session.stages] == ["polymorphic"]


@pytest.mark.parametrize(
    "op", ["equal", "not_equal", "less", "less_or_equal", "greater", "greater_or_equal"]
)
@pytest.mark.parametrize("bounds", [(0, None), (1, 1), (2, 4), (3, 3), (0, 3), (4, None)])
def test_bounds_decide_comparisons_as_sizes_do(op, bounds):
    """What is decided for all sizes is so for each; what differs among them is not decided."""
    least, most = bounds
    compare = get_op(op).reference
    found = followed(op, [np.array("s", object), np.array(3, object)], {}, {"s": bounds})
    answers = {bool(compare(s, 3)) for s in range(least, 9 if most is None else most + 1)}
    assert found.item() == (UNKNOWN if len(answers) > 1 else int(answers.pop()))


def test_a_reshape_that_splits_a_product_of_sums_is_followed():
    """Rows and columns of an image after a convolution of stride 4, joined and split again."""
    b = GraphBuilder("g")
    h, w = floor_divide(add("h", -1), 4), floor_divide(add("w", -1), 4)
    rows, columns = add(h, 1), add(w, 1)
    x = b.input("x", TensorType((multiply(rows, columns), 16), "float32"))
    image = b.input("image", TensorType((rows, columns), "float32"))
    rest = b.constant("rest", np.array([-1]))
    sizes = b.add("concat", b.add("shape", image), rest, axis=0)
    graph = optimise(b.finish(b.add("reshape", x, sizes)))
    assert graph.type(graph.outputs[0]).shape == (rows, columns, 16)


CONV = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
POOL = {"kernel": (3, 2), "strides": (2, 3), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
WINDOWS = [
    ("conv", {**CONV, "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ("conv", {**CONV, "strides": (3, 1), "pads": (0, 2, 1, 0), "dilations": (2, 1)}),
    ("max_pool", {**POOL, "ceil_mode": 1}),
    ("max_pool", {**POOL, "pads": (0, 1, 1, 0)}),
    ("conv_transpose", {**CONV, "strides": (2, 3), "pads": (1, 0, 1, 1)}),
    ("pad", {}),
    ("depth_to_space", {"blocksize": 2}),
    ("space_to_depth", {"blocksize": 1}),
    ("resize", {"axes": (0, 1, 2, 3)}),
]


@pytest.mark.parametrize(("op", "attrs"), WINDOWS)
def test_a_window_over_an_open_axis(op, attrs):
    """The expression of every op has the number that the op infers for that size."""

    def graph(h, w):
        b = GraphBuilder("g")
        x = b.input("x", TensorType((1, h, w, 4), "float32"))
        more = []
        if op.startswith("conv"):
            shape = (4, 3, 3, 4)
            more = [b.constant("w", np.zeros(shape, np.float32))]
        if op == "pad":
            more = [b.constant("p", np.array([0, 1, 2, 0, 0, 3, 0, 0], np.int64))]
        if op == "resize":
            more = [None, b.constant("s", np.array([1, 2, 0.5, 1], np.float32))]
        return (
            b.finish(b.add(op, x, *more, **attrs))
            if op in ("pad", "resize")
            else b.finish(b.add(op, x, *more, layout="NHWC", **attrs))
        )

    symbolic = graph("h", "w")
    made = symbolic.type(symbolic.outputs[0]).shape
    assert "?" not in made
    for h, w in ((5, 9), (6, 6), (7, 4), (30, 31), (64, 11)):
        static = graph(h, w)
        sizes = {"h": h, "w": w}
        found = tuple(substituted(dim, sizes) for dim in made)
        assert found == static.type(static.outputs[0]).shape


def test_a_reshape_that_takes_0_for_a_size_copies_none():
    """Opset 12's LogSoftmax is a reshape, a row-wise one, and a reshape back to the old shape."""
    node = helper.make_node("LogSoftmax", ["x"], ["y"], axis=1)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", "c", 4]) for n in "xy")
    graph = helper.make_graph([node], "old", [x], [y])
    imports = [helper.make_opsetid("", 11)]
    data = helper.make_model(graph, opset_imports=imports, ir_version=7).SerializeToString()
    x = np.random.default_rng(0).standard_normal((8, 2, 4)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(data).run(None, {"x": x})
    with trireme.Session(data) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)


def test_a_number_that_follows_replaces_a_symbol():
    """A row joins an open number of rows: what runs at all has one row."""
    b = GraphBuilder("g")
    x = b.input("x", TensorType(("s", 4), "float32"))
    row = b.input("row", TensorType((4,), "float32"))
    s = b.add("shape", x, end=1)
    one = b.add("add", b.add("sub", s, s), b.constant("one", np.array([1])))
    sizes = b.add("concat", one, b.constant("four", np.array([4])), axis=0)
    y = b.add("relu", b.add("concat", x, b.add("reshape", row, sizes), axis=1))
    graph = optimise(b.finish(y))
    assert graph.type(graph.outputs[0]).shape == (1, 8)
    feeds = {"x": np.ones((1, 4), np.float32), "row": -np.ones(4, np.float32)}
    with trireme.Session(graph) as session:
        (made,) = session.run(feeds).values()
    np.testing.assert_array_equal(made, [[1, 1, 1, 1, 0, 0, 0, 0]])
