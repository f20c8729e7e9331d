"""TensorFlow Lite operators that compute: a line each for the same op here, else a function."""

from __future__ import annotations

from typing import Any

import numpy as np
from flatbuffers import flexbuffers

from trireme.converters.tflite.file import reading
from trireme.converters.tflite.linear import padded, padding, spatial, strides
from trireme.converters.tflite.use import Converter, OperatorUse
from trireme.ops.integer import dequantized, power_of_two
from trireme.support.dtypes import FLOATS


def same(op: str, **attrs: Any) -> Converter:
    """Convert an operator to the op of the same inputs."""
    return lambda use: use.done(op, *use.values(), **attrs)


def fused(op: str) -> Converter:
    """Convert a binary operator with a fused activation."""

    def convert(use: OperatorUse) -> None:
        if op in ("add", "sub") and use.option("PotScaleInt16", True):
            _check_no_shift(use)
        use.done(op, use.value(0), use.value(1), activation=use.activation())

    return convert


def _check_no_shift(use: OperatorUse) -> None:
    """Refuse int16 whose scales are powers of two: LiteRT only shifts such a sum.

    Source: TensorFlow Lite, add.cc, sub.cc: pot_scale_int16
    """
    quants = [use.quant(0), use.quant(1), use.output().quant]
    if use.type(0).dtype == "int16" and all(
        quant is not None and power_of_two(quant.scale) is not None for quant in quants
    ):
        raise use.fail("a sum of int16 by shifts (pot_scale_int16) is not supported")


def reduction(op: str) -> Converter:
    """Convert a reduction: TensorFlow Lite reduces nothing when there are no axes."""
    return lambda use: use.done(
        op,
        use.value(0),
        use.int_constant(use.ints(1)),
        keepdims=int(use.option("KeepDims", False)),
        noop_with_empty_axes=1,
    )


def _window(use: OperatorUse) -> list[int]:
    return [use.option("FilterHeight"), use.option("FilterWidth")]


def max_pool(use: OperatorUse) -> None:
    """MAX_POOL_2D; a border that a run decides holds the least number."""
    dtype, window = use.type(0).dtype, _window(use)
    least = -np.inf if dtype in FLOATS else np.iinfo(dtype).min
    x, pads = padded(use, spatial(use, 0), window, strides(use), [1, 1], fill=least)
    _pooled(use, "max_pool", x, window, pads)


def average_pool(use: OperatorUse) -> None:
    """AVERAGE_POOL_2D: the border does not count."""
    window, sizes = _window(use), spatial(use, 0)
    is_open = any(not isinstance(size, int) for size in sizes)
    if is_open and use.quant(0) is None:
        x, pads = padded(use, sizes, window, strides(use), [1, 1])
        if x != use.value(0):
            _share_of_pads(use, x, window)
            return
    pads = padding(use, spatial(use, 0), window, strides(use), [1, 1])
    _pooled(use, "average_pool", use.value(0), window, pads, count_include_pad=0)


def _share_of_pads(use: OperatorUse, x: int, window: list[int]) -> None:
    """Emit the average of a padded window, divided by the share of it that is no border."""
    shape = use.add("shape", use.value(0), start=1, end=3)
    one = use.int_constant([1])
    ones = use.add("expand", use.float_constant(1.0), use.add("concat", one, shape, one, axis=0))
    attrs: dict[str, Any] = {
        "kernel": window,
        "strides": strides(use),
        "dilations": (1, 1),
        "layout": "NHWC",
    }
    beside = padded(use, spatial(use, 0), window, strides(use), [1, 1], x=ones)[0]
    means, shares = (
        use.add("average_pool", each, pads=(0, 0, 0, 0), count_include_pad=0, **attrs)
        for each in (x, beside)
    )
    use.done("div", means, shares, activation=use.activation())


def _pooled(
    use: OperatorUse, op: str, x: int, window: list[int], pads: tuple[int, ...], **attrs: Any
) -> None:
    use.done(
        op,
        x,
        kernel=window,
        strides=strides(use),
        dilations=(1, 1),
        pads=pads,
        layout="NHWC",
        activation=use.activation(),
        **attrs,
    )


def l2_pool(use: OperatorUse) -> None:
    """L2_POOL_2D: the root of the mean of the squares."""
    window = _window(use)
    pads = padding(use, spatial(use, 0), window, strides(use), [1, 1])
    means = use.add(
        "average_pool",
        use.add("square", use.value(0)),
        kernel=window,
        strides=strides(use),
        dilations=(1, 1),
        pads=pads,
        layout="NHWC",
        count_include_pad=0,
    )
    activation = use.activation()
    if activation:
        use.done(activation, use.add("sqrt", means))
    else:
        use.done("sqrt", means)


