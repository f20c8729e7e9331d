"""Arithmetic of "16x8": int16 activations of zero point 0, int8 weights, sums and bias of int64."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from trireme.ir.graph import Quant, TensorType
from trireme.ir.op import Call
from trireme.ops.integer.arithmetic import (
    multiply_by_quantized,
    quantize_multiplier,
    quantize_multipliers,
    round_half_away,
)
from trireme.ops.integer.types import SIXTEEN_BIT, clamp_limits, quant_of
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError
from trireme.support.records import dataclass

_ONE = 2.0**-15
"""The only scale of a result of sigmoid, tanh or softmax."""
_MOST_SHIFT = 7
"""The greatest shift of LiteRT's product of 64 bits: a factor below 128."""


@dataclass(frozen=True, eq=False)
class WideParams:
    """conv, conv_transpose of int16 and int8 weights.

        acc[o] = bias[o] + sum over the window of x * w[o]                            int64
        y[o] = clamp(multiply_wide(acc[o], multipliers[o], shifts[o]), low, high)

    Shapes: multipliers (15 bits), shifts int32 [O]
    Source: TensorFlow Lite, reference integer_ops/conv.h, common.cc
    """

    multipliers: Array
    shifts: Array
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class ScaledParams:
    """fully_connected of int16 and int8 weights.

        acc[o] = bias[o] + sum of x * (w[o] - w_zero)                                 int64
        y[o] = clamp(round(float64(acc[o]) * scales[o]), low, high)      half away from zero

    Shapes: scales float64 [O]: the scale of x times that of w, over that of y
    Source: TensorFlow Lite, reference integer_ops/fully_connected.h
    """

    w_zero: int
    scales: Array
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Softmax16Params:
    """softmax on int16 along an axis; `curve` interpolates a table of 513 entries.

        d = clamp(multiply_by_quantized(x - max(x), multiplier, shift) + 32767, -32768, 32767)
        e = curve(exponentials, d)                                    15 bits behind the point
        s = sum(e), n = bit length of s
        t = clamp(((s << (31 - n)) + 2**13 >> 14) - 2**15 - 2**16, -32768, 32767)
        y = clamp((e * curve(reciprocals, t) + 2**(n - 2)) >> (n - 1), 0, 32767)

    powers[max(x) - x] is e.

    Shapes: powers, reciprocals int64 [65536], [513]
    Source: TensorFlow Lite, reference softmax.h: SoftmaxInt16
    """

    powers: Array
    reciprocals: Array


def multiply_wide(x: Array, multiplier: Array | int, shift: Array | int) -> Array:
    """Return x * multiplier * 2**(shift - 15), rounded once, ties upwards; int32 wraps.

    Shapes: x int64, multiplier of 15 bits and shift broadcast
    Source: TensorFlow Lite, common.cc: MultiplyByQuantizedMultiplier of int64
    """
    total = 15 - np.asarray(shift, np.int64)
    rounded = (np.asarray(x, np.int64) * multiplier + (np.int64(1) << (total - 1))) >> total
    return np.asarray(rounded.astype(np.int32).astype(np.int64))


def conv_16_params(call: Call) -> WideParams:
    """Lower conv or conv_transpose (x, w, bias?) of int16: see WideParams.

    Errors: GraphError, if types do not fit, there is a residual, or the activation is no clamp
    """
    layout = str(call.attrs.get("layout", "NHWC"))
    w, reals = _scales(call, call.outputs[0].dims[-1 if layout == "NHWC" else 1])
    if any(w.zero_points):
        raise GraphError("weights beside an int16 input must have zero point 0")
    multipliers, shifts = quantize_multipliers(reals)
    if shifts.max(initial=0) > _MOST_SHIFT:
        raise GraphError(
            f"the scales of an int16 conv have a quotient of {reals.max():g}, over 128"
        )
    narrow = np.where(multipliers < 0x7FFF0000, (multipliers + (1 << 15)) >> 16, 0x7FFF)
    return WideParams(
        _frozen(narrow.astype(np.int32)),
        _frozen(shifts.astype(np.int32)),
        *clamp_limits(call.outputs[0], str(call.attrs.get("activation", ""))),
    )


