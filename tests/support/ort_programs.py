"""Models of ONNX Runtime's programs, and the two modules that run them."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import trireme.compat.onnxruntime as compat

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'

SIGMOID = HEAD + "sigmoid (float[n, 4, 5] x) => (float[n, 4, 5] y) { y = Sigmoid(x) }"

TWO = (
    HEAD
    + """two (float[n, 3] a, float[n, 3] b) => (float[n, 3] total, float[n] most, int64[n] where)
{
    total = Add(a, b)
    most = ReduceMax <axes = [1], keepdims = 0>(total)
    where = ArgMax <axis = 1, keepdims = 0>(total)
}"""
)

MANY = """many (float[2, 3] f, double[2] d, int32[unk, 3] i, uint8[4] u, bool[2] b, string[2] s,
    float16[2] h) => (float[2, 3] F, double[2] D, int32[m, 3] I, uint8[4] U, bool[2] B,
    string[2] S, float16[2] H)
{
    F = Neg(f)  D = Neg(d)  I = Neg(i)  U = Identity(u)  B = Not(b)  S = Identity(s)  H = Neg(h)
}"""

X = np.random.default_rng(15).standard_normal((3, 4, 5)).astype(np.float32)

A = np.random.default_rng(16).standard_normal((2, 3)).astype(np.float32)

BOTH = pytest.mark.parametrize("ort", [onnxruntime, compat], ids=["onnxruntime", "trireme"])


def model(text):
    return parser.parse_model(text).SerializeToString()


def network():
    """A small convolutional network with weights."""
    rng = np.random.default_rng(1)
    text = (
        HEAD
        + """net (float[n, 3, 16, 16] image) => (float[n, 10] scores)
    {
        a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]>(image, w, c)
        r = Relu(a)
        p = GlobalAveragePool(r)
        f = Flatten(p)
        m = MatMul(f, v)
        scores = Softmax <axis = 1>(m)
    }"""
    )
    proto = parser.parse_model(text)
    shapes = {"w": (8, 3, 3, 3), "c": (8,), "v": (8, 10)}
    for name, shape in shapes.items():
        data = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
    proto.producer_name, proto.domain, proto.model_version = "tests", "org.trireme", 7
    proto.doc_string, proto.graph.doc_string = "a model", "its graph"
    onnx.helper.set_model_props(proto, {"author": "nobody", "classes": "10"})
    return proto.SerializeToString()
