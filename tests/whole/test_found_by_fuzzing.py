"""What random graphs found, made small: each as ONNX Runtime computes it, in every way to load."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

pytest.importorskip("onnxruntime", reason="cases are compared with ONNX Runtime")

from lab.fuzz.check import check  # noqa: E402
from lab.fuzz.grower import assemble  # noqa: E402
from lab.fuzz.oracle import Answer  # noqa: E402
from lab.fuzz.peer import run_model  # noqa: E402

from trireme.ir.builder import GraphBuilder  # noqa: E402
from trireme.ir.graph import Quant, TensorType  # noqa: E402
from trireme.runtime.program.options import AS_GIVEN, ExecutionOptions
from trireme.runtime.session.session import Session

F32 = np.float32
RTOL = 2e-6
SEED = 12


@dataclass
class Case:
    """A model of some nodes from x's to y's; constants are initialisers."""

    nodes: list[Any]
    feeds: dict[str, np.ndarray]
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    opset: int = 21
    units: float = 0.0
    """How far integers may be off."""


def node(op, inputs, outputs="y", **attrs):
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attrs)


def ramp(*shape, dtype=F32):
    return (np.arange(np.prod(shape)) % 19 - 9).reshape(shape).astype(dtype)


def ints(*values):
    return np.array(values, np.int64)


U8 = {"x": ramp(2, 3, dtype=np.uint8), "s": F32(0.015), "z": np.uint8(87), "low": F32(-0.5),
      "high": F32(0.7), "p": ints(0, 0, 2, 0)}  # fmt: skip


def constants(*names):
    return {name: np.asarray(U8[name]) for name in names}


CASES = {
    "a clamp of stored integers has limits that are real numbers": Case(
        [node("DequantizeLinear", "x s z", "a"), node("Clip", "a low high", "b"),
         node("QuantizeLinear", "b s z")],
        {"x": U8["x"]}, constants("s", "z", "low", "high"), units=1.0,
    ),
    "results beyond every integer are clamped, and do not wrap": Case(
        [node("DequantizeLinear", "x s z", "a"), node("Clip", "a low high", "b"),
         node("Add", "a a", "c"), node("Mul", "a a", "d"), node("Relu", "a", "e"),
         *(node("QuantizeLinear", f"{name} tiny z", f"{name}q") for name in "bcde")],
        {"x": U8["x"]},
        constants("s", "z", "low", "high") | {"tiny": np.array(7.2e-13, F32)}, units=1.0,
    ),
    "a cubic resize overshoots its input's range before it is quantised again": Case(
        [node("DequantizeLinear", "x s z", "a"), node("Resize", "a - two", "b", mode="cubic"),
         node("QuantizeLinear", "b t z")],
        {"x": np.array([[[[0, 255, 255, 0], [255, 0, 0, 255]]]], np.uint8)},
        constants("s", "z") | {"two": np.array([1, 1, 2, 2], F32), "t": np.array(0.05, F32)},
    ),
    "a scale that leaves a rest is no ratio of sizes, for stored integers neither": Case(
        [node("DequantizeLinear", "x s z", "a"), node("Resize", "a - half", "b", mode="linear"),
         node("QuantizeLinear", "b s z")],
        {"x": ramp(1, 3, 5, 7, dtype=np.uint8)},
        constants("s", "z") | {"half": np.array([1, 1, 1.5, 1.7], F32)}, units=1.0,
    ),
    "stored integers are padded by their edge": Case(
        [node("QuantizeLinear", "x s z", "a"), node("Pad", "a p", "y", mode="edge")],
        {"x": ramp(2, 3)}, constants("s", "z", "p"),
    ),
    "a backward slice from before the first element takes it": Case(
        [node("Slice", "x a b c d")], {"x": ramp(2, 2)},
        {"a": ints(-4), "b": ints(-5), "c": ints(0), "d": ints(-2)},
    ),
    "an exclusive running sum of nothing": Case(
        [node("CumSum", "x a", exclusive=1)], {"x": ramp(6, 1, 0)}, {"a": np.array(-1)},
    ),
    "softmax of nothing, along an axis and flattened": Case(
        [node("LogSoftmax", "x", "y"), node("Softmax", "x", "z"), node("Hardmax", "x", "w")],
        {"x": ramp(4, 1, 2, 0)}, opset=11,
    ),
    "softmax along an axis of nothing": Case(
        [node("LogSoftmax", "x", "y"), node("Softmax", "x", "z")], {"x": ramp(0, 0, 1, 0)},
    ),
    "the largest of nothing, along an axis of nothing": Case(
        [node("ArgMax", "x", "y"), node("ArgMin", "x", "z", axis=-1, keepdims=0,
         select_last_index=1)], {"x": ramp(0, 3, 0)},
    ),
    "a resize to nothing": Case(
        [node("Resize", "x - s", mode="nearest")], {"x": ramp(1, 2, 1, 2)},
        {"s": np.array([1, 1, 0.5, 1], F32)},
    ),
    "an operand of no elements is widened beside a channels-last one": Case(
        [node("MaxPool", "x", "a", kernel_shape=[2, 2]), node("Div", "a e")],
        {"x": ramp(2, 8, 8, 2), "e": ramp(0)}, opset=9,
    ),
    "the mean of a window that holds pads alone is 0": Case(
        [node("AveragePool", "x", kernel_shape=[2, 1], dilations=[2, 2], pads=[1, 0, 1, 0])],
        {"x": ramp(1, 5, 1, 6)},
    ),
    "log(1 + e^x) keeps its digits below 0": Case(
        [node("Softplus", "x", "y"), node("Mish", "x", "z")],
        {"x": np.array([-1e-3, -1, -9, -16.7, -30, -80], F32)},
    ),
    "nothing is gathered behind batch axes": Case(
        [node("GatherND", "x i", batch_dims=3)], {"x": ramp(0, 1, 2, 1)},
        {"i": np.zeros((0, 1, 2, 6, 1), np.int64)}, opset=17,
    ),
    "a third is a float32 number: pixels lie where float32 arithmetic puts them": Case(
        [node("Resize", "x - s", mode="nearest", nearest_mode="floor")],
        {"x": ramp(6, 3, 6, 5, dtype=np.int32)}, {"s": np.array([1, 1, 1 / 3, 1.6], F32)},
        opset=13,
    ),
    "an interpolated integer is cut toward zero": Case(
        [node("Resize", "x - s", mode="linear")], {"x": ramp(1, 2, 3, 4, dtype=np.int32)},
        {"s": np.array([1, 1, 1, 2.5], F32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_case_is_as_onnx_runtime_computes_it(name):
    case = CASES[name]
    weights = [numpy_helper.from_array(data, key) for key, data in case.constants.items()]
    read = {name for node in case.nodes for name in node.input}
    outputs = [made for node in case.nodes for made in node.output if made not in read]
    model = assemble(case.nodes, case.feeds, weights, outputs, case.opset)
    arrays = run_model(model, case.feeds)
    wanted = {
        n: Answer(a, RTOL * np.abs(a) + case.units) for n, a in zip(outputs, arrays, strict=True)
    }
    assert check(model.SerializeToString(), case.feeds, wanted) == ("", [])


@pytest.mark.filterwarnings("error")
def test_the_mean_of_nothing_is_nan_without_a_warning():
    nodes = [node("ReduceMean", "x", axes=[1])]
    model = assemble(nodes, {"x": ramp(2, 0)}, [], ["y"], 13)
    with Session(
        model.SerializeToString(), execution_options=ExecutionOptions(model_cache=None)
    ) as session:
        assert np.isnan(session.run({"x": ramp(2, 0)})["y"]).all()


def test_an_epsilon_that_is_left_out_is_a_float32_number():
    """In float64, where rows vary as little as epsilon, its last digits show."""
    x = np.arange(12).reshape(6, 2) * 3e-3
    nodes = [node("LayerNormalization", "x s")]
    model = assemble(nodes, {"x": x, "s": np.ones(2)}, [], ["y"], 17)
    feeds = {"x": x, "s": np.ones(2)}
    (wanted,) = run_model(model, feeds)
    with Session(
        model.SerializeToString(), execution_options=ExecutionOptions(model_cache=None)
    ) as session:
        np.testing.assert_allclose(session.run(feeds)["y"], wanted, rtol=1e-12)


def test_a_resize_of_stored_integers_stays_on_rows_and_columns():
    """There it has an integer form; a transpose that sank behind it changed two of 42 bits."""
    b, quant = GraphBuilder("resize"), Quant((0.02,), (-17,))
    x = b.input("x", TensorType((6, 1, 4, 7), "int8", quant))
    (turned,) = b.add_node("transpose", [x], {"perm": (3, 2, 0, 1)}, quants=[quant])
    sizes = b.constant("sizes", np.array([2, 3]))
    how = {"mode": "linear", "coordinate_transformation_mode": "align_corners", "axes": (1, 2)}
    graph = b.finish(*b.add_node("resize", [turned, None, None, sizes], how, quants=[quant]))
    feeds = {"x": np.random.default_rng(SEED).integers(-128, 128, (6, 1, 4, 7)).astype(np.int8)}
    with Session(graph) as session, Session(graph, execution_options=AS_GIVEN) as unoptimised:
        (found,), (wanted,) = (one.run(feeds).values() for one in (session, unoptimised))
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_resize_of_open_sizes_to_nothing(mode):
    """One program served every shape, and took the largest of no positions."""
    b = GraphBuilder("resize")
    x = b.input("x", TensorType(("n", "c", "h", "w"), "float32"))
    scales = b.constant("scales", np.array([1, 1, 2, 0.5], np.float32))
    how = {"mode": mode, "coordinate_transformation_mode": "half_pixel"}
    graph = b.finish(b.add("resize", x, None, scales, None, **how))
    with Session(graph) as session:
        for shape in ((1, 4, 5, 4), (1, 4, 5, 1), (0, 4, 5, 4), (1, 4, 5, 6)):
            (found,) = session.run({"x": ramp(*shape)}).values()
            wanted = (*shape[:2], 2 * shape[2], shape[3] // 2)
            assert found.shape == wanted
            assert not found.size or np.isfinite(found).all()
