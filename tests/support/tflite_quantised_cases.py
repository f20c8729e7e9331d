"""Models of one quantised TFLite operator each, beside those of `tflite_cases`."""

import numpy as np
from tflite_builder import T, constant, one_op
from tflite_cases import NHWC, NONE, RELU, RELU6, SAME, bias, case, ints, q8, weights


def quantised(dtype):
    x = q8(dtype, NHWC, 0.037, -7)
    one = {"StrideH": 1, "StrideW": 1, "Padding": SAME}
    two = {"StrideH": 2, "StrideW": 2, "Padding": SAME, "FusedActivationFunction": RELU6}
    for tag, out, options in (("1", (9, 11), one), ("2", (5, 6), two)):
        w = weights(dtype, (8, 3, 3, 6), 8)
        case(
            f"{dtype} CONV_2D {tag}",
            one_op(
                "CONV_2D",
                [x, w, bias(x, w)(8)],
                [q8(dtype, (1, *out, 8), 0.07, 3)],
                "Conv2DOptions",
                **options,
            ),
        )
        w = weights(dtype, (1, 3, 3, 12), 12, 3)
        case(
            f"{dtype} DEPTHWISE {tag}",
            one_op(
                "DEPTHWISE_CONV_2D",
                [x, w, bias(x, w)(12)],
                [q8(dtype, (1, *out, 12), 0.07, 3)],
                "DepthwiseConv2DOptions",
                DepthMultiplier=2,
                **options,
            ),
        )
        for code in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
            case(
                f"{dtype} {code} {tag}",
                one_op(
                    code,
                    [x],
                    [q8(dtype, (1, *out, 6), 0.037, -7)],
                    "Pool2DOptions",
                    FilterHeight=3,
                    FilterWidth=2,
                    **options,
                ),
            )
    w = weights(dtype, (5, 3, 3, 6), 5)
    case(
        f"{dtype} TRANSPOSE_CONV",
        one_op(
            "TRANSPOSE_CONV",
            [ints(1, 18, 22, 5), w, x],
            [q8(dtype, (1, 18, 22, 5), 0.07, 3)],
            "TransposeConvOptions",
            StrideH=2,
            StrideW=2,
            Padding=SAME,
        ),
    )
    x, w = q8(dtype, (16, 64), 0.037, 4), weights(dtype, (48, 64))
    y = q8(dtype, (16, 48), 0.2, -11)
    for act in (NONE, RELU):
        case(
            f"{dtype} FULLY_CONNECTED {act}",
            one_op(
                "FULLY_CONNECTED",
                [x, w, bias(x, w)(48)],
                [y],
                "FullyConnectedOptions",
                FusedActivationFunction=act,
            ),
        )
    shape = (2, 9, 7, 19)
    a, b, y = (q8(dtype, shape, s, z) for s, z in ((0.05, 4), (0.021, -9), (0.06, 11)))
    for code, kind in (("ADD", "Add"), ("SUB", "Sub"), ("MUL", "Mul")):
        for act in (NONE, RELU6):
            case(
                f"{dtype} {code} {act}",
                one_op(code, [a, b], [y], f"{kind}Options", FusedActivationFunction=act),
            )
        narrow = q8(dtype, (19,), 0.021, -9)
        case(f"{dtype} {code} broadcast", one_op(code, [a, narrow], [y], f"{kind}Options"))
    for code in ("MAXIMUM", "MINIMUM"):
        case(f"{dtype} {code}", one_op(code, [a, a], [a]))
    for code in ("RELU", "RELU6", "RELU_N1_TO_1", "HARD_SWISH"):
        case(f"{dtype} {code}", one_op(code, [a], [y]))
    case(f"{dtype} LEAKY_RELU", one_op("LEAKY_RELU", [a], [y], "LeakyReluOptions", Alpha=0.3))
    slope = constant(weights(dtype, (1, 1, 19)).data, 0.011, zero=125 if dtype == "uint8" else -3)
    case(f"{dtype} PRELU", one_op("PRELU", [a, slope], [y]))
    unit = T(shape, dtype, (1 / 256,), (-128 if dtype == "int8" else 0,))
    case(f"{dtype} LOGISTIC", one_op("LOGISTIC", [a], [unit]))
    case(
        f"{dtype} TANH",
        one_op("TANH", [a], [T(shape, dtype, (1 / 128,), (0 if dtype == "int8" else 128,))]),
    )
    case(f"{dtype} SOFTMAX", one_op("SOFTMAX", [a], [unit], "SoftmaxOptions", Beta=1.0), 1)
    axes = ints(1, 2)
    out = q8(dtype, (2, 1, 1, 19), 0.03, 2)
    case(f"{dtype} MEAN", one_op("MEAN", [a, axes], [out], "ReducerOptions", KeepDims=True), 1)
    case(
        f"{dtype} MEAN flat",
        one_op("MEAN", [a, axes], [q8(dtype, (2, 19), 0.03, 2)], "ReducerOptions"),
        1,
    )
    case(
        f"{dtype} SUM", one_op("SUM", [a, axes], [q8(dtype, (2, 19), 0.9, 2)], "ReducerOptions"), 1
    )
    pads = constant(np.array([[0, 0], [1, 2], [3, 0], [0, 1]], np.int32))
    case(f"{dtype} PAD", one_op("PAD", [a, pads], [q8(dtype, (2, 12, 10, 20), 0.05, 4)]))
    case(f"{dtype} QUANTIZE", one_op("QUANTIZE", [T(shape)], [q8(dtype, shape, 0.004, 4)]))
    case(f"{dtype} DEQUANTIZE", one_op("DEQUANTIZE", [a], [T(shape)]))
    for other in ("int8", "uint8"):
        case(f"{dtype} requantise {other}", one_op("QUANTIZE", [a], [q8(other, shape, 0.031, 9)]))


def quantised_only():
    for scale in (0.05, 0.25):
        x, y = q8("int8", (1, 256), scale, -128), q8("int8", (1, 256), 0.02, -128)
        case(f"int8 SQRT {scale}", one_op("SQRT", [x], [y]))
    parts = [q8("uint8", (2, 5), 0.05, 4), q8("uint8", (2, 6), 0.07, -20)]
    case(
        "uint8 CONCATENATION",
        one_op(
            "CONCATENATION", parts, [q8("uint8", (2, 11), 0.05, 4)], "ConcatenationOptions", Axis=1
        ),
    )
    x = q8("int8", (2, 9, 19), 0.02, 3)
    case(
        "int8 BATCH_MATMUL",
        one_op(
            "BATCH_MATMUL",
            [x, q8("int8", (2, 19, 7), 0.03, -5)],
            [q8("int8", (2, 9, 7), 0.11, 8)],
            "BatchMatMulOptions",
        ),
    )
    w = weights("int8", (48, 64), 48)
    y = q8("int8", (16, 48), 0.2, -11)
    x = q8("int8", (16, 64), 0.037, 4)
    case(
        "int8 FULLY_CONNECTED channels",
        one_op("FULLY_CONNECTED", [x, w, bias(x, w)(48)], [y], "FullyConnectedOptions"),
    )


quantised("int8")
quantised("uint8")
quantised_only()