def resize(mode: str) -> Converter:
    """Convert RESIZE_BILINEAR or RESIZE_NEAREST_NEIGHBOR of an NHWC image."""

    def convert(use: OperatorUse) -> None:
        corners, half = use.option("AlignCorners", False), use.option("HalfPixelCenters", False)
        how = "align_corners" if corners else "half_pixel" if half else "asymmetric"
        nearest = "floor" if how == "asymmetric" else "round_prefer_ceil"
        use.done(
            "resize",
            use.value(0),
            None,
            None,
            use.int_constant(use.ints(1)),
            mode=mode,
            coordinate_transformation_mode=how,
            nearest_mode=nearest,
            axes=(1, 2),
        )

    return convert


def softmax(use: OperatorUse) -> None:
    """SOFTMAX over the last axis, with beta."""
    use.done("softmax", use.value(0), axis=-1, beta=float(use.option("Beta", 1.0)))


def batch_matmul(use: OperatorUse) -> None:
    """BATCH_MATMUL: an adjoint becomes a transpose of the last two axes."""
    operands = []
    for position, adjoint in ((0, use.option("AdjX", False)), (1, use.option("AdjY", False))):
        value, rank = use.value(position), len(use.type(position).shape)
        if adjoint:
            perm = [*range(rank - 2), rank - 1, rank - 2]
            value = use.add("transpose", value, perm=perm, quant=use.quant(position))
        operands.append(value)
    use.done("matmul", *operands)


def arg_reduction(op: str) -> Converter:
    """Convert ARG_MAX or ARG_MIN (x, axis), whose result may be int32."""

    def convert(use: OperatorUse) -> None:
        (axis,) = use.ints(1)
        options: dict[str, Any] = {"axis": axis, "keepdims": 0}
        if use.output().dtype == "int64":
            use.done(op, use.value(0), **options)
        else:
            use.done("cast", use.add(op, use.value(0), **options), to=use.output().dtype)

    return convert


def dequantize(use: OperatorUse) -> None:
    """DEQUANTIZE: constants become float constants, float16 is a cast."""
    data = use.builder.values[use.value(0)].data
    if use.type(0).dtype == "float16":
        if data is not None:
            name = use.tensor(0).name
            use.bind(0, use.builder.constant(name, data.astype(np.float32)))
        else:
            use.done("cast", use.value(0), to="float32")
    elif data is not None and use.quant(0) is not None:
        name = use.tensor(0).name
        use.bind(0, use.builder.constant(name, dequantized(data, use.type(0))))
    else:
        use.done("dequantize", use.value(0))


def gelu(use: OperatorUse) -> None:
    """GELU, exact or by tanh."""
    kind = "tanh" if use.option("Approximate", False) else "none"
    use.done("gelu", use.value(0), approximate=kind)


def select(use: OperatorUse) -> None:
    """SELECT (condition, x, y), whose values must have one quantisation."""
    if not use.quant(1) == use.quant(2) == use.output().quant:
        raise use.fail("x, y and the output have different quantisation")
    use.done("where", *use.values())


def l2_normalization(use: OperatorUse) -> None:
    """L2_NORMALIZATION: x / sqrt(max(sum(x**2), 1e-6)) along the last axis."""
    if use.quant(0) is not None:
        raise use.fail("L2_NORMALIZATION of quantised values is not supported")
    squares = use.add("mul", use.value(0), use.value(0))
    total = use.add("reduce_sum", squares, use.int_constant([-1]), keepdims=1)
    norm = use.add("sqrt", use.add("max", total, use.float_constant(1e-6)))
    use.done("div", use.value(0), norm, activation=use.activation())


def relu_0_to_1(use: OperatorUse) -> None:
    """RELU_0_TO_1 as a clip."""
    use.done("clip", use.value(0), use.float_constant(0.0), use.float_constant(1.0))


def rfft2d(use: OperatorUse) -> None:
    """RFFT2D (x, fft_length): the complex spectrum of the last two axes."""
    use.done("rfft2d", use.value(0), fft_length=use.ints(1))


def densify(use: OperatorUse) -> None:
    """DENSIFY of a constant that is stored sparse: the file's reader has made the array dense."""
    name, data = use.output().name, use.constant(0)
    use.bind(0, use.builder.constant(name, data, use.quant(0)))


