"""`x.squeeze(axis)` of an open axis, which torch.onnx.export writes as an If on the axis' size.

The voice detector of Silero has it, once for each of two sampling rates.
"""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import trireme
from trireme.support.errors import RunError

SEED, WIDE = 20261126, 160
FLOAT = TensorProto.FLOAT


def value(name, *dims, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, dims or None)


def squeezed(x, y, axis=2, asks=2, compares=1):
    """The nodes that the exporter writes for y = x.squeeze(axis)."""
    squeeze = helper.make_node("Squeeze", [x, f"{y}_axes"], [f"{y}_less"])
    axes = helper.make_node("Constant", [], [f"{y}_axes"], value_ints=[axis])
    same = helper.make_node("Identity", [x], [f"{y}_same"])
    then = helper.make_graph([axes, squeeze], "then", [], [value(f"{y}_less")])
    other = helper.make_graph([same], "else", [], [value(f"{y}_same")])
    return [
        helper.make_node("Shape", [x], [f"{y}_shape"]),
        helper.make_node("Constant", [], [f"{y}_place"], value_ints=[asks]),
        helper.make_node("Gather", [f"{y}_shape", f"{y}_place"], [f"{y}_size"]),
        helper.make_node("Constant", [], [f"{y}_one"], value_ints=[compares]),
        helper.make_node("Equal", [f"{y}_size", f"{y}_one"], [f"{y}_is_one"]),
        helper.make_node("If", [f"{y}_is_one"], [y], then_branch=then, else_branch=other),
    ]


def made(nodes, inputs, weights=()):
    graph = helper.make_graph(nodes, "g", inputs, [value("y")], list(weights))
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def weight(name, *shape):
    rng = np.random.default_rng([SEED, len(name)])
    return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)


def agrees(session, model, feeds):
    (want,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    got = session.run(feeds)["y"]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=f"seed {SEED}")


def test_agrees_with_onnx_runtime():
    product = helper.make_node("Gemm", ["less", "w"], ["y"])
    nodes, x = [*squeezed("x", "less"), product], value("x", "n", 3, "s")
    model = made(nodes, [x], [weight("w", 3, 4)])
    rng = np.random.default_rng(SEED)
    with trireme.Session(model) as session:
        for batch in (1, 4):
            agrees(session, model, {"x": rng.standard_normal((batch, 3, 1)).astype(np.float32)})
        with pytest.raises(RunError, match="a has rank 3, expected 2"):
            session.run({"x": np.zeros((1, 3, 2), np.float32)})


@pytest.mark.parametrize(
    "asks, compares, shapes",
    [
        (2, 1, [(1, 3, 1), (2, 3, 4), (2, 3, 1)]),
        (0, 1, [(1, 3, 1), (2, 3, 4)]),
        (2, 2, [(1, 3, 5)]),
    ],
)
def test_either_branch_gives_its_rank(asks, compares, shapes):
    model = made(squeezed("x", "y", asks=asks, compares=compares), [value("x", "n", 3, "s")])
    rng = np.random.default_rng(SEED)
    with trireme.Session(model) as session:
        for shape in shapes:
            agrees(session, model, {"x": rng.standard_normal(shape).astype(np.float32)})
        if (asks, compares) != (2, 1):
            with pytest.raises(RunError, match="expected 1"):  # of the branch that is taken
                session.run({"x": np.zeros((1, 3, 2), np.float32)})


def pooled(shape, kept):
    """y = sigmoid(mean of x over its last axis, but for `kept`).squeeze()."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[len(shape) - 1], keepdims=kept),
        helper.make_node("Squeeze", ["mean"], ["less"]),
        helper.make_node("Sigmoid", ["less"], ["y"]),
    ]
    return made(nodes, [value("x", *shape)])


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize(
    "shape", [("n", 4), ("n", 1, 2, 3), ("n", 1, "t"), ("n", "t", 4), ("n", "s", "t", 2)]
)
def test_squeeze_without_axes(shape, kept):
    model, rng = pooled(shape, kept), np.random.default_rng(SEED)
    with trireme.Session(model) as session:
        for sizes in ((1, 5, 7), (3, 5, 7), (3, 1, 7), (1, 1, 1), (3, 5, 7)):
            names = dict(zip(("n", "s", "t"), sizes, strict=True))
            dims = [names.get(dim, dim) for dim in shape]
            agrees(session, model, {"x": rng.standard_normal(dims).astype(np.float32)})
    with trireme.Session(model, shapes={"x": dims}) as session:
        agrees(session, model, {"x": rng.standard_normal(dims).astype(np.float32)})


def rate(name, start):
    """A branch for signals of `start` + 1 samples: x[..., start:].squeeze(-1) W V."""
    nodes = [
        helper.make_node("Constant", [], [f"{name}_start"], value_ints=[start]),
        helper.make_node("Constant", [], [f"{name}_end"], value_ints=[2**31]),
        helper.make_node("Constant", [], [f"{name}_last"], value_ints=[2]),
        helper.make_node(
            "Slice", ["x", f"{name}_start", f"{name}_end", f"{name}_last"], [f"{name}_cut"]
        ),
        *squeezed(f"{name}_cut", f"{name}_less"),
        helper.make_node("MatMul", [f"{name}_less", "w"], [f"{name}_hidden"]),
        helper.make_node("MatMul", [f"{name}_hidden", "v"], [f"{name}_y"]),
    ]
    return helper.make_graph(nodes, name, [], [value(f"{name}_y")])


@pytest.mark.parametrize("wide", [4, WIDE])
def test_a_branch_that_is_not_taken_may_refuse_the_shapes(wide, tmp_path):
    rates = {"then_branch": rate("fast", 0), "else_branch": rate("slow", 1)}
    nodes = [
        helper.make_node("Equal", ["rate", "high"], ["is_high"]),
        helper.make_node("If", ["is_high"], ["y"], **rates),
    ]
    inputs = [value("x", "n", wide, "s"), value("rate", dtype=TensorProto.INT64)]
    inputs[1].type.tensor_type.shape.SetInParent()
    high = numpy_helper.from_array(np.array(16000), "high")
    model = made(nodes, inputs, [high, weight("w", wide, 9 * wide), weight("v", 9 * wide, 5)])
    path, rng = tmp_path / "rates.onnx", np.random.default_rng(SEED)
    path.write_bytes(model)
    with trireme.Session(path) as session:
        for batch, size, hertz in ((2, 1, 16000), (2, 2, 8000), (9, 1, 16000), (3, 2, 8000)):
            x = rng.standard_normal((batch, wide, size)).astype(np.float32)
            agrees(session, model, {"x": x, "rate": np.array(hertz)})
        with pytest.raises(RunError, match="expected"):
            session.run({"x": np.zeros((2, wide, 2), np.float32), "rate": np.array(16000)})
