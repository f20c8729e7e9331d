"""Q/DQ nodes become quantised types and integer ops; results stay within one stored unit."""

import numpy as np
import pytest
from model_builder import Model, f32, ints, weights
from same_results import assert_same_results, op_names

from trireme.ir.builder import scalar
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret, is_quantized
from trireme.passes.pipeline import PASSES, optimise, optimise_report


def zero_of(dtype, value):
    return np.asarray(value, dtype)


def q(m, x, scale=0.05, zero=3, dtype="int8"):
    return m.op("quantize_linear", x, scalar(scale), zero_of(dtype, zero))


def dq(m, x, scale=0.05, zero=3, dtype="int8"):
    return m.op("dequantize_linear", x, scalar(scale), zero_of(dtype, zero))


def qdq(m, x, scale=0.05, zero=3, dtype="int8"):
    return dq(m, q(m, x, scale, zero, dtype), scale, zero, dtype)


def dq_weights(m, *shape, axis=None, dtype="int8", seed=1):
    """Dequantised constant weights, with a scale per index of an axis or one for all."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    middle = (info.min + info.max + 1) // 2
    if axis is None:
        return m.op("dequantize_linear", data, scalar(0.01), zero_of(dtype, middle))
    scales = (rng.random(shape[axis]) * 0.01 + 0.005).astype(np.float32)
    zeros = np.full(shape[axis], middle, dtype)
    return m.op("dequantize_linear", data, scales, zeros, axis=axis)


def folded(graph, *, units=1, whole=True):
    """The optimised graph, whose stored outputs are within some units of the original's."""
    made = optimise(graph)
    assert_same_results(graph, made, units=units)
    assert optimise(made) is made
    if whole:
        inner = [node for node in made.nodes if "quantize" not in node.op]
        assert all(is_quantized(made, node) for node in inner), str(made)
    return made


SPATIAL = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NCHW"}
WINDOW = {
    "kernel": (2, 2),
    "strides": (2, 2),
    "pads": (0, 0, 0, 0),
    "dilations": (1, 1),
    "layout": "NCHW",
}


def bias(m, channels, axis=None):
    """An int32 bias as ONNX Runtime's tool writes it: dequantised at some scale."""
    data = np.random.default_rng(9).integers(-3000, 3000, channels, np.int32)
    return m.op("dequantize_linear", data, scalar(0.0005), np.asarray(0, np.int32))


def conv(m, x, axis=0, **options):
    return m.op("conv", x, dq_weights(m, 6, 4, 3, 3, axis=axis), bias(m, 6), **SPATIAL | options)


