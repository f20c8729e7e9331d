"""Ops that multiply and add: conv, fully connected, add, mul, mean, and the integers they need."""

from __future__ import annotations

import numpy as np

from trireme.ir.graph import Quant, Rounding, TensorType
from trireme.ir.op import Call
from trireme.ops.integer.arithmetic import quantize_multiplier, quantize_multipliers
from trireme.ops.integer.types import (
    EIGHT_BIT,
    SIXTEEN_BIT,
    clamp_limits,
    dtype_limits,
    quant_of,
    rounding_of,
)
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError
from trireme.support.records import dataclass


@dataclass(frozen=True, eq=False)
class LinearParams:
    """conv, conv_transpose, fully_connected, matmul on integers.

        acc[o] = bias[o] + sum over the window of (x - x_zero) * (w[o] - w_zero)      int32
        y[o] = clamp(multiply(acc[o], multipliers[o], shifts[o], rounding) + y_zero, low, high)

    LiteRT's reference kernels round the product of fully_connected once, halves away from zero, and
    every other product twice.
    Padding contributes nothing: a padded x is x_zero. w_zero is 0 for int8 weights from TFLite.

    Shapes: multipliers, shifts int32 [O], one an output channel, also where the scale is shared
    Source: TensorFlow Lite, reference integer_ops/conv.h, conv.h (uint8), fully_connected.h
    """

    x_zero: int
    w_zero: int
    y_zero: int
    multipliers: Array
    shifts: Array
    low: int
    high: int
    rounding: Rounding


@dataclass(frozen=True, eq=False)
class FloatSumParams:
    """conv, fully_connected of stored integers with a float bias: their result is float32.

        acc[o] = sum over the window of (x - x_zero) * (w[o] - w_zero)                     int32
        y[o] = activation(float32(acc[o]) * scales[o] + bias[o])       each step rounds to float32

    Shapes: scales float32 [O], the scale of x times that of w, rounded to float32
    """

    x_zero: int
    w_zero: int
    scales: Array


@dataclass(frozen=True)
class AddParams:
    """add and sub on integers; the multiplier of a subtrahend is negative.

        a' = multiply_by_quantized((a - a_zero) << left_shift, a_multiplier, a_shift)
        b' = multiply_by_quantized((b - b_zero) << left_shift, b_multiplier, b_shift)
        y = clamp(multiply(a' + b', y_multiplier, y_shift, rounding) + y_zero, low, high)

    a_shift and b_shift are never positive, and all sums fit int32. left_shift is 20 for 8-bit
    inputs and 15 for int16.

    Source: TensorFlow Lite, add.cc, sub.cc, reference integer_ops/add.h
    """

    a_zero: int
    b_zero: int
    y_zero: int
    left_shift: int
    a_multiplier: int
    a_shift: int
    b_multiplier: int
    b_shift: int
    y_multiplier: int
    y_shift: int
    low: int
    high: int
    rounding: Rounding


@dataclass(frozen=True)
class MulParams:
    """mul on integers.

        y = clamp(multiply((a - a_zero) * (b - b_zero), multiplier, shift, rounding) + y_zero,
                  low, high)

    Source: TensorFlow Lite, mul.cc, reference integer_ops/mul.h
    """

    a_zero: int
    b_zero: int
    y_zero: int
    multiplier: int
    shift: int
    low: int
    high: int
    rounding: Rounding


@dataclass(frozen=True)
class PreluParams:
    """prelu on integers; the slope broadcasts against x.

        x' = x - x_zero
        y = clamp(y_zero + (multiply(x', multiplier, shift, rounding) if x' >= 0 else
            multiply(x' * (slope - slope_zero), slope_multiplier, slope_shift, rounding)),
            low, high)

    Source: TensorFlow Lite, activations.cc, reference prelu.h
    """

    x_zero: int
    slope_zero: int
    y_zero: int
    multiplier: int
    shift: int
    slope_multiplier: int
    slope_shift: int
    low: int
    high: int
    rounding: Rounding


@dataclass(frozen=True)
class ReduceParams:
    """reduce_mean and reduce_sum on integers; `count` elements go into one.

        acc = sum(x) - count * x_zero
        twice:     y = clamp(multiply(acc, multiplier, shift, rounding) + y_zero, low, high)
        half_even: y = clamp(divide(acc * multiplier, divisor << (31 - shift), rounding) + y_zero,
                             low, high)

    Where it rounds twice, the division of a mean is part of the multiplier: multiplier * 2**k //
    count and shift - k with k = floor(log2(count)). Where halves go to even, exact halves need the
    exact quotient: divisor is count for a mean, 1 for a sum. Both operands fit int64.

    Source: TensorFlow Lite, reference reduce.h: QuantizedMeanOrSum
    """

    count: int
    x_zero: int
    y_zero: int
    multiplier: int
    shift: int
    low: int
    high: int
    rounding: Rounding
    divisor: int