def fully_connected_16_params(call: Call) -> ScaledParams:
    """Lower fully_connected (x, w, bias?) of int16: see ScaledParams.

    Errors: GraphError, as `conv_16_params`
    """
    w, reals = _scales(call, call.type(1).dims[0])
    if len(set(w.zero_points)) != 1:
        raise GraphError("weights beside an int16 input must have one zero point")
    limits = clamp_limits(call.outputs[0], str(call.attrs.get("activation", "")))
    return ScaledParams(w.zero_points[0], _frozen(reals), *limits)


def softmax_16_params(call: Call) -> Softmax16Params:
    """Lower softmax (x) of int16: see Softmax16Params."""
    x = quant_of(call.type(0), "input", SIXTEEN_BIT)
    _check_unit(call.outputs[0])
    beta = np.float32(call.attrs.get("beta", 1.0))
    real = float(np.float32(np.float32(x.scale) * beta)) / (10.0 / 65535.0)
    below = multiply_by_quantized(-np.arange(1 << 16), *quantize_multiplier(real)) + 32767
    powers = curve(_exponentials(), np.clip(below, -32768, 32767))
    return Softmax16Params(_frozen(powers), _reciprocals())


def curve(table: Array, x: Array) -> Array:
    """Return the value of a table of 513 entries at int16 arguments: 9 bits choose, 7 interpolate.

    Source: TensorFlow Lite, common.h: LUTLookup of int16
    """
    at, offset = (x >> 7) + 256, x & 127
    return np.asarray(table[at] + (((table[at + 1] - table[at]) * offset + 64) >> 7))


def sigmoid_16(call: Call, stored: Array) -> Array:
    """Return sigmoid of int16, between entries of a table of sigmoid(i / 24).

    Source: TensorFlow Lite, activations.cc, reference integer_ops/logistic.h
    """
    whole = _on_table_scale(call, stored, most_shift=0)
    magnitude = np.abs(whole)
    at, offset = np.minimum(magnitude >> 9, 254), magnitude & 511
    table = _sigmoids()
    near = (table[at] << 9) + offset * (table[at + 1] - table[at])
    result = np.where(magnitude >> 9 >= 255, 0x7FFF << 10, near)
    half = 1 << 9
    return np.where(whole >= 0, result + half, (1 << 25) - result + half - 1) >> 10


def tanh_16(call: Call, stored: Array) -> Array:
    """Return tanh of int16: 2 sigmoid(2 x) - 1 with the table of `sigmoid_16`.

    Source: TensorFlow Lite, activations.cc, reference integer_ops/tanh.h
    """
    whole = _on_table_scale(call, stored, most_shift=1)
    magnitude = np.abs(whole)
    at, offset = np.minimum(magnitude >> 8, 254), magnitude & 255
    table = _sigmoids()
    near = (table[at] << 8) + offset * (table[at + 1] - table[at])
    result = np.where(magnitude >> 8 >= 255, 0xFFFF << 8, near)
    one, half = 1 << 23, 1 << 7
    return np.where(whole >= 0, result - one + half, one - result + half - 1) >> 8


def _on_table_scale(call: Call, stored: Array, most_shift: int) -> Array:
    """Return stored integers in units of 1 / (3 * 4096), as the table of sigmoids takes them.

    most_shift: an input scale of 2**-12 to 2**(most_shift - 12) is a shift
    """
    scale = np.float32(quant_of(call.type(0), "input", SIXTEEN_BIT).scale).item()
    _check_unit(call.outputs[0])
    wide = stored.astype(np.int64)
    power = power_of_two(scale)
    if power is not None and 0 <= 12 + power <= most_shift:
        return wide * (3 << 12 + power)
    multiplier, shift = scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and shift <= 30:
        multiplier, shift = multiplier * 2.0, shift + 1
    product = (wide * int(multiplier) + ((1 << shift) >> 1)).astype(np.int32)
    return product.astype(np.int64) >> shift


