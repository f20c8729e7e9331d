"""Ops whose result depends on one stored number: tables of all 256 bytes, or 65536 of int16."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from trireme.ir.graph import Quant, Rounding, TensorType
from trireme.ir.op import Call, get_op
from trireme.ops.integer.arithmetic import (
    multiply_by_quantized,
    quantize_multiplier,
    requantize,
    round_half_away,
    rounding_divide_by_power_of_two,
)
from trireme.ops.integer.normalization import inverse_square_root
from trireme.ops.integer.sixteen import sigmoid_16, tanh_16
from trireme.ops.integer.types import (
    CLAMPS,
    EIGHT_BIT,
    SIXTEEN_BIT,
    clamp_between,
    dequantized,
    dtype_limits,
    quant_of,
    quantized,
    rounding_of,
    stored_dtypes,
)
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import GraphError
from trireme.support.records import dataclass


@dataclass(frozen=True, eq=False)
class SoftmaxParams:
    """softmax on integers, along one axis.

        e[i] = table[max(x) - x[i]]                                   stored integers, 0..255
        y[i] = clamp((e[i] * gain + s // 2) // s + y_zero, low, high) with s = sum(e)

    e is at most 2**23, s needs int64 (or uint32 up to 511 elements), e * gain needs int64.
    Integers only, so every device gives the same answer in any order of summing. It is within one
    unit of LiteRT's kernels, which use fixed-point or float32 exponentials.

    Shapes: table int32 [256]: round(2**23 * exp(-beta * scale * i))
    """

    table: Array
    gain: int
    y_zero: int
    low: int
    high: int


def lookup(table: Array, x: Array) -> Array:
    """Return table[x], where the index is the stored bits: -1 of int8 is entry 255."""
    return np.asarray(table[np.asarray(x, order="C").view(f"u{x.dtype.itemsize}")])


def unary_table(op: str, call: Call, dtypes: tuple[str, ...] = EIGHT_BIT) -> Array:
    """Return the outputs of a unary op for each stored input: y = lookup(table, x).

    quantize (of a quantised input, to another quantisation), relu, clip, abs, leaky_relu, rsqrt and
    hard_swish follow LiteRT's fixed-point reference; sqrt cuts its float32 result, gelu rounds each
    step to float32, and the others round once, as its lookup tables do. Other inputs of the node
    (min and max of clip) must be constants. On int16, sigmoid and tanh follow LiteRT's table; an op
    without a fixed-point formula has no form. Where the output's type rounds halves to even, the
    table is what ONNX's operators make of each number, one after another: dequantised, computed and
    quantised, each in float32.

    dtypes: the stored dtypes that the caller has; only quantize goes from one width to another
    Shapes: [256] or [65536] of the output's dtype, indexed by the stored bits as unsigned
    Errors: GraphError, if the op's integer form is no table or its types are not quantised so
    Source: TensorFlow Lite, activations.cc, elementwise.cc, reference hard_swish.h, leaky_relu.h,
            requantize.h
    """
    if get_op(op).integer_form != "table":
        raise GraphError(f"{op} has no table form on quantised values")
    x, y = call.type(0), call.outputs[0]
    quant_of(x, "input", dtypes)
    quant_of(y, "output", dtypes if op == "quantize" else stored_dtypes(call))
    kind = numpy_dtype(x.dtype)
    stored = np.arange(1 << 8 * kind.itemsize, dtype=f"u{kind.itemsize}").view(kind)
    if x.dtype in SIXTEEN_BIT and op not in TABLES_16:
        raise GraphError(f"{op} has no form on int16")
    made = _ON_INT16.get(op) if x.dtype in SIXTEEN_BIT else None
    if made is None and rounding_of(call, Rounding.TWICE) is Rounding.HALF_EVEN:
        made = partial(_half_even, op)
    made = made or _FIXED.get(op) or partial(_through_float, op)
    table = made(call, stored)
    table = table.astype(numpy_dtype(y.dtype))
    table.flags.writeable = False
    return table


def concat_tables(call: Call, dtypes: tuple[str, ...] = EIGHT_BIT) -> list[Array | None]:
    """Return for each input of concat the table that requantises it, None where bytes pass as is.

    Errors: GraphError, if an activation is fused
    Source: TensorFlow Lite, reference concatenation.h: ConcatenationWithScaling
    """
    if call.attrs.get("activation", ""):
        raise GraphError("an activation cannot be fused into a quantised concat")
    y = call.outputs[0]
    return [_concat_table(call.type(i), y, dtypes) for i in range(len(call.inputs))]


def softmax_params(call: Call) -> SoftmaxParams:
    """Lower softmax (x): see SoftmaxParams."""
    x, y = quant_of(call.type(0), "input"), quant_of(call.outputs[0], "output")
    beta = float(call.attrs.get("beta", 1.0))
    steps = -beta * x.scale * np.arange(256)
    table = np.floor(np.exp(steps) * 2.0**23 + 0.5).astype(np.int32)
    table.flags.writeable = False
    return SoftmaxParams(
        table, round(1 / y.scale), y.zero_point, *dtype_limits(call.outputs[0].dtype)
    )


def _quants(call: Call) -> tuple[Quant, Quant]:
    dtypes = (*EIGHT_BIT, *SIXTEEN_BIT)
    return quant_of(call.type(0), "input", dtypes), quant_of(call.outputs[0], "output", dtypes)


def _shifted(call: Call, stored: Array) -> Array:
    return stored.astype(np.int64) - _quants(call)[0].zero_point


def _ratio(call: Call) -> float:
    """The scale of x over the scale of y, in float32."""
    x, y = _quants(call)
    return float(np.float32(x.scale) / np.float32(y.scale))


def _requantized(call: Call, stored: Array) -> Array:
    x, y = _quants(call)
    pair = quantize_multiplier(np.float32(x.scale).item() / np.float32(y.scale).item())
    limits = dtype_limits(call.outputs[0].dtype)
    return requantize(_shifted(call, stored), *pair, y.zero_point, *limits, Rounding.TWICE)


def _clip(call: Call, stored: Array) -> Array:
    return _clamped(call, stored, _limits("clip", call))


def _limits(op: str, call: Call) -> tuple[float | None, float | None]:
    """Return the real numbers that an op clamps its result to."""
    if op == "clip":
        return _constant(call, 1), _constant(call, 2)
    return CLAMPS.get(op, (None, None))


def _constant(call: Call, position: int) -> float | None:
    value = call.input(position)
    if value is None:
        return None
    if value.data is None:
        raise GraphError("clip: the limits of a quantised clip must be constants")
    if value.quant is not None:
        return float(dequantized(value.data, value.type).reshape(-1)[0])
    return float(value.data.reshape(-1)[0])


def _clamped(call: Call, stored: Array, limits: tuple[float | None, float | None]) -> Array:
    ends = clamp_between(call.outputs[0], *limits)
    zero = _quants(call)[1].zero_point
    pair = quantize_multiplier(_ratio(call))
    return requantize(_shifted(call, stored), *pair, zero, *ends, Rounding.TWICE)


def _leaky_relu(call: Call, stored: Array) -> Array:
    x, y = _quants(call)
    alpha = np.float32(call.attrs["alpha"])
    slope = float(np.float32(x.scale) * alpha / np.float32(y.scale))
    shifted = _shifted(call, stored)
    negative = np.sign(slope) * multiply_by_quantized(shifted, *quantize_multiplier(abs(slope)))
    positive = multiply_by_quantized(shifted, *quantize_multiplier(_ratio(call)))
    wide = np.where(shifted >= 0, positive, negative) + y.zero_point
    return np.asarray(np.clip(wide, *dtype_limits(call.outputs[0].dtype)))


def _hard_swish(call: Call, stored: Array) -> Array:
    """x * relu6(x + 3) / 6 in 16-bit fixed point, as LiteRT's reference computes it."""
    x, y = _quants(call)
    hires_scale = np.float32(1 / 128) * np.float32(x.scale)
    y_multiplier, y_shift = _narrow(float(hires_scale / np.float32(y.scale)))
    r_multiplier, r_shift = _narrow(float(hires_scale / np.float32(3.0 / 32768.0)))
    hires = _shifted(call, stored) << 7
    on_y_scale = _high_multiply_16(hires, y_multiplier)
    reluish = _saturate_16(hires << max(r_shift - 1, 0))
    reluish = _high_multiply_16(reluish, r_multiplier)
    reluish = _saturate_16(reluish << 1) if r_shift > 0 else reluish
    reluish = rounding_divide_by_power_of_two(reluish, max(-r_shift, 0))
    reluish = (reluish + (1 << 15)) >> 1
    product = (reluish * on_y_scale) >> 15
    product = _cut_product(reluish, on_y_scale, product) << max(y_shift, 0)
    wide = rounding_divide_by_power_of_two(product, max(-y_shift, 0))
    return np.asarray(np.clip(wide + y.zero_point, *dtype_limits(call.outputs[0].dtype)))


def _cut_product(a: Array, b: Array, floored: Array) -> Array:
    """a * b / 2**15 cut toward zero, given its floor."""
    return np.asarray(floored + ((a * b < 0) & ((a * b) % (1 << 15) != 0)))


def _narrow(real: float) -> tuple[int, int]:
    """quantize_multiplier with 15 bits of multiplier."""
    multiplier, shift = quantize_multiplier(real)
    return min((multiplier + (1 << 15)) >> 16, 32767), shift


def _saturate_16(x: Array) -> Array:
    return np.clip(x, -32768, 32767)


def _high_multiply_16(a: Array, b: int) -> Array:
    """(a * b) / 2**15 rounded to nearest: gemmlowp's rounding doubling high multiply."""
    return _saturate_16((a * b + (1 << 14)) >> 15)


def _absolute(call: Call, stored: Array) -> Array:
    y = call.outputs[0]
    pair, zero = quantize_multiplier(_ratio(call)), _quants(call)[1].zero_point
    magnitude, limits = np.abs(_shifted(call, stored)), dtype_limits(y.dtype)
    return requantize(magnitude, *pair, zero, *limits, Rounding.TWICE)


_RSQRT_SHIFT = 20
"""The bits behind the point of the inverse root of a stored integer."""


def _inverse_root(call: Call, stored: Array) -> Array:
    """The inverse root of the integer, times that of the scale; at 0 the greatest integer.

    Source: TensorFlow Lite, elementwise.cc: RsqrtEvalQuantizedInt8
    """
    x, y = _quants(call)
    low, high = dtype_limits(call.outputs[0].dtype)
    real = 1.0 / (np.sqrt(np.float32(x.scale)).item() * np.float32(y.scale).item())
    multiplier, shift = quantize_multiplier(real)
    shifted = _shifted(call, stored)
    roots = np.array([inverse_square_root(max(int(v), 0)) for v in shifted]).T
    narrow = multiply_by_quantized(np.asarray(1), roots[0], roots[1] + _RSQRT_SHIFT)
    wide = multiply_by_quantized(narrow, multiplier, shift - _RSQRT_SHIFT) + y.zero_point
    found = np.where(shifted == 0, high, np.clip(wide, low, high))
    return np.where(shifted < 0, low, found)


def _square_root(call: Call, stored: Array) -> Array:
    """The float32 root over the scale of y, cut toward zero; NaN gives the least integer.

    Source: TensorFlow Lite, elementwise.cc: SqrtEvalQuantized
    """
    _, y = _quants(call)
    low, high = dtype_limits(call.outputs[0].dtype)
    with np.errstate(invalid="ignore"):
        wide = np.trunc(np.sqrt(dequantized(stored, call.type(0))) / np.float32(y.scale))
    wide = wide.astype(np.float64) + y.zero_point
    return np.where(np.isnan(wide), low, np.clip(wide, low, high))


def _gelu(call: Call, stored: Array) -> Array:
    """x / 2 times a factor, each step rounded to float32.

    Source: TensorFlow Lite, reference gelu.h: GeluTransform, GeluTransformApproximate
    """
    x = dequantized(stored, call.type(0))
    with np.errstate(all="ignore"):
        if call.attrs["approximate"] == "tanh":
            inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
            factor = np.float32(1) + np.tanh(inner.astype(np.float64)).astype(np.float32)
        else:
            scaled = x * np.float32(-math.sqrt(0.5))
            factor = np.array([math.erfc(value) for value in scaled], np.float32)
        return _quantized_once(call, np.float32(0.5) * x * factor)


def _through_float(op: str, call: Call, stored: Array) -> Array:
    """The op's float result, rounded once to float32 and once to an integer."""
    real = dequantized(stored, call.type(0)).astype(np.float64)
    with np.errstate(all="ignore"):
        result = np.asarray(get_op(op).reference(real, **call.attrs)).astype(np.float32)
        return _quantized_once(call, result)


def _quantized_once(call: Call, result: Array) -> Array:
    """Return float32 times the inverse of the scale, rounded half away; NaN is the least."""
    _, y = _quants(call)
    wide = round_half_away(result * (np.float32(1) / np.float32(y.scale))) + y.zero_point
    low, high = dtype_limits(call.outputs[0].dtype)
    return np.where(np.isnan(wide), low, np.clip(wide, low, high))


def _half_even(op: str, call: Call, stored: Array) -> Array:
    """Dequantise, compute and quantise in float32, as ONNX's operators do one after another."""
    y, real = call.outputs[0], dequantized(stored, call.type(0))
    if op not in ("quantize", "clip", *CLAMPS):
        with np.errstate(all="ignore"):
            result = get_op(op).reference(real.astype(np.float64), **call.attrs)
        real = np.asarray(result, np.float32)
    return np.asarray(np.clip(quantized(real, y), *clamp_between(y, *_limits(op, call))))


def _concat_table(x: TensorType, y: TensorType, dtypes: tuple[str, ...]) -> Array | None:
    x_quant, y_quant = quant_of(x, "input", dtypes), quant_of(y, "output", dtypes)
    if (x.dtype, x_quant) == (y.dtype, y_quant):
        return None
    if y.dtype in SIXTEEN_BIT:
        raise GraphError(f"concat: input {x} and output {y} must have the same quantisation")
    numbers = np.arange(256, dtype=np.uint8).view(numpy_dtype(x.dtype))
    if y_quant.rounding is Rounding.HALF_EVEN:
        return quantized(dequantized(numbers, x), y)
    stored = numbers.astype(np.float32)
    scale = np.float32(x_quant.scale) * (np.float32(1) / np.float32(y_quant.scale))
    wide = round_half_away(stored * scale + np.float32(-x_quant.zero_point) * scale)
    wide = np.clip(wide + y_quant.zero_point, *dtype_limits(y.dtype))
    return np.asarray(wide, numpy_dtype(y.dtype))


_FIXED: dict[str, Callable[[Call, Array], Array]] = {
    "quantize": _requantized,
    **{name: partial(_clamped, limits=limits) for name, limits in CLAMPS.items() if name},
    "abs": _absolute,
    "clip": _clip,
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "hard_swish": _hard_swish,
    "rsqrt": _inverse_root,
    "sqrt": _square_root,
}
_ON_INT16: dict[str, Callable[[Call, Array], Array]] = {"sigmoid": sigmoid_16, "tanh": tanh_16}
_EIGHT_BIT_ALONE = ("gelu", "hard_swish", "rsqrt")
TABLES_16 = (*_ON_INT16, *(name for name in _FIXED if name not in _EIGHT_BIT_ALONE))
"""The ops with a table of int16."""
