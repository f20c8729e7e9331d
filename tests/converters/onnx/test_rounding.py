"""Quantised ONNX operators on exact halves: the integers of ONNX's reference and ONNX Runtime.

The scales are powers of two, a result's twice its input's, so that every second code is a tie.
"""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import trireme
from trireme.ir.interpreter import is_quantized
from trireme.ir.op import all_ops
from trireme.passes.integer_ops import fold_of

STEP = 2.0**-4
ZEROS = {"int8": 3, "uint8": 130}
CODES = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT}

ONE_INPUT = {
    "abs": ("Abs", {}),
    "average_pool": ("AveragePool", {"kernel_shape": [1, 2], "strides": [1, 2]}),
    "ceil": ("Ceil", {}),
    "celu": ("Celu", {"alpha": 2.0}),
    "clip": ("Clip", {}),
    "cos": ("Cos", {}),
    "elu": ("Elu", {}),
    "erf": ("Erf", {}),
    "exp": ("Exp", {}),
    "floor": ("Floor", {}),
    "gelu": ("Gelu", {}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": 0.25}),
    "hard_swish": ("HardSwish", {}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.25}),
    "log": ("Log", {}),
    "max_pool": ("MaxPool", {"kernel_shape": [1, 2]}),
    "mish": ("Mish", {}),
    "neg": ("Neg", {}),
    "pad": ("Pad", {}),
    "reciprocal": ("Reciprocal", {}),
    "reduce_max": ("ReduceMax", {}),
    "reduce_mean": ("ReduceMean", {}),
    "reduce_min": ("ReduceMin", {}),
    "reduce_sum": ("ReduceSum", {}),
    "relu": ("Relu", {}),
    "resize": ("Resize", {"mode": "linear"}),
    "round": ("Round", {}),
    "selu": ("Selu", {}),
    "sigmoid": ("Sigmoid", {}),
    "sign": ("Sign", {}),
    "sin": ("Sin", {}),
    "softmax": ("Softmax", {}),
    "softplus": ("Softplus", {}),
    "softsign": ("Softsign", {}),
    "sqrt": ("Sqrt", {}),
    "swish": ("Swish", {}),
    "tanh": ("Tanh", {}),
}
NUMBERS = {
    "clip": [np.float32(-4.03125), np.float32(3.09375)],
    "pad": [np.array([0, 0, 1, 1, 0, 0, 0, 2])],
    "reduce_max": [np.array([2, 3])],
    "reduce_mean": [np.array([3])],
    "reduce_min": [np.array([2])],
    "reduce_sum": [np.array([1])],
    "resize": [np.array([], np.float32), np.array([1, 1, 2, 2], np.float32)],
}
TWO_INPUTS = {
    "add": "Add",
    "concat": "Concat",
    "div": "Div",
    "max": "Max",
    "min": "Min",
    "mul": "Mul",
    "prelu": "PRelu",
    "sub": "Sub",
}
PRODUCTS = {
    "conv": ("Conv", (8, 4, 3, 3), {}),
    "conv_transpose": ("ConvTranspose", (4, 8, 3, 3), {"strides": [2, 2]}),
    "gemm": ("Gemm", (8, 32), {"transB": 1}),
    "matmul": ("MatMul", (1, 4, 8, 5), {}),
}
MADE_OF_OTHERS = {"fully_connected", "relu6", "relu_n1_to_1", "rsqrt", "square"}
SAME_SCALE = {"average_pool", "max", "min", "resize"}
"""Ops that round nothing, or keep their input's scale to round once."""
CASES = [*ONE_INPUT, *TWO_INPUTS, *PRODUCTS]


def test_every_op_with_an_integer_form_is_here():
    assert {op.name for op in all_ops() if fold_of(op.name)} == {*CASES, *MADE_OF_OTHERS}


class Graph:
    """Nodes and initialisers under way."""

    def __init__(self, dtype):
        self.dtype, self.nodes, self.initialisers = dtype, [], []

    def constant(self, array):
        name = f"c{len(self.initialisers)}"
        self.initialisers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(self, kind, *inputs, domain="", **attrs):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], domain=domain, **attrs))
        return name

    def scale(self, number, zero=None):
        zero = ZEROS[self.dtype] if zero is None else zero
        return self.constant(np.float32(number)), self.constant(np.array(zero, self.dtype))

    def real(self, stored, *scale):
        return self.op("DequantizeLinear", stored, *scale)

    def model(self, shapes):
        last = self.nodes[-1].output[0]
        ends = [helper.make_tensor_value_info(n, CODES[self.dtype], s) for n, s in shapes.items()]
        out = helper.make_tensor_value_info(last, CODES[self.dtype], None)
        graph = helper.make_graph(self.nodes, "halves", ends, [out], self.initialisers)
        opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def every_code(dtype, *shape):
    count = int(np.prod(shape))
    return (np.arange(count) * 37 % 256).astype(np.uint8).view(dtype).reshape(shape)