def power_of_two(scale: float) -> int | None:
    """Return k where a scale is 2**k, None where it is none.

    Source: TensorFlow Lite, kernel_util.cc: CheckedLog2, which allows k to differ by 0.001
    """
    exact = math.log2(scale)
    return round(exact) if abs(exact - round(exact)) < 1e-3 else None


def _check_unit(y: TensorType) -> None:
    """Raise GraphError unless a result has the scale 2**-15."""
    if quant_of(y, "output", SIXTEEN_BIT).scale != _ONE:
        raise GraphError(f"output {y} must have the scale 1/32768")


def _scales(call: Call, channels: int) -> tuple[Quant, Array]:
    """Return the quantisation of the weights, and the factor of each channel's sums in float64."""
    if call.input(3) is not None:
        raise GraphError("a residual cannot be fused on quantised values")
    x = quant_of(call.type(0), "input", SIXTEEN_BIT)
    y = quant_of(call.outputs[0], "output", SIXTEEN_BIT)
    weights, bias = call.type(1), call.input(2)
    if weights.quant is None or weights.dtype != "int8":
        raise GraphError(f"weights {weights} must be quantised int8 beside an int16 input")
    if bias is not None and bias.dtype != "int64":
        raise GraphError(f"bias {bias.type} must be int64 beside an int16 input")
    scales = np.array(weights.quant.scales, np.float32).astype(np.float64)
    if len(scales) not in (1, channels):
        raise GraphError(f"weights have {len(scales)} scales for {channels} output channels")
    reals = np.float64(np.float32(x.scale)) * scales / np.float64(np.float32(y.scale))
    return weights.quant, np.broadcast_to(reals, (channels,)).copy()


@cache
def _sigmoids() -> Array:
    """Return sigmoid(i / 24) for i in 0..255, with 16 bits behind the point.

    An entry is moved by half of the error that interpolation makes half way to the next one. The
    last entry is 1.

    Source: measured: the entries of LiteRT's table, common.h: sigmoid_table_uint16
    """

    def sigmoid(i: Array) -> Array:
        return np.asarray(65536.0 / (1 + np.exp(-i / 24)))

    at = np.arange(256.0)
    error = sigmoid(at + 0.5) - (sigmoid(at) + sigmoid(at + 1)) / 2
    table = np.floor(sigmoid(at) + error / 2 + 0.5).astype(np.int64)
    table[255] = 65535
    return _frozen(table)


@cache
def _exponentials() -> Array:
    """Return exp in 513 steps from -10 to 0, with 15 bits behind the point."""
    return _sampled(np.exp, 10.0 / 65535, 32767)


@cache
def _reciprocals() -> Array:
    """Return 1 / (1 + x) in 513 steps from 0 to 1, with 15 bits behind the point."""
    return _sampled(lambda x: 1 / (1 + x), 1.0 / 65535, -32768)


def _sampled(function: Callable[[Array], Array], step: float, zero: int) -> Array:
    """Return a function of step * (x - zero) at 513 int16 x, with 15 bits behind the point.

    An entry is moved by half of the error that interpolation makes half way to the next one.

    Source: TensorFlow Lite, common.h: LUTPopulateInt16
    """
    first, last = step * (-32768 - zero), step * (32767 - zero)
    width, unit = (last - first) / 512, 2.0 / 65535
    gain = 65536.0 / (unit * 32767 - unit * -32768)
    at = first + np.arange(512) * width
    after = first + (np.arange(512) + 1) * width
    here = round_half_away(function(at) * gain)
    middle = round_half_away(function(at + width / 2) * gain)
    crossed = round_half_away((function(after) * gain + here) / 2)
    bases = here - round_half_away((crossed - middle) / 2)
    end = round_half_away(function(np.array([last])) * gain)
    return _frozen(np.clip(np.concatenate([bases, end]), -32768, 32767).astype(np.int64))


def _frozen(table: Array) -> Array:
    table.flags.writeable = False
    return table