def conv_params(call: Call) -> LinearParams:
    """Lower conv or conv_transpose (x, w, bias?): see LinearParams.

    uint8 inputs take the product of the scales in float32, as TensorFlow Lite's legacy kernels do,
    int8 inputs in float64.

    Errors: GraphError, if a type is not 8-bit, there is a residual, or the activation is no clamp
    """
    if call.input(3) is not None:
        raise GraphError("a residual cannot be fused on quantised values")
    layout = str(call.attrs.get("layout", "NHWC"))
    channels = call.outputs[0].dims[-1 if layout == "NHWC" else 1]
    return _linear(call, channels, float_product=call.type(0).dtype == "uint8")


def fully_connected_params(call: Call) -> LinearParams:
    """Lower fully_connected (x, w, bias?): see LinearParams.

    Errors: GraphError, as `conv_params`
    """
    if call.input(3) is not None:
        raise GraphError("a residual cannot be fused on quantised values")
    return _linear(call, call.type(1).dims[0], float_product=False, otherwise=Rounding.HALF_AWAY)


def makes_floats(call: Call) -> bool:
    """Whether a product of stored integers has a float bias, and so a float result."""
    bias, y = call.input(2), call.outputs[0]
    return bias is not None and bias.dtype == y.dtype == "float32" and y.quant is None


def float_sum_params(call: Call) -> FloatSumParams:
    """Lower conv or fully_connected (x, w, float bias): see FloatSumParams.

    Errors: GraphError, if x or w is no 8-bit type, or there is a residual
    """
    if call.input(3) is not None:
        raise GraphError("a residual cannot be fused on quantised values")
    x, w = quant_of(call.type(0), "input"), _weight_quant(call.type(1))
    scales = np.float32(x.scale) * np.array(w.scales, np.float32)
    channels = call.type(1).dims[0]
    if len(scales) not in (1, channels):
        raise GraphError(f"weights have {len(scales)} scales for {channels} output channels")
    wide = np.broadcast_to(scales, (channels,)).copy()
    wide.flags.writeable = False
    return FloatSumParams(x.zero_point, w.zero_points[0], wide)


def matmul_params(call: Call) -> LinearParams:
    """Lower matmul (a, b), both quantised: see LinearParams with x = a, w = b."""
    quant_of(call.type(1), "b")
    return _linear(call, call.outputs[0].dims[-1], float_product=True)


def add_params(call: Call, dtypes: tuple[str, ...] = EIGHT_BIT) -> AddParams:
    """Lower add (a, b): see AddParams."""
    return _add(call, 1, dtypes)


def sub_params(call: Call, dtypes: tuple[str, ...] = EIGHT_BIT) -> AddParams:
    """Lower sub (a, b): see AddParams."""
    return _add(call, -1, dtypes)


def mul_params(call: Call, dtypes: tuple[str, ...] = EIGHT_BIT) -> MulParams:
    """Lower mul (a, b): see MulParams."""
    a, b, y = _binary(call, dtypes)
    real = np.float32(a.scale) * np.float32(b.scale) / np.float32(y.scale)
    return MulParams(
        a.zero_point,
        b.zero_point,
        y.zero_point,
        *quantize_multiplier(float(real)),
        *clamp_limits(call.outputs[0], _activation(call)),
        rounding_of(call, Rounding.TWICE),
    )


def prelu_params(call: Call) -> PreluParams:
    """Lower prelu (x, slope): see PreluParams."""
    x, slope, y = _binary(call)
    positive = float(np.float32(x.scale) / np.float32(y.scale))
    negative = float(np.float32(x.scale) * np.float32(slope.scale) / np.float32(y.scale))
    return PreluParams(
        x.zero_point,
        slope.zero_point,
        y.zero_point,
        *quantize_multiplier(positive),
        *quantize_multiplier(negative),
        *dtype_limits(call.outputs[0].dtype),
        rounding_of(call, Rounding.TWICE),
    )


def reduce_mean_params(call: Call, dtypes: tuple[str, ...] = EIGHT_BIT) -> ReduceParams:
    """Lower reduce_mean (x, axes?): see ReduceParams."""
    return _reduce(call, dtypes, mean=True)


