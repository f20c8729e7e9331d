"""What converting ONNX does beyond single ops: old opsets, open dimensions, names, folding."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import trireme.ir.op
from trireme.converters.onnx import convert
from trireme.ir.interpreter import run_reference
from trireme.ir.op import get_op
from trireme.passes.pipeline import optimise
from trireme.support.errors import ConvertError

SEED = 20261121


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def node(op, inputs, outputs, **attrs):
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attrs)


def model(nodes, shape, outputs=("y",), weights=(), opset=17):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    ys = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", [x], ys, list(weights))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


OLD = {
    "clip": (10, [node("Clip", "x", "y", min=-0.5, max=0.5)]),
    "clip from below": (7, [node("Clip", "x", "y", min=-0.5)]),
    "pad": (10, [node("Pad", "x", "y", pads=[0, 0, 1, 2, 0, 0, 0, 1], value=3.0)]),
    "slice": (9, [node("Slice", "x", "y", starts=[1, 0], ends=[4, -1], axes=[2, 3])]),
    "split": (11, [node("Split", "x", "a b", axis=1), node("Concat", "b a", "y", axis=1)]),
    "split by sizes": (
        12,
        [node("Split", "x", "a b", axis=1, split=[1, 3]), node("Concat", "b a", "y", axis=1)],
    ),
    "squeeze": (
        11,
        [
            node("ReduceMean", "x", "a", axes=[2]),
            node("Squeeze", "a", "b", axes=[2]),
            node("Unsqueeze", "b", "y", axes=[0, 4]),
        ],
    ),
    "reduce": (12, [node("ReduceSum", "x", "y", axes=[1, -1], keepdims=0)]),
    "softmax of a matrix": (11, [node("Softmax", "x", "y")]),
    "softmax of the last": (12, [node("Softmax", "x", "y", axis=3)]),
    "log softmax": (12, [node("LogSoftmax", "x", "y", axis=2)]),
    "hardmax": (11, [node("Hardmax", "x", "y", axis=1)]),
    "dropout": (7, [node("Dropout", "x", "a"), node("Relu", "a", "y")]),
    "top k": (9, [node("TopK", "x", "y i", k=2)]),
    "upsample": (7, [node("Upsample", "x", "y", mode="nearest", scales=[1.0, 1.0, 2.0, 3.0])]),
    "upsample linear": (
        7,
        [node("Upsample", "x", "y", mode="linear", scales=[1.0, 1.0, 2.0, 2.0])],
    ),
}


def agrees(data, x, limit=1e-6):
    graph = convert(data)
    found = run_reference(graph, {"x": x})
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for name, wanted in zip(found, session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=limit, atol=limit)
        assert found[name].shape == wanted.shape
    return graph


@pytest.mark.parametrize("name", OLD)
def test_old_opsets(name):
    print("seed", SEED)
    opset, nodes = OLD[name]
    x = np.random.default_rng(SEED).standard_normal((2, 4, 5, 6)).astype(np.float32)
    agrees(model(nodes, x.shape, opset=opset), x)


FLATTEN = [
    node("Shape", "x", "s"),
    node("Gather", "s zero", "n"),
    node("Unsqueeze", "n axis", "n1"),
    node("Concat", "n1 rest", "to", axis=0),
    node("Reshape", "x to", "y"),
]
CONSTANTS = [
    numpy_helper.from_array(np.array(0, np.int64), "zero"),
    ints("axis", 0),
    ints("rest", -1),
]


def test_shape_arithmetic_is_folded():
    graph = convert(model(FLATTEN, (2, 4, 5), weights=CONSTANTS))
    assert [n.op for n in graph.nodes] == ["reshape"]
    assert graph.type(graph.outputs[0]).shape == (2, 20)


def test_a_random_node_of_constants_stays(monkeypatch):
    relu = get_op("relu")
    monkeypatch.setitem(trireme.ir.op._OPS, "noise", replace(relu, name="noise", random=True))
    nodes = [node("Noise", "c", "a"), node("Relu", "c", "b"), node("Sum", "x a b", "y")]
    constant = numpy_helper.from_array(np.ones(5, np.float32), "c")
    graph = convert(model(nodes, (2, 4, 5), weights=[constant]))
    assert [n.op for n in graph.nodes] == ["noise", "sum"]


def test_open_dimensions_stay_symbols():
    rest = ints("rest", 20)
    data = model(FLATTEN, ("N", 4, 5), weights=[*CONSTANTS[:2], rest])
    graph = convert(data)
    assert graph.type(graph.outputs[0]).shape == ("N", 20)
    assert "N" in graph.symbols
    for batch in (1, 3):
        agrees(data, np.ones((batch, 4, 5), np.float32))


def test_shapes_bind_symbols_everywhere():
    data = model([node("Relu", "x", "y")], ("N", "C", 5))
    graph = convert(data, shapes={"x": [2, 3, 5]}, name="mine")
    assert graph.type(graph.outputs[0]).shape == (2, 3, 5)
    assert graph.name == "mine" and not graph.symbols
    for shapes in ({"x": [2, 3, 4]}, {"x": [2]}, {"z": [1]}, {"x": [2, -3, 5]}):
        with pytest.raises(ConvertError):
            convert(data, shapes=shapes)


def test_one_symbol_is_one_size():
    data = model([node("Relu", "x", "y")], ("N", "N"))
    with pytest.raises(ConvertError, match="symbol N is bound to 2 and to 3"):
        convert(data, shapes={"x": [2, 3]})


def test_values_keep_the_models_names():
    nodes = [
        node("Conv", "x w", "hidden", name="stem", kernel_shape=[1, 1]),
        node("Identity", "hidden", "same"),
        node("Relu", "same", "y"),
        node("Tanh", "x", "z"),
    ]
    w = numpy_helper.from_array(np.ones((3, 4, 1, 1), np.float32), "w")
    graph = convert(model(nodes, (2, 4, 5, 6), weights=[w], outputs=("y", "hidden", "z")))
    assert [v.name for v in graph.output_values()] == ["y", "hidden", "z"]
    assert graph.nodes[0].source == "onnx:stem" and graph.nodes[1].source == "onnx:Relu_2"
    assert graph.nodes[0].attrs["layout"] == "NCHW"
    assert {v.name for v in graph.values.values()} >= {"x", "w", "hidden", "y", "z"}


def test_inputs_passed_through_and_asked_for_twice():
    graph = convert(
        model(
            [node("Identity", "x", "y"), node("Identity", "x", "z")],
            (2, 3),
            outputs=("y", "z", "x"),
        )
    )
    x = np.ones((2, 3), np.float32)
    assert set(run_reference(graph, {"x": x})) == {"y", "z", "x"}


def branch(op, name):
    out = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    return helper.make_graph([node(op, "a w", name)], name, [], [out])


def test_bodies_capture_outer_values():
    print("seed", SEED)
    then, other = branch("Add", "p"), branch("Mul", "q")
    nodes = [
        node("Tanh", "x", "a"),
        node("ReduceSum", "a", "s", keepdims=0),
        node("Greater", "s nil", "c"),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    weights = [
        numpy_helper.from_array(np.float32(2), "w"),
        numpy_helper.from_array(np.float32(0), "nil"),
    ]
    rng = np.random.default_rng(SEED)
    for shift in (-3, 3):
        x = (rng.standard_normal((2, 3)) + shift).astype(np.float32)
        graph = agrees(model(nodes, (2, 3), weights=weights), x)
    assert graph.nodes[-1].op == "if" and len(graph.nodes[-1].inputs) == 2


def test_a_branch_known_to_be_taken_is_inlined():
    yes = numpy_helper.from_array(np.array(True), "c")
    w = numpy_helper.from_array(np.float32(2), "w")
    then, other = branch("Add", "p"), branch("Mul", "q")
    choice = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    nodes = [node("Tanh", "x", "a"), choice]
    graph = convert(model(nodes, (2, 3), weights=[yes, w]))
    assert [n.op for n in graph.nodes] == ["tanh", "add"]


def test_quantised_ops_of_onnx_runtime():
    print("seed", SEED)
    f32, u8 = np.float32, np.uint8
    consts = {"s": f32(0.03), "z": u8(120), "t": f32(0.02), "u": u8(5), "v": f32(0.05), "n": u8(9)}
    weights = [numpy_helper.from_array(np.asarray(c), name) for name, c in consts.items()]
    own = {"domain": "com.microsoft"}
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("QLinearSigmoid", "q s z t u", "r", **own),
        node("QLinearAdd", "q s z r t u v n", "a", **own),
        node("QLinearMul", "a v n r t u v n", "m", **own),
        node("QLinearConcat", "v n a v n m v n", "c", axis=1, **own),
        node("QLinearGlobalAveragePool", "c v n v n", "g", channels_last=0, **own),
        node("DequantizeLinear", "g v n", "y"),
    ]
    x = np.random.default_rng(SEED).standard_normal((2, 4, 5, 6)).astype(np.float32)
    agrees(model(nodes, x.shape, weights=weights), x, limit=0.051)


def test_stored_integers_are_moved_as_quantised_values():
    """A Pad and a Transpose between QLinear ops fold into quantised types, as Q/DQ models do."""
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    f32, i8 = np.float32, np.int8
    consts = {
        "s": f32(0.03),
        "z": i8(-7),
        "ws": f32(0.01),
        "wz": i8(0),
        "t": f32(0.05),
        "u": i8(4),
        "w": rng.integers(-127, 128, (5, 4, 3, 3)).astype(i8),
        "v": rng.integers(-127, 128, (2, 5, 1, 1)).astype(i8),
    }
    weights = [numpy_helper.from_array(np.asarray(c), name) for name, c in consts.items()]
    weights.append(ints("pads", 0, 0, 1, 1, 0, 0, 0, 2))
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("Pad", "q pads z", "p"),
        node("QLinearConv", "p s z w ws wz t u", "a"),
        node("Pad", "a pads u", "b"),
        node("MaxPool", "b", "m", kernel_shape=[2, 2]),
        node("QLinearConv", "m t u v ws wz t u", "c"),
        node("DequantizeLinear", "c t u", "y"),
    ]
    x = rng.standard_normal((2, 4, 6, 7)).astype(f32)
    graph = agrees(model(nodes, x.shape, weights=weights), x, limit=0.051)
    ops = [n.op for n in optimise(graph).nodes if n.op not in ("transpose", "pad")]
    assert ops == ["quantize", "conv", "max_pool", "conv", "dequantize"]
