"""Write ops along axes: reductions, softmax, the place of the largest, normalisations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flatbuffers import flexbuffers

from trireme.converters.tflite.write.use import NodeWriter, WriteRule, dtype_code
from trireme.ir.graph import TensorType


def _axes(use: NodeWriter) -> list[int]:
    """Return the axes of a reduction; no axes are all of them, unless the node says otherwise."""
    rank = len(use.type(0).shape)
    given = use.numbers(1, "axes") if use.value(1) is not None else []
    if not given and not use.attrs["noop_with_empty_axes"]:
        return list(range(rank))
    return sorted({axis % rank for axis in given})


def reduction(code: str, dtypes: str, *, keeps: bool = False) -> WriteRule:
    """Return the rule of a reduction; `keeps` says that it keeps the quantisation."""

    def rule(use: NodeWriter) -> None:
        use.check_dtype(0, dtypes)
        if keeps:
            use.check_one_quant(0)
        _reduce(use, code, use.x(0), _axes(use))

    return rule


def _reduce(use: NodeWriter, code: str, x: int, axes: Sequence[int]) -> None:
    if not axes and use.type(0).quant == use.output().quant:
        use.same(x)
        return
    inputs = [x, use.ints(list(axes))]
    use.done(code, inputs, "ReducerOptions", KeepDims=bool(use.attrs["keepdims"]))


def reduced(
    before: Callable[[NodeWriter, int], int] | None,
    after: Callable[[NodeWriter, int], None] | None,
) -> WriteRule:
    """Return the rule of a sum with a function of the elements before it, or of the sum."""

    def rule(use: NodeWriter) -> None:
        use.check_dtype(0, "float32")
        axes, x = _axes(use), use.x(0)
        x = before(use, x) if before else x
        if after is None:
            _reduce(use, "SUM", x, axes)
            return
        keep = bool(use.attrs["keepdims"])
        inputs = [x, use.ints(axes)]
        after(use, use.add("SUM", inputs, None, "ReducerOptions", KeepDims=keep))

    return rule


def _square(use: NodeWriter, x: int) -> int:
    return use.add("SQUARE", [x], use.type(0), "SquareOptions")


def _abs(use: NodeWriter, x: int) -> int:
    return use.add("ABS", [x], use.type(0), "AbsOptions")


_FIXED = {
    ("SOFTMAX", "int8"): (1 / 256, -128),
    ("SOFTMAX", "uint8"): (1 / 256, 0),
    ("SOFTMAX", "int16"): (1 / 32768, 0),
    ("LOG_SOFTMAX", "int8"): (16 / 256, 127),
    ("LOG_SOFTMAX", "uint8"): (16 / 256, 255),
}
"""The scale and zero point of quantised results."""


def _check_fixed(use: NodeWriter, code: str) -> None:
    y = use.output()
    if y.quant is None:
        return
    scale, point = _FIXED[code, y.dtype]
    if (y.quant.scale, y.quant.zero_point) != (scale, point):
        raise use.error(f"{code} makes {y.dtype} of scale {scale} and zero point {point}, not {y}")


def softmax(code: str, kind: str, dtypes: str) -> WriteRule:
    """Return the rule of softmax or log_softmax, which work along the last axis."""

    def rule(use: NodeWriter) -> None:
        use.check_dtype(0, dtypes)
        _check_fixed(use, code)
        options = {"Beta": use.attrs["beta"]} if "beta" in use.attrs else {}
        rank = len(use.type(0).shape)
        axis = use.attrs["axis"] % max(rank, 1)
        if rank < 1:
            raise use.error(f"{code} takes one axis or more")
        if axis == rank - 1:
            use.done(code, [use.x(0)], kind, **options)
            return
        perm = [*range(rank)]
        perm[axis], perm[-1] = perm[-1], perm[axis]
        x = use.transposed(use.x(0), perm)
        to = use.output()
        turned = TensorType(tuple(to.shape[i] for i in perm), to.dtype, to.quant)
        y = use.add(code, [x], turned, kind, **options)
        use.done("TRANSPOSE", [y, use.ints(perm)], "TransposeOptions")

    return rule


def arg(code: str, kind: str) -> WriteRule:
    """Return the rule of arg_max or arg_min."""

    def rule(use: NodeWriter) -> None:
        use.check_dtype(0, "float32 int32 int8 uint8 qint8 quint8")
        if use.attrs["select_last_index"]:
            raise use.error(f"{code} takes the first of equal elements")
        axis, rank = use.attrs["axis"], len(use.type(0).shape)
        inputs, options = [use.x(0), use.ints(axis % rank)], {"OutputType": dtype_code("int64")}
        if not use.attrs["keepdims"]:
            use.done(code, inputs, kind, **options)
            return
        y = use.output()
        shape = tuple(dim for i, dim in enumerate(y.shape) if i != axis % rank)
        made = use.add(code, inputs, TensorType(shape, y.dtype), kind, **options)
        use.done("RESHAPE", [made, use.sizes(y.shape)], "ReshapeOptions")

    return rule


def _mean(use: NodeWriter, x: int, axes: Sequence[int]) -> int:
    """Add the mean along axes, which stay with one element."""
    type = use.tensors.type_of(x)
    shape = tuple(1 if axis in axes else dim for axis, dim in enumerate(type.shape))
    to = TensorType(shape, type.dtype)
    return use.add("MEAN", [x, use.ints(list(axes))], to, "ReducerOptions", KeepDims=True)


def _centred(use: NodeWriter, x: int, axes: Sequence[int], epsilon: float) -> int:
    """Add (x - mean) / sqrt(variance + epsilon)."""
    type = use.tensors.type_of(x)
    rest = use.add("SUB", [x, _mean(use, x, axes)], type, "SubOptions")
    return _scaled(use, rest, axes, epsilon)


def _scaled(use: NodeWriter, x: int, axes: Sequence[int], epsilon: float) -> int:
    """Add x / sqrt(mean of squares + epsilon)."""
    type = use.tensors.type_of(x)
    power = _mean(use, use.add("SQUARE", [x], type, "SquareOptions"), axes)
    small = use.tensors.type_of(power)
    power = use.add("ADD", [power, use.scalar(epsilon)], small, "AddOptions")
    inverse = use.add("RSQRT", [power], small)
    return use.add("MUL", [x, inverse], type, "MulOptions")


def layer_normalization(use: NodeWriter) -> None:
    """Write layer_normalization as means and products."""
    use.check_dtype(0, "float32")
    if len(use.node.outputs) > 1:
        raise use.error("the mean and the deviation as outputs are not written")
    rank = len(use.type(0).shape)
    axes = list(range(use.attrs["axis"] % rank, rank))
    y = _centred(use, use.x(0), axes, use.attrs["epsilon"])
    _affine(use, y, use.x(1), use.x(2))


def rms_normalization(use: NodeWriter) -> None:
    """Write rms_normalization as a mean and products."""
    use.check_dtype(0, "float32")
    rank = len(use.type(0).shape)
    axes = list(range(use.attrs["axis"] % rank, rank))
    _affine(use, _scaled(use, use.x(0), axes, use.attrs["epsilon"]), use.x(1), -1)


def _affine(use: NodeWriter, y: int, scale: int, bias: int) -> None:
    if bias < 0:
        use.done("MUL", [y, scale], "MulOptions")
        return
    y = use.add("MUL", [y, scale], None, "MulOptions")
    use.done("ADD", [y, bias], "AddOptions")


def instance_normalization(use: NodeWriter) -> None:
    """Write instance_normalization of NHWC as means and products."""
    _check_nhwc(use)
    axes = list(range(1, len(use.type(0).shape) - 1))
    y = _centred(use, use.x(0), axes, use.attrs["epsilon"])
    _affine(use, y, use.x(1), use.x(2))


def group_normalization(use: NodeWriter) -> None:
    """Write group_normalization of NHWC: the channels of a group are an axis of their own."""
    _check_nhwc(use)
    shape, groups = use.type(0).shape, use.attrs["num_groups"]
    channels = shape[-1]
    if not isinstance(channels, int) or not use.type(0).is_static:
        raise use.error("an open shape is not written")
    split = use.reshaped(use.x(0), (*shape[:-1], groups, channels // groups))
    axes = [*range(1, len(shape) - 1), len(shape)]
    y = use.reshaped(_centred(use, split, axes, use.attrs["epsilon"]), shape)
    _affine(use, y, use.x(1), use.x(2))


def _check_nhwc(use: NodeWriter) -> None:
    use.check_dtype(0, "float32")
    if use.attrs["layout"] != "NHWC":
        raise use.error("TensorFlow Lite's images are NHWC, this one is NCHW")


def mean_variance_normalization(use: NodeWriter) -> None:
    """Write mean_variance_normalization; its epsilon is ONNX's 1e-9, added to the deviation."""
    use.check_dtype(0, "float32")
    rank, x = len(use.type(0).shape), use.x(0)
    axes = sorted(axis % rank for axis in use.attrs["axes"])
    type = use.type(0)
    rest = use.add("SUB", [x, _mean(use, x, axes)], type, "SubOptions")
    power = _mean(use, use.add("SQUARE", [rest], type, "SquareOptions"), axes)
    small = use.tensors.type_of(power)
    deviation = use.add("SQRT", [power], small)
    below = use.add("ADD", [deviation, use.scalar(1e-9)], small, "AddOptions")
    use.done("DIV", [rest, below], "DivOptions")