def reduce_sum_params(call: Call, dtypes: tuple[str, ...] = EIGHT_BIT) -> ReduceParams:
    """Lower reduce_sum (x, axes?): see ReduceParams."""
    return _reduce(call, dtypes, mean=False)


def _activation(call: Call) -> str:
    return str(call.attrs.get("activation", ""))


def _binary(call: Call, dtypes: tuple[str, ...] = EIGHT_BIT) -> tuple[Quant, Quant, Quant]:
    a, b = (quant_of(call.type(k), f"input {k}", dtypes) for k in range(2))
    return a, b, quant_of(call.outputs[0], "output", dtypes)


def _linear(
    call: Call, channels: int, float_product: bool, otherwise: Rounding = Rounding.TWICE
) -> LinearParams:
    if makes_floats(call):
        raise GraphError("a product of integers whose result is float32 runs on the cpu only")
    x, y = quant_of(call.type(0), "input"), quant_of(call.outputs[0], "output")
    w = _weight_quant(call.type(1))
    _check_bias(call)
    scales = np.array(w.scales, np.float32)
    if float_product:
        products = (np.float32(x.scale) * scales).astype(np.float64)
    else:
        products = np.float64(np.float32(x.scale)) * scales.astype(np.float64)
    reals = products / np.float64(np.float32(y.scale))
    multipliers, shifts = quantize_multipliers(reals)
    return LinearParams(
        x.zero_point,
        w.zero_points[0],
        y.zero_point,
        _per_channel(multipliers, channels),
        _per_channel(shifts, channels),
        *clamp_limits(call.outputs[0], _activation(call)),
        rounding_of(call, otherwise),
    )


def _per_channel(values: Array, channels: int) -> Array:
    """One int32 an output channel, read-only."""
    if len(values) not in (1, channels):
        raise GraphError(f"weights have {len(values)} scales for {channels} output channels")
    array = np.broadcast_to(values.astype(np.int32), (channels,)).copy()
    array.flags.writeable = False
    return array


def _weight_quant(type: TensorType) -> Quant:
    if type.quant is None or type.dtype not in EIGHT_BIT:
        raise GraphError(f"weights {type} must be quantised int8 or uint8, as the input is")
    if len(set(type.quant.zero_points)) != 1:
        raise GraphError(f"weights {type}: the zero point must be the same for all channels")
    return type.quant


def _check_bias(call: Call) -> None:
    bias = call.input(2)
    if bias is not None and bias.dtype != "int32":
        raise GraphError(f"bias {bias.type} must be int32 for a result of integers")


def _add(call: Call, sign: int, dtypes: tuple[str, ...]) -> AddParams:
    a, b, y = _binary(call, dtypes)
    left_shift = 15 if dtypes == SIXTEEN_BIT else 20
    twice = 2.0 * max(np.float32(a.scale), np.float32(b.scale)).item()
    a_multiplier, a_shift = quantize_multiplier(np.float32(a.scale).item() / twice)
    b_multiplier, b_shift = quantize_multiplier(np.float32(b.scale).item() / twice)
    real = twice / ((1 << left_shift) * np.float32(y.scale).item())
    return AddParams(
        a.zero_point,
        b.zero_point,
        y.zero_point,
        left_shift,
        a_multiplier,
        a_shift,
        sign * b_multiplier,
        b_shift,
        *quantize_multiplier(real),
        *clamp_limits(call.outputs[0], _activation(call)),
        rounding_of(call, Rounding.TWICE),
    )


def _reduce(call: Call, dtypes: tuple[str, ...], mean: bool) -> ReduceParams:
    x, y = quant_of(call.type(0), "input", dtypes), quant_of(call.outputs[0], "output", dtypes)
    count = call.type(0).elements // max(call.outputs[0].elements, 1)
    real = np.float32(x.scale).item() / np.float32(y.scale).item()
    multiplier, shift = quantize_multiplier(real)
    rounding = rounding_of(call, Rounding.TWICE)
    divisor = count if mean else 1
    if divisor << (31 - shift) >= 1 << 63:
        multiplier, shift, divisor = 0, 0, 1  # a mean of bytes is less than a half then
    if mean and count > 1 and rounding is Rounding.TWICE:
        fold = min(count.bit_length() - 1, 32, 31 + shift)
        multiplier, shift = (multiplier << fold) // count, shift - fold
    return ReduceParams(
        count,
        x.zero_point,
        y.zero_point,
        multiplier,
        shift,
        *dtype_limits(call.outputs[0].dtype),
        rounding,
        divisor,
    )
