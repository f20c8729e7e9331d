"""Sound files of each format, small ones, for tests to damage."""

import numpy as np
import pytest
import tflite_builder as tfl
import zoo
from flatbuffers import flexbuffers
from op_samples import op_samples, sample_graph
from random_graphs import random_graph

from trireme.converters.tflite.walk import convert as convert_tflite
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.model_file import dumps

GROWN = 60
"""Random graphs that are damaged, of a few nodes each."""
SMALL = 120_000
"""Bytes of the largest file of the zoo that is damaged: larger ones are mostly weights."""


def trm_seeds() -> list[bytes]:
    b = GraphBuilder("types")
    b.symbols["rows"] = (1, 9)
    x = b.input("x", TensorType(("rows", 4), "int8", Quant((0.5, 1, 2, 3), (0, 0, 0, 0), 1)))
    names = b.constant("names", np.array(["a", "ünï", ""], object))
    flags = b.constant("flags", np.array([True, False]))
    typed = b.finish(b.add("identity", x, pin="cpu"), names, flags)
    graphs = [random_graph(seed, 8, quantised=seed % 2 == 1) for seed in range(6)]
    seeds = [dumps(graph) for graph in [typed, *graphs]]
    samples = [(op, sample) for op, sample, _ in op_samples() if op.name != "python"]
    seeds += [dumps(sample_graph(op, sample)[0]) for op, sample in samples]  # a file has no code
    return seeds + [dumps(convert_tflite(data)) for data in zoo_files("*.tflite")]


def tflite_seeds() -> list[bytes]:
    rng = np.random.default_rng(5)
    w = rng.standard_normal((4, 3, 3, 2)).astype(np.float32)
    q = rng.integers(-99, 99, (4, 3, 3, 2)).astype(np.int8)
    window = {"Padding": 0, "StrideH": 2, "StrideW": 2, "DilationHFactor": 1, "DilationWFactor": 1}
    x, y = tfl.T((1, 7, 7, 2)), tfl.T((1, 4, 4, 4))
    xq = tfl.T((1, 7, 7, 2), "int8", (0.1,), (3,))
    yq = tfl.T((1, 4, 4, 4), "int8", (0.2,), (-5,))
    bias = np.arange(4)
    ints = tfl.constant(bias.astype(np.int32), 0.1, 0.1, 0.1, 0.1)
    return [
        tfl.one_op(
            "CONV_2D",
            [x, tfl.constant(w), tfl.constant(bias.astype(np.float32))],
            [y],
            "Conv2DOptions",
            **window,
        ),
        tfl.one_op(
            "CONV_2D",
            [xq, tfl.constant(q, 1.0, 1.0, 1.0, 1.0), ints],
            [yq],
            "Conv2DOptions",
            **window,
        ),
        tfl.one_op(
            "RESHAPE",
            [x, tfl.constant(np.array([1, 98], np.int32))],
            [tfl.T((1, 98))],
            "ReshapeOptions",
        ),
        tfl.one_op("ADD", [x, x], [x], "AddOptions"),
        small_tflite(),
        *zoo_files("*.tflite"),
    ]