def qdq_model(name, dtype):
    """An op between DequantizeLinear and QuantizeLinear, and its inputs."""
    g, x = Graph(dtype), every_code(dtype, 1, 4, 8, 8)
    if name == "reciprocal":  # an infinity has no integer in ONNX
        x[x == ZEROS[dtype]] += 1
    feeds, scale = {"x": x}, g.scale(STEP)
    real, wider = g.real("x", *scale), 2.0
    if name in ONE_INPUT:
        kind, attrs = ONE_INPUT[name]
        numbers = NUMBERS.get(name, [])
        y = g.op(kind, real, *(g.constant(number) for number in numbers), **attrs)
    elif name in TWO_INPUTS:
        attrs = {"axis": 1} if name == "concat" else {}
        if name == "div":
            other = g.constant(np.float32(2))
        elif name == "prelu":
            slopes = np.array([-64, -1, 32, 64]).reshape(4, 1, 1) + ZEROS[dtype]
            other = g.real(g.constant(slopes.astype(dtype)), *g.scale(2.0**-6))
        else:
            feeds["b"] = x[:, :, ::-1].copy()
            other = g.real("b", *g.scale(STEP))
        y = g.op(TWO_INPUTS[name], real, other, **attrs)
        wider = 2.0 / STEP if name == "mul" else 2.0
    else:
        kind, shape, attrs = PRODUCTS[name]
        w = np.random.default_rng(1).integers(-4, 5, shape)
        zero = 0 if dtype == "int8" else 128
        weights = g.real(g.constant((w + zero).astype(dtype)), *g.scale(2.0**-3, zero))
        if name == "gemm":
            real = g.op("Reshape", real, g.constant(np.array([8, 32])))
        y = g.op(kind, real, weights, **attrs)
    out = scale if name in SAME_SCALE else g.scale(STEP * wider)
    g.op("QuantizeLinear", y, *out)
    return g.model({k: v.shape for k, v in feeds.items()}), feeds


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", CASES)
def test_qdq(name, dtype):
    model, feeds = qdq_model(name, dtype)
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    with trireme.Session(model.SerializeToString(), devices=["cpu"], threads=1) as session:
        (got,) = session.run(feeds).values()
        inner = [node for node in session.graph.nodes if "quantize" not in node.op]
    np.testing.assert_array_equal(got, want)
    assert all(is_quantized(session.graph, node) for node in inner), str(session.graph)


def qlinear_model(kind, dtype):
    """An operator that takes stored integers with their scales, and its inputs.

    The zero point is even: ONNX Runtime's kernels of com.microsoft add it before they round.
    """
    g, x = Graph(dtype), every_code(dtype, 1, 4, 8, 8)
    zero = {"int8": 4, "uint8": 130}[dtype]
    scale, wider = g.scale(STEP, zero), g.scale(STEP * 2, zero)
    microsoft = {"domain": "com.microsoft"}
    if kind == "QLinearConv":
        w = np.random.default_rng(1).integers(-4, 5, (8, 4, 3, 3)) + ZEROS[dtype]
        weights = (g.constant(w.astype(dtype)), *g.scale(2.0**-3))
        g.op(kind, "x", *scale, *weights, *wider)
    elif kind == "QLinearMatMul":
        w = np.random.default_rng(1).integers(-4, 5, (8, 8)) + ZEROS[dtype]
        g.op(kind, "x", *scale, g.constant(w.astype(dtype)), *g.scale(2.0**-3), *wider)
    elif kind in ("QLinearAdd", "QLinearMul"):
        other = g.scale(STEP if kind == "QLinearAdd" else 1.0, zero)
        g.op(kind, "x", *scale, "b", *other, *wider, **microsoft)
        return g.model({"x": x.shape, "b": x.shape}), {"x": x, "b": x[:, :, ::-1].copy()}
    elif kind == "QLinearConcat":
        g.op(kind, *wider, "x", *scale, "x", *scale, axis=1, **microsoft)
    elif kind == "QLinearAveragePool":
        attrs = {"kernel_shape": [1, 2], "strides": [1, 2]}
        g.op(kind, "x", *scale, *scale, **attrs, **microsoft)
    elif kind == "QLinearGlobalAveragePool":
        g.op(kind, "x", *scale, *wider, **microsoft)
    else:
        attrs = {"alpha": 0.25} if kind == "QLinearLeakyRelu" else {}
        g.op(kind, "x", *scale, *wider, **attrs, **microsoft)
    return g.model({"x": x.shape}), {"x": x}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    "kind",
    [
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearConv",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMatMul",
        "QLinearMul",
        "QLinearSigmoid",
    ],
)
def test_qlinear(kind, dtype):
    model, feeds = qlinear_model(kind, dtype)
    data = model.SerializeToString()
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    with trireme.Session(data, devices=["cpu"], threads=1) as session:
        (got,) = session.run(feeds).values()
    np.testing.assert_array_equal(got, peer.run(None, feeds)[0])