def batch_normalization(use: NodeWriter) -> None:
    """Write batch_normalization with constant statistics as a product and a sum."""
    if use.attrs["training_mode"] or len(use.node.outputs) > 1:
        raise use.error("batch normalisation in training has no form in TensorFlow Lite")
    _check_nhwc(use)
    scale, bias, mean, var = (use.constant(i, "statistics").astype(np.float64) for i in range(1, 5))
    factor = scale / np.sqrt(var + use.attrs["epsilon"])
    rest = bias - mean * factor
    y = use.add("MUL", [use.x(0), use.array(factor.astype(np.float32))], None, "MulOptions")
    use.done("ADD", [y, use.array(rest.astype(np.float32))], "AddOptions")


def lrn(use: NodeWriter) -> None:
    """Write LOCAL_RESPONSE_NORMALIZATION over an odd number of channels."""
    _check_nhwc(use)
    size = use.attrs["size"]
    if size % 2 == 0 or len(use.type(0).shape) != 4:
        raise use.error("LOCAL_RESPONSE_NORMALIZATION takes an odd size and [N,H,W,C]")
    options: dict[str, Any] = {
        "Radius": size // 2,
        "Bias": use.attrs["bias"],
        "Alpha": use.attrs["alpha"] / size,
        "Beta": use.attrs["beta"],
    }
    kind = "LocalResponseNormalizationOptions"
    use.done("LOCAL_RESPONSE_NORMALIZATION", [use.x(0)], kind, **options)