def small_tflite() -> bytes:
    """A few operators of each kind of field: quantisation, options, lists, a custom flexbuffer."""
    x = tfl.T((1, 6, 6, 2), "int8", (0.1,), (3,))
    w = tfl.constant(np.ones((4, 3, 3, 2), np.int8), 0.1, 0.2, 0.3, 0.4)
    b = tfl.constant(np.zeros(4, np.int32), 0.01, 0.02, 0.03, 0.04)
    y = tfl.T((1, 6, 6, 4), "int8", (0.2,), (-5,))
    turned = tfl.T((1, 36, 4), "int8", (0.2,), (-5,))
    tensors = [
        x,
        w,
        b,
        y,
        tfl.constant(np.array([1, 36, 4], np.int32)),
        turned,
        tfl.T((1, 36, 4)),
        tfl.constant(np.ones((36, 4), np.float32)),
        tfl.T((1, 3, 4)),
        tfl.T((1, 3)),
        tfl.T((1, 3)),
        tfl.T((1,)),
    ]
    window = {"StrideH": 1, "StrideW": 1, "Padding": 0, "DilationHFactor": 1, "DilationWFactor": 1}
    options = {
        "max_detections": 3,
        "max_classes_per_detection": 1,
        "num_classes": 3,
        "nms_iou_threshold": 0.5,
        "y_scale": 1.0,
        "x_scale": 1.0,
        "h_scale": 1.0,
        "w_scale": 1.0,
    }
    custom = bytes(flexbuffers.Dumps(options))
    operators = [
        tfl.Op("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", window),
        tfl.Op("RESHAPE", [3, 4], [5], "ReshapeOptions", {"NewShape": (1, 36, 4)}),
        tfl.Op("DEQUANTIZE", [5], [6]),
        tfl.Op("TFLite_Detection_PostProcess", [6, 6, 7], [8, 9, 10, 11], custom=custom),
    ]
    return tfl.model(tensors, operators, [0], [8, 9, 10, 11])


def onnx_seeds() -> list[bytes]:
    onnx = pytest.importorskip("onnx")
    helper, numbers = onnx.helper, onnx.numpy_helper
    rng = np.random.default_rng(6)
    w = numbers.from_array(rng.standard_normal((4, 2, 3, 3)).astype(np.float32), "w")
    shape = numbers.from_array(np.array([1, -1], np.int64), "shape")
    scale = numbers.from_array(np.float32(0.1), "scale")
    zero = numbers.from_array(np.int8(3), "zero")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("Reshape", ["d", "shape"], ["y"]),
        helper.make_node("Softmax", ["y"], ["z"], axis=1),
    ]

    def info(name, dims):
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)

    def model(nodes, inputs, outputs, constants, opset):
        graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

    constants = [w, shape, scale, zero]
    return [
        model(nodes, [info("x", ["n", 2, 6, 6])], [info("z", None)], constants, opset)
        for opset in (13, 21)
    ] + [
        model(
            [helper.make_node(op, names, ["y"], **attrs)],
            [info("a", [2, 3]), info("b", [3, 4])],
            [info("y", None)],
            [],
            opset,
        )
        for op, names, attrs, opset in (
            ("Gemm", ["a", "b"], {"alpha": 0.5}, 9),
            ("MatMul", ["a", "b"], {}, 13),
            ("Concat", ["a", "a"], {"axis": 1}, 13),
            ("Transpose", ["a"], {"perm": [1, 0]}, 13),
            ("Pad", ["a"], {"pads": [0, 1, 1, 0]}, 7),
            ("Upsample", ["a"], {"scales": [2.0, 2.0]}, 7),
        )
    ]