def detection_post_process(use: OperatorUse) -> None:
    """TFLite_Detection_PostProcess (boxes, scores, anchors), whose options are a flexbuffer."""
    with reading(f"{use.source} custom_options"):
        given = flexbuffers.GetRoot(use.operator.custom).AsMap

        def number(key: str, default: float) -> float:
            try:
                value = given[key]
            except KeyError:
                return default
            return float(value.AsFloat)

        attrs: dict[str, Any] = {
            "max_detections": int(number("max_detections", 0)),
            "max_classes_per_detection": int(number("max_classes_per_detection", 1)),
            "detections_per_class": int(number("detections_per_class", 100)),
            "use_regular_nms": bool(number("use_regular_nms", 0)),
            "score_threshold": number("nms_score_threshold", 0.0),
            "iou_threshold": number("nms_iou_threshold", 0.0),
            "num_classes": int(number("num_classes", 0)),
            "scales": tuple(number(f"{k}_scale", 0.0) for k in "yxhw"),
        }
    inputs = []
    for position in range(3):
        value, quant = use.value(position), use.quant(position)
        data = use.builder.values[value].data
        if quant is not None and data is not None:
            name = use.tensor(position).name
            value = use.builder.constant(name, dequantized(data, use.type(position)))
        elif quant is not None:
            value = use.add("dequantize", value)
        inputs.append(value)
    use.done("detection_post_process", *inputs, **attrs)


COMPUTERS: dict[str, Converter] = {
    "ABS": same("abs"),
    "ADD": fused("add"),
    "ARG_MAX": arg_reduction("arg_max"),
    "ARG_MIN": arg_reduction("arg_min"),
    "AVERAGE_POOL_2D": average_pool,
    "BATCH_MATMUL": batch_matmul,
    "BITWISE_XOR": same("bitwise_xor"),
    "CAST": lambda use: use.done("cast", use.value(0), to=use.output().dtype),
    "CEIL": same("ceil"),
    "COMPLEX_ABS": same("complex_abs"),
    "COS": same("cos"),
    "DENSIFY": densify,
    "DEQUANTIZE": dequantize,
    "DIV": fused("div"),
    "ELU": same("elu"),
    "EQUAL": same("equal"),
    "EXP": same("exp"),
    "FLOOR": same("floor"),
    "FLOOR_DIV": same("floor_div"),
    "GELU": gelu,
    "GREATER": same("greater"),
    "GREATER_EQUAL": same("greater_or_equal"),
    "HARD_SWISH": same("hard_swish"),
    "L2_NORMALIZATION": l2_normalization,
    "L2_POOL_2D": l2_pool,
    "IMAG": same("complex_imag"),
    "LEAKY_RELU": lambda use: use.done("leaky_relu", use.value(0), alpha=use.option("Alpha", 0.0)),
    "LESS": same("less"),
    "LESS_EQUAL": same("less_or_equal"),
    "LOG": same("log"),
    "LOGICAL_AND": same("and"),
    "LOGICAL_NOT": same("not"),
    "LOGICAL_OR": same("or"),
    "LOGISTIC": same("sigmoid"),
    "LOG_SOFTMAX": same("log_softmax", axis=-1),
    "MAXIMUM": same("max"),
    "MAX_POOL_2D": max_pool,
    "MEAN": reduction("reduce_mean"),
    "MINIMUM": same("min"),
    "MUL": fused("mul"),
    "NEG": same("neg"),
    "NOT_EQUAL": same("not_equal"),
    "POW": same("pow"),
    "PRELU": same("prelu"),
    "QUANTIZE": lambda use: use.done("quantize", use.value(0), dtype=use.output().dtype),
    "REAL": same("complex_real"),
    "REDUCE_MAX": reduction("reduce_max"),
    "REDUCE_MIN": reduction("reduce_min"),
    "REDUCE_PROD": reduction("reduce_prod"),
    "RELU": same("relu"),
    "RELU6": same("relu6"),
    "RELU_0_TO_1": relu_0_to_1,
    "RELU_N1_TO_1": same("relu_n1_to_1"),
    "RESIZE_BILINEAR": resize("linear"),
    "RESIZE_NEAREST_NEIGHBOR": resize("nearest"),
    "RFFT2D": rfft2d,
    "ROUND": same("round"),
    "RSQRT": same("rsqrt"),
    "SELECT": select,
    "SELECT_V2": select,
    "SIGN": same("sign"),
    "SIN": same("sin"),
    "SOFTMAX": softmax,
    "SQRT": same("sqrt"),
    "SQUARE": same("square"),
    "SQUARED_DIFFERENCE": same("squared_difference"),
    "SUB": fused("sub"),
    "SUM": reduction("reduce_sum"),
    "TANH": same("tanh"),
    "TFLite_Detection_PostProcess": detection_post_process,
}