def rfft2d(use: NodeWriter) -> None:
    """Write RFFT2D with its lengths."""
    inputs = [use.x(0), use.ints(list(use.attrs["fft_length"]))]
    use.done("RFFT2D", inputs, "Rfft2dOptions")


def detection_post_process(use: NodeWriter) -> None:
    """Write the custom operator, whose options are a flexbuffer."""
    attrs = use.attrs
    scales = dict(zip(("y_scale", "x_scale", "h_scale", "w_scale"), attrs["scales"], strict=True))
    builder = flexbuffers.Builder()
    with builder.Map():
        for key in ("max_detections", "max_classes_per_detection", "detections_per_class"):
            builder.Int(key, attrs[key])
        builder.Bool("use_regular_nms", attrs["use_regular_nms"])
        builder.Float("nms_score_threshold", attrs["score_threshold"])
        builder.Float("nms_iou_threshold", attrs["iou_threshold"])
        builder.Int("num_classes", attrs["num_classes"])
        for key, scale in scales.items():
            builder.Float(key, scale)
    use.custom("TFLite_Detection_PostProcess", use.operands(), bytes(builder.Finish()))


_Q = "qint8 quint8"
REDUCTIONS: dict[str, WriteRule] = {
    "arg_max": arg("ARG_MAX", "ArgMaxOptions"),
    "arg_min": arg("ARG_MIN", "ArgMinOptions"),
    "batch_normalization": batch_normalization,
    "detection_post_process": detection_post_process,
    "group_normalization": group_normalization,
    "instance_normalization": instance_normalization,
    "layer_normalization": layer_normalization,
    "log_softmax": softmax("LOG_SOFTMAX", "LogSoftmaxOptions", f"float32 {_Q}"),
    "lrn": lrn,
    "mean_variance_normalization": mean_variance_normalization,
    "reduce_all": reduction("REDUCE_ALL", "bool"),
    "reduce_any": reduction("REDUCE_ANY", "bool"),
    "reduce_l1": reduced(_abs, None),
    "reduce_l2": reduced(_square, lambda use, x: use.done("SQRT", [x])),
    "reduce_log_sum": reduced(None, lambda use, x: use.done("LOG", [x])),
    "reduce_max": reduction("REDUCE_MAX", f"float32 int32 int64 int16 {_Q}", keeps=True),
    "reduce_mean": reduction("MEAN", f"float32 int32 int64 {_Q} qint16"),
    "reduce_min": reduction("REDUCE_MIN", f"float32 int32 int64 int16 {_Q}", keeps=True),
    "reduce_prod": reduction("REDUCE_PROD", "float32 int32 int64 int16"),
    "reduce_sum": reduction("SUM", f"float32 int32 int64 int16 {_Q}"),
    "reduce_sum_square": reduced(_square, None),
    "rfft2d": rfft2d,
    "rms_normalization": rms_normalization,
    "softmax": softmax("SOFTMAX", "SoftmaxOptions", f"float32 {_Q} qint16"),
}
"""The rules of ops along axes."""