def onnx_control_seeds() -> list[bytes]:
    """An If with two branches that use a value from outside, and a Loop that counts."""
    onnx = pytest.importorskip("onnx")
    return [
        onnx.parser.parse_model(text).SerializeToString()
        for text in (
            """<ir_version: 10, opset_import: ["" : 21]>
            g (bool c, float[2] x) => (float[2] y) {
                y = If (c) <
                    then_branch = t () => (float[2] a) { a = Add (x, x) },
                    else_branch = e () => (float[2] b) { b = Relu (x) }>
            }""",
            """<ir_version: 10, opset_import: ["" : 21]>
            g (int64 n, float[2] x) => (float[2] y) {
                on = Constant <value = bool {1}> ()
                y = Loop (n, on, x) <body = l (int64 i, bool go, float[2] v) =>
                    (bool again, float[2] w) { again = Identity (go)  w = Add (v, x) }>
            }""",
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[2] x, float[n, 2] rows) => (float[2] y, float[n, 2] all) {
                y, all = Scan <num_scan_inputs = 1, body = s (float[2] v, float[2] row) =>
                    (float[2] w, float[2] out) { w = Add (v, row)  out = Neg (w) }> (x, rows)
            }""",
            """<ir_version: 10, opset_import: ["" : 21]>
            g (int64 n, bool c, float[2] x) => (float[k, 2] all) {
                last, all = Loop (n, , x) <body = l (int64 i, bool go, float[2] v) =>
                    (bool again, float[2] w, float[2] out) {
                        again = Identity (go)
                        w = If (c) <
                            then_branch = t () => (float[2] a) { a = Add (v, x) },
                            else_branch = e () => (float[2] b) { b = Mul (v, x) }>
                        out = Identity (w) }>
            }""",
        )
    ]


def tflite_control_seeds() -> list[bytes]:
    """A WHILE that counts, an IF, and a variable that starts by CALL_ONCE and adds up."""
    number, truth = tfl.T((), "int32"), tfl.T((), "bool")
    x, one = tfl.T((2,)), tfl.constant(np.array(1, np.int32))
    calls = {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2}
    start, limit = (tfl.constant(np.array(n, np.int32)) for n in (0, 5))
    turns = tfl.Op("WHILE", [0, 1], [2, 3], "WhileOptions", calls)
    count = tfl.Op("ADD", [0, 2], [3], "AddOptions")
    loop = [
        tfl.Sub([start, x, number, x], [turns], [1], [3]),
        tfl.Sub([number, x, limit, truth], [tfl.Op("LESS", [0, 2], [3])], [0, 1], [3]),
        tfl.Sub(
            [number, x, one, number, x], [count, tfl.Op("TANH", [1], [4])], [0, 1], [3, 4], "body"
        ),
    ]
    chosen = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    sides = [tfl.Sub([x, x], [tfl.Op(op, [0], [1])], [0], [1], op) for op in ("NEG", "ABS")]
    choice = tfl.Sub([truth, x, x], [tfl.Op("IF", [0, 1], [2], "IfOptions", chosen)], [0, 1], [2])
    kept = {"Container": "", "SharedName": "sum"}
    handle = tfl.Op("VAR_HANDLE", [], [0], "VarHandleOptions", kept)
    once = tfl.Op("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": 1})
    resource = tfl.T((1,), "resource")
    write = "AssignVariableOptions"
    state = [
        tfl.Sub(
            [resource, x, x, x],
            [
                once,
                handle,
                tfl.Op("READ_VARIABLE", [0], [2], "ReadVariableOptions"),
                tfl.Op("ADD", [1, 2], [3], "AddOptions"),
                tfl.Op("ASSIGN_VARIABLE", [0, 3], [], write),
            ],
            [1],
            [3],
        ),
        tfl.Sub(
            [resource, tfl.constant(np.ones(2, np.float32))],
            [handle, tfl.Op("ASSIGN_VARIABLE", [0, 1], [], write)],
            [],
            [],
        ),
    ]
    signatures = [tfl.Signature("add", 0, {"x": 1}, {"y": 3})]
    return [
        tfl.model_of(loop),
        tfl.model_of([choice, *sides]),
        tfl.model_of(state),
        tfl.model_of(state, signatures),
    ]


def zoo_files(pattern: str) -> list[bytes]:
    paths = sorted(zoo.zoo_folder().glob(pattern))
    return [path.read_bytes() for path in paths if path.stat().st_size < SMALL]


def grown_onnx() -> list[bytes]:
    """Random graphs of every family of ops."""
    pytest.importorskip("onnxruntime")
    from fuzzing.grow import grow

    return [grow(seed, least=1, most=4).model.SerializeToString() for seed in range(GROWN)]


def grown_tflite() -> list[bytes]:
    """Random models of LiteRT's operators."""
    from fuzzing.tflite_graphs import grow_tflite

    return [grow_tflite(seed, least=1, most=3).content for seed in range(GROWN)]


SEEDS = {
    "trm": trm_seeds,
    "tflite": lambda: tflite_seeds() + tflite_control_seeds(),
    "onnx": lambda: onnx_seeds() + onnx_control_seeds(),
}
"""Files to read, by format."""
RUN_SEEDS = {
    "trm": trm_seeds,
    "tflite": lambda: SEEDS["tflite"]() + grown_tflite(),
    "onnx": lambda: SEEDS["onnx"]() + grown_onnx(),
}
"""Files to run."""
