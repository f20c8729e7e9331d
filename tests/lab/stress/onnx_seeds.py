"""Small sound .onnx files to damage: a few operators, loops and branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx


def operator_seeds() -> list[bytes]:
    """Return models of one or a few operators, of old opsets and new ones."""
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

    def info(name: str, dims: Any) -> Any:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)

    def model(nodes: Any, inputs: Any, outputs: Any, constants: Any, opset: int) -> bytes:
        graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", opset)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return bytes(made.SerializeToString())

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


def control_seeds() -> list[bytes]:
    """An If with two branches that use a value from outside, and a Loop that counts."""
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
