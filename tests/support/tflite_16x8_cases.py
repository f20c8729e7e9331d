"""Models of one TFLite operator each on int16 activations and int8 weights: exact in each case."""

import numpy as np
from tflite_builder import T, constant, one_op
from tflite_cases import NHWC, NONE, RELU, RELU6, RNG, SAME, VALID, case, ints, weights

SHAPE = (2, 9, 7, 19)


def q16(shape, scale):
    return T(shape, "int16", (scale,))


def wide_bias(x, w, count):
    """A bias of int64, beyond int32 at its ends."""
    scales = tuple(x.scales[0] * s for s in w.scales)
    return constant(RNG.integers(-(2**33), 2**33, count), *scales)


def add(name, code, inputs, outputs, kind="", **options):
    case(f"int16 {name}", one_op(code, inputs, outputs, kind, **options))


def windows():
    x = q16(NHWC, 0.00037)
    for tag, out, step, act in (("1", (9, 11), 1, NONE), ("2", (5, 6), 2, RELU6)):
        options = {
            "StrideH": step,
            "StrideW": step,
            "Padding": SAME,
            "FusedActivationFunction": act,
        }
        for channels in (0, 8):
            w = weights("int8", (8, 3, 3, 6), channels)
            operands = [x, w, wide_bias(x, w, 8)]
            y = [q16((1, *out, 8), 0.0043)]
            add(f"CONV_2D {tag} {channels}", "CONV_2D", operands, y, "Conv2DOptions", **options)
        w = weights("int8", (1, 3, 3, 12), 12, 3)
        operands = [x, w, wide_bias(x, w, 12)]
        add(
            f"DEPTHWISE {tag}",
            "DEPTHWISE_CONV_2D",
            operands,
            [q16((1, *out, 12), 0.0017)],
            "DepthwiseConv2DOptions",
            DepthMultiplier=2,
            **options,
        )
        for code in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
            y = [q16((1, *out, 6), 0.00037)]
            window = {"FilterHeight": 3, "FilterWidth": 2}
            add(f"{code} {tag}", code, [x], y, "Pool2DOptions", **window, **options)
    w = weights("int8", (5, 3, 3, 6), 5)
    steps = {"StrideH": 2, "StrideW": 2, "Padding": SAME}
    y = [q16((1, 18, 22, 5), 0.003)]
    operands = [ints(1, 18, 22, 5), w, x, wide_bias(x, w, 5)]
    add("TRANSPOSE_CONV", "TRANSPOSE_CONV", operands, y, "TransposeConvOptions", **steps)


def products():
    x, y = q16((16, 64), 0.00037), q16((16, 48), 0.002)
    for tag, w in (("", weights("int8", (48, 64))), (" channels", weights("int8", (48, 64), 48))):
        for act in (NONE, RELU):
            operands = [x, w, wide_bias(x, w, 48)]
            options = {"FusedActivationFunction": act}
            name = f"FULLY_CONNECTED{tag} {act}"
            add(name, "FULLY_CONNECTED", operands, [y], "FullyConnectedOptions", **options)


def elementwise():
    a, b, y = (q16(SHAPE, s) for s in (0.0005, 0.00021, 0.0006))
    for code, kind in (("ADD", "Add"), ("SUB", "Sub"), ("MUL", "Mul")):
        general = {} if code == "MUL" else {"PotScaleInt16": False}
        out = q16(SHAPE, 0.003) if code == "MUL" else y
        for act in (NONE, RELU6):
            options = {"FusedActivationFunction": act, **general}
            add(f"{code} {act}", code, [a, b], [out], f"{kind}Options", **options)
        narrow = q16((19,), 0.00021)
        add(f"{code} broadcast", code, [a, narrow], [out], f"{kind}Options", **general)
    powers = [q16(SHAPE, 2.0**-k) for k in (11, 12, 11)]
    add("ADD powers of two", "ADD", powers[:2], powers[2:], "AddOptions", PotScaleInt16=False)
    for code in ("MAXIMUM", "MINIMUM"):
        add(code, code, [a, a], [a])
    for code in ("RELU", "RELU6"):
        add(code, code, [a], [y])
    add("LEAKY_RELU", "LEAKY_RELU", [a], [y], "LeakyReluOptions", Alpha=0.3)
    unit = q16(SHAPE, 2.0**-15)
    for scale in (0.0005, 0.00001, 0.003, 2.0**-12, 2.0**-11, 2.0**-13):
        for code in ("LOGISTIC", "TANH"):
            add(f"{code} {scale:g}", code, [q16(SHAPE, scale)], [unit])
    for scale, beta in ((0.0005, 1.0), (0.00002, 1.0), (0.0011, 0.5)):
        name = f"SOFTMAX {scale:g}"
        add(name, "SOFTMAX", [q16(SHAPE, scale)], [unit], "SoftmaxOptions", Beta=beta)
    add("QUANTIZE", "QUANTIZE", [T(SHAPE)], [q16(SHAPE, 0.00004)])
    add("QUANTIZE again", "QUANTIZE", [a], [q16(SHAPE, 0.00031)])
    add("QUANTIZE to int8", "QUANTIZE", [a], [T(SHAPE, "int8", (0.12,), (5,))])
    add("QUANTIZE of int8", "QUANTIZE", [T(SHAPE, "int8", (0.12,), (5,))], [a])
    add("DEQUANTIZE", "DEQUANTIZE", [a], [T(SHAPE)])


def reductions_and_moves():
    a = q16(SHAPE, 0.0005)
    for keep, out in ((True, (2, 1, 1, 19)), (False, (2, 19))):
        y = [q16(out, 0.0003)]
        add(f"MEAN {keep}", "MEAN", [a, ints(1, 2)], y, "ReducerOptions", KeepDims=keep)
    parts = [q16((2, 5), 0.0005), q16((2, 6), 0.0005)]
    whole = [q16((2, 11), 0.0005)]
    add("CONCATENATION", "CONCATENATION", parts, whole, "ConcatenationOptions", Axis=1)
    pads = constant(np.array([[0, 0], [1, 2], [3, 0], [0, 1]], np.int32))
    add("PAD", "PAD", [a, pads], [q16((2, 12, 10, 20), 0.0005)])
    add("TRANSPOSE", "TRANSPOSE", [a, ints(0, 2, 1, 3)], [q16((2, 7, 9, 19), 0.0005)])
    image = q16((1, 6, 8, 3), 0.0005)
    crops = constant(np.zeros((2, 2), np.int32))
    blocks = q16((4, 3, 4, 3), 0.0005)
    add("SPACE_TO_BATCH_ND", "SPACE_TO_BATCH_ND", [image, ints(2, 2), crops], [blocks])
    add("BATCH_TO_SPACE_ND", "BATCH_TO_SPACE_ND", [blocks, ints(2, 2), crops], [image])
    add(
        "RESIZE_NEAREST_NEIGHBOR",
        "RESIZE_NEAREST_NEIGHBOR",
        [image, ints(12, 16)],
        [q16((1, 12, 16, 3), 0.0005)],
        "ResizeNearestNeighborOptions",
    )
    dilated = {"StrideH": 1, "StrideW": 1, "Padding": VALID, "DilationHFactor": 2}
    w = weights("int8", (4, 3, 3, 3), 4)
    operands = [image, w, wide_bias(image, w, 4)]
    add(
        "CONV_2D dilated",
        "CONV_2D",
        operands,
        [q16((1, 2, 6, 4), 0.004)],
        "Conv2DOptions",
        **dilated,
    )


windows()
products()
elementwise()
reductions_and_moves()
