"""Small sound .tflite files to damage: a few operators, loops, branches and variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import tflite_builder as tfl
from flatbuffers import flexbuffers


def operator_seeds() -> list[bytes]:
    """Return models of one or a few operators, float and quantised."""
    rng = np.random.default_rng(5)
    w = rng.standard_normal((4, 3, 3, 2)).astype(np.float32)
    q = rng.integers(-99, 99, (4, 3, 3, 2)).astype(np.int8)
    window: dict[str, Any] = {
        "Padding": 0,
        "StrideH": 2,
        "StrideW": 2,
        "DilationHFactor": 1,
        "DilationWFactor": 1,
    }
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


def control_seeds() -> list[bytes]:
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
    signatures = [tfl.SignatureDef("add", 0, {"x": 1}, {"y": 3})]
    return [
        tfl.model_of(loop),
        tfl.model_of([choice, *sides]),
        tfl.model_of(state),
        tfl.model_of(state, signatures),
    ]