OPS = {
    "conv per channel": lambda m, x: conv(m, x),
    "conv per tensor": lambda m, x: conv(m, x, axis=None),
    "conv relu": lambda m, x: m.op("relu", conv(m, x)),
    "conv relu6": lambda m, x: m.op("clip", conv(m, x), scalar(0.0), scalar(6.0)),
    "conv of pad": lambda m, x: conv(
        m, qdq(m, m.op("pad", x, ints(0, 0, 1, 0, 0, 0, 0, 1))), pads=(0, 0, 0, 0)
    ),
    "depthwise": lambda m, x: m.op(
        "conv", x, dq_weights(m, 4, 1, 3, 3, axis=0), groups=4, **SPATIAL
    ),
    "float bias": lambda m, x: m.op("conv", x, dq_weights(m, 6, 4, 3, 3), weights(6), **SPATIAL),
    "matmul": lambda m, x: m.op("matmul", x, dq_weights(m, 5, 7, axis=1)),
    "matmul of both": lambda m, x: m.op("matmul", x, m.op("transpose", x, perm=(0, 1, 3, 2))),
    "gemm": lambda m, x: m.op(
        "gemm",
        m.op("reshape", x, ints(4, 25)),
        dq_weights(m, 8, 25, axis=0),
        bias(m, 8),
        trans_b=1,
    ),
    "add": lambda m, x: m.op("add", x, x),
    "add constant": lambda m, x: m.op("add", x, dq_weights(m, 5)),
    "add number": lambda m, x: m.op("add", x, scalar(0.7)),
    "add relu": lambda m, x: m.op("relu", m.op("add", x, dq_weights(m, 5))),
    "sub": lambda m, x: m.op("sub", x, dq_weights(m, 5)),
    "mul": lambda m, x: m.op("mul", x, dq_weights(m, 4, 1, 1)),
    "mul number": lambda m, x: m.op("mul", x, scalar(-1.7)),
    "div number": lambda m, x: m.op("div", x, scalar(2.3)),
    "max_pool": lambda m, x: m.op("max_pool", x, **WINDOW),
    "average_pool": lambda m, x: m.op("average_pool", x, **WINDOW),
    "mean": lambda m, x: m.op("reduce_mean", x, ints(2, 3)),
    "concat": lambda m, x: m.op("concat", x, qdq(m, x, 0.1037, -5), axis=1),
    "softmax": lambda m, x: m.op("softmax", x, axis=-1),
    "sigmoid": lambda m, x: m.op("sigmoid", x),
    "tanh": lambda m, x: m.op("tanh", x),
    "leaky_relu": lambda m, x: m.op("leaky_relu", x, alpha=0.1),
    "hard_swish": lambda m, x: m.op("hard_swish", x),
    "relu": lambda m, x: m.op("relu", x),
    "moves": lambda m, x: m.op(
        "slice",
        m.op("transpose", m.op("reshape", x, ints(1, 2, 50)), perm=(2, 1, 0)),
        ints(3),
        ints(40),
    ),
    "batch_to_space": lambda m, x: m.op(
        "batch_to_space",
        m.op("reshape", x, ints(4, 5, 5, 1)),
        ints(2, 2),
        ints(0, 0, 0, 1).reshape(2, 2),
    ),
    "compress": lambda m, x: m.op("compress", x, np.array([True, False, True, True]), axis=1),
    "gather_elements": lambda m, x: m.op(
        "gather_elements", x, np.ones((1, 4, 5, 2), np.int64), axis=3
    ),
    "gather_nd": lambda m, x: m.op("gather_nd", x, ints(0, 2, 0, 1).reshape(2, 2)),
    "reverse": lambda m, x: m.op("reverse", x, axes=(1,)),
    "reverse_sequence": lambda m, x: m.op(
        "reverse_sequence", x, ints(3), batch_axis=0, time_axis=1
    ),
    "resize": lambda m, x: m.op(
        "resize", x, None, np.array([1, 1, 2, 2], np.float32), mode="nearest"
    ),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("same", [True, False], ids=["same type", "other type"])
def test_an_op_between_dequantize_and_quantize(name, same):
    m = Model(x=f32(1, 4, 5, 5))
    y = OPS[name](m, qdq(m, m.x))
    graph = m.finish(q(m, y) if same else q(m, y, 0.11, -7))
    whole = same or name != "average_pool"  # one that rounds first would be rounded twice
    folded(graph, whole=whole)


@pytest.mark.parametrize("name", OPS)
def test_an_op_between_integers_of_either_sign(name):
    """A zero point of the output may be no integer of the input's dtype."""
    for dtypes in (("int8", "uint8"), ("uint8", "int8")):
        m = Model(x=f32(1, 4, 5, 5))
        x = qdq(m, m.x, dtype=dtypes[0])
        folded(m.finish(q(m, OPS[name](m, x), 0.1, ZEROS[dtypes[1]], dtypes[1])), whole=False)


ZEROS = {"int8": -128, "uint8": 200}


def test_golden_text_of_a_quantised_conv():
    m = Model(x=f32(1, 5, 5, 4))
    y = m.op(
        "conv",
        qdq(m, m.x),
        dq_weights(m, 6, 3, 3, 4, axis=0),
        bias(m, 6),
        **SPATIAL | {"layout": "NHWC"},
    )
    graph = m.finish(m.op("relu", qdq(m, m.op("relu", y), 0.1, -128)))
    made = optimise(graph, passes=["quantize_folding"])
    assert [line.strip() for line in str(made).splitlines()[1:]] == [
        "%1:int8[1,5,5,4] q(0.05,3) = quantize(%0) {dtype='int8'}",
        "%4:int8[1,5,5,6] q(0.1,-128) = conv(%1, int8[6,3,3,4] q(6 scales, axis 0)const, "
        "int32[6] q(6 scales, axis 0)const) {activation='relu' dilations=(1,1) groups=1 "
        "layout='NHWC' pads=(1,1,1,1) strides=(1,1)}",
        "%5:float32[1,5,5,6] = dequantize(%4)",
        "%6:float32[1,5,5,6] = relu(%5)",
        "return %6",
    ]


def test_inputs_and_outputs_keep_their_plain_integers():
    m = Model(x=TensorType((1, 4, 5, 5), "uint8"))
    y = conv(m, dq(m, m.x, 0.05, 128, "uint8"), axis=None)
    graph = m.finish(q(m, y, 0.1, 100, "uint8"))
    made = folded(graph)
    assert [str(v.type) for v in made.input_values()] == ["uint8[1,4,5,5]"]
    assert [str(v.type) for v in made.output_values()] == ["uint8[1,6,5,5]"]
    assert op_names(made).count("conv") == 1


@pytest.mark.parametrize("dims", [(1, 5, 5, 4), (5, 20)], ids=["transposed", "reshaped too"])
def test_an_input_that_is_rearranged_before_it_is_dequantised(dims):
    """The first conv of an image in the order of a camera works on integers."""
    m = Model(x=TensorType(dims, "uint8"))
    x = m.x if len(dims) == 4 else m.op("reshape", m.x, ints(1, 5, 5, 4))
    x = dq(m, m.op("transpose", x, perm=(0, 3, 1, 2)), 0.05, 128, "uint8")
    made = folded(m.finish(q(m, conv(m, x), 0.1, 100, "uint8")), whole=False)
    (node,) = [node for node in made.nodes if node.op == "conv"]
    assert is_quantized(made, node)
    assert [str(v.type) for v in made.input_values()] == [str(TensorType(dims, "uint8"))]


@pytest.mark.parametrize("off, kept", [(1.0, True), (1.01, False)])
def test_a_bias_beyond_the_digits_of_a_float_keeps_its_integers(off, kept):
    """Scales of another product have other integers."""
    stored = np.array([2**30 + 1, 1 - 2**30, 2**24 + 1, 5], np.int32)
    m = Model(x=f32(1, 3))
    scale = np.float32(0.05) * np.float32(0.01) * np.float32(off)
    bias = m.op("dequantize_linear", stored, scalar(float(scale)), np.asarray(0, np.int32))
    y = m.op("gemm", qdq(m, m.x), dq_weights(m, 4, 3), bias, trans_b=1)
    made = folded(m.finish(q(m, y, 5000.0, 0)))
    found = [v.data for v in made.values.values() if v.dtype == "int32" and v.data is not None]
    assert len(found) == 1 and np.array_equal(found[0], stored) is kept


def test_a_shared_quantised_value_is_made_once():
    m = Model(x=f32(1, 4, 5, 5))
    stored = q(m, m.x)
    y = m.op("add", dq(m, stored), m.op("relu", dq(m, stored)))
    graph = m.finish(q(m, y))
    assert op_names(folded(graph, whole=False)).split().count("quantize") == 1


def test_weights_quantised_by_the_model_itself():
    m = Model(x=f32(2, 8))
    w = qdq(m, m.constant("w", weights(8, 5)), 0.02, 0)
    graph = m.finish(q(m, m.op("matmul", qdq(m, m.x), w)))
    assert "fully_connected" in op_names(folded(graph))


@pytest.mark.parametrize("name", [name for name in PASSES if name != "quantize_folding"])
def test_without_one_pass_the_rest_still_make_integers(name):
    m = Model(x=f32(1, 4, 5, 5))
    y = m.op("relu", conv(m, qdq(m, m.x)))
    w = qdq(m, m.constant("w", weights(5, 8)), 0.02, 0)
    graph = m.finish(q(m, m.op("matmul", qdq(m, y), w)))
    made = optimise(graph, disable=[name])
    assert_same_results(graph, made, units=1)
    products = [node for node in made.nodes if node.op in ("conv", "matmul", "fully_connected")]
    assert [is_quantized(made, node) for node in products] == [True, True], str(made)


def test_weights_alone_become_floats():
    m = Model(x=f32(2, 8))
    graph = m.finish(m.op("matmul", m.x, dq_weights(m, 8, 5, axis=1)))
    made = optimise(graph)
    assert op_names(made) == "fully_connected"
    assert_same_results(graph, made, tol=1e-6)


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 117), ("int8", 0)])
def test_rows_gathered_from_integers_become_floats(dtype, zero):
    m = Model(ids=TensorType((2, 3), "int64"))
    info = np.iinfo(dtype)
    table = np.random.default_rng(1).integers(info.min, info.max + 1, (9, 4)).astype(dtype)
    graph = m.finish(dq(m, m.op("gather", table, m.ids), 0.03, zero, dtype))
    made = optimise(graph)
    assert "dequantize_linear" not in op_names(made), str(made)
    feeds = {graph.inputs[0]: np.array([[0, 8, 3], [1, 1, 7]])}
    for one, other in zip(
        interpret(graph, feeds).values(), interpret(made, feeds).values(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_what_cannot_be_integers_stays_float():
    m = Model(x=f32(2, 8))
    y = m.op("layer_normalization", qdq(m, m.x), weights(8))
    y = m.op("matmul", qdq(m, y), weights(8, 5))
    graph = m.finish(q(m, y))
    made = folded(graph, whole=False)
    assert "layer_normalization" in op_names(made)
    assert made.type(made.nodes[-1].used[0]).dtype == "float32"


def test_scales_per_block_are_evaluated():
    m = Model(x=f32(2, 8))
    data = np.random.default_rng(0).integers(-8, 8, (8, 4)).astype(np.int8)
    w = m.op("dequantize_linear", data, weights(2, 4), axis=0, block_size=4)
    graph = m.finish(m.op("matmul", m.x, w))
    assert op_names(optimise(graph)) == "fully_connected"
    assert_same_results(graph, optimise(graph), tol=1e-6)


def test_a_chain_of_ops_stays_close():
    m = Model(x=f32(1, 4, 9, 9))
    y = qdq(m, m.x)
    for scale in (0.2931, 0.8773, 2.4347):
        z = qdq(m, m.op("relu", conv(m, y)), scale, -128)
        w = dq_weights(m, 4, 6, 1, 1, axis=0)
        z = m.op("conv", z, w, **SPATIAL | {"pads": (0, 0, 0, 0)})
        y = qdq(m, m.op("add", qdq(m, z, scale, 1), y), scale, 1)
    graph = m.finish(q(m, y, 2.4347, 1))
    made = folded(graph, units=8)  # a unit more here or there grows through the layers
    assert op_names(made).count("transpose") == 2  # the output is an image too


def test_the_switch_leaves_q_and_dq():
    m = Model(x=f32(1, 4, 5, 5))
    graph = m.finish(q(m, conv(m, qdq(m, m.x))))
    report = optimise_report(graph, disable=["quantize_folding"])
    assert "quantize_linear" in op_names(report.graph)
    assert_same_results(graph, report.graph, units=1)
