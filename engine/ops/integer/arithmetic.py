"""Fixed-point arithmetic: a real factor as 31-bit multiplier and shift, and how products round.

Intermediate arrays are int64, so that nothing overflows; every result fits int32.
"""

from __future__ import annotations

import math

import numpy as np

from trireme.ir.graph import Rounding
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError


def quantize_multiplier(real: float) -> tuple[int, int]:
    """Return (multiplier, shift) with real ~ multiplier * 2**(shift - 31).

    Units:  0 <= real; multiplier is 0 or in [2**30, 2**31), shift in [-31, 30]
    Source: TensorFlow Lite, quantization_util: QuantizeMultiplier
    """
    if real == 0:
        return 0, 0
    if math.isinf(real):  # scales of 1e30 and more
        return 2**31 - 1, 30
    fraction, shift = math.frexp(real)
    multiplier = math.floor(fraction * 2**31 + 0.5)
    if multiplier == 2**31:
        multiplier, shift = 2**30, shift + 1
    if shift < -31:
        return 0, 0
    if shift > 30:
        return 2**31 - 1, 30
    return multiplier, shift


def quantize_multipliers(reals: Array) -> tuple[Array, Array]:
    """Return `quantize_multiplier` of each number, as int64 arrays."""
    fractions, exponents = np.frexp(np.minimum(reals, 2.0**62))  # infinity has no exponent
    multipliers = np.floor(fractions * 2.0**31 + 0.5).astype(np.int64)
    shifts = exponents.astype(np.int64) + (multipliers == 1 << 31)
    multipliers = np.where(multipliers == 1 << 31, 1 << 30, multipliers)
    none, most = (multipliers == 0) | (shifts < -31), shifts > 30
    multipliers = np.where(none, 0, np.where(most, (1 << 31) - 1, multipliers))
    return multipliers, np.where(none, 0, np.minimum(shifts, 30))


def rounding_doubling_high_multiply(a: Array, b: Array | int) -> Array:
    """Return (a * b) / 2**31 rounded to nearest, ties upwards: the high half of 2ab.

    Shapes: a, b broadcast; values are int32 (b not -2**31), the result is int64 that fits int32
    Source: gemmlowp, fixedpoint: SaturatingRoundingDoublingHighMul, which truncates after adding
            2**30 or 1 - 2**30 by the sign of the product; this is the same number
    """
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    return np.asarray((product + (1 << 30)) >> 31)


def rounding_divide_by_power_of_two(x: Array, exponent: Array | int) -> Array:
    """Return x / 2**exponent rounded to nearest, ties away from zero.

    Shapes: x, exponent broadcast; 0 <= exponent <= 31
    Source: gemmlowp, fixedpoint: RoundingDivideByPOT
    """
    x, exponent = np.asarray(x, np.int64), np.asarray(exponent, np.int64)
    mask = (np.int64(1) << exponent) - 1
    threshold = (mask >> 1) + (x < 0)
    return np.asarray((x >> exponent) + ((x & mask) > threshold))


def multiply_by_quantized(x: Array, multiplier: Array | int, shift: Array | int) -> Array:
    """Return x * multiplier * 2**(shift - 31), rounded twice.

    A positive shift multiplies x first (the product wraps to int32, as hardware does); a negative
    one divides afterwards:

        left, right = max(shift, 0), max(-shift, 0)
        divide_by_power_of_two(doubling_high_multiply(int32(x << left), multiplier), right)

    Shapes: x, multiplier, shift broadcast; x int32 values -> int64 that fits int32
    Source: TensorFlow Lite, common.h: MultiplyByQuantizedMultiplier (double rounding)
    """
    shift = np.asarray(shift, np.int64)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    shifted = (np.asarray(x, np.int64) << left).astype(np.int32)
    return rounding_divide_by_power_of_two(
        rounding_doubling_high_multiply(shifted, multiplier), right
    )


def multiply_once(
    x: Array, multiplier: Array | int, shift: Array | int, rounding: Rounding
) -> Array:
    """Return x * multiplier * 2**(shift - 31), rounded once.

        p, down = int64(x) * multiplier, 31 - shift
        half_away: (p + 2**(down - 1) - (p < 0)) >> down
        half_even: (p + 2**(down - 1) - 1 + (p >> down & 1)) >> down

    Shapes: x, multiplier, shift broadcast; x int32 values, shift <= 30
    """
    x, multiplier, shift = (np.asarray(v, np.int64) for v in (x, multiplier, shift))
    product, down = x * multiplier, 31 - shift
    even = rounding is Rounding.HALF_EVEN
    less = 1 - (product >> down & 1) if even else product < 0
    return np.asarray((product + (np.int64(1) << (down - 1)) - less) >> down)


def multiply(x: Array, multiplier: Array | int, shift: Array | int, rounding: Rounding) -> Array:
    """Return x * multiplier * 2**(shift - 31), rounded as told.

    Errors: GraphError, if the rounding is none of twice, half_away and half_even
    """
    if rounding is Rounding.TWICE:
        return multiply_by_quantized(x, multiplier, shift)
    if rounding is Rounding.TRUNCATE:
        raise GraphError("a fixed-point product has no rounding 'truncate'")
    return multiply_once(x, multiplier, shift, rounding)


def requantize(
    acc: Array,
    multiplier: Array | int,
    shift: Array | int,
    zero: int,
    low: int,
    high: int,
    rounding: Rounding,
) -> Array:
    """Return clamp(multiply(acc, multiplier, shift, rounding) + zero, low, high) as int64.

    Shapes: acc [..., O] with multiplier and shift [O], or all broadcast
    """
    scaled = multiply(acc, multiplier, shift, rounding)
    return np.asarray(np.clip(scaled + zero, low, high))


def divide(x: Array, count: Array | int, rounding: Rounding) -> Array:
    """Return x / count rounded to nearest, ties to even, or else away from zero.

        half_away: (x +- count // 2) / count, cut
        half_even: with q = floor(x / count), r = x - q * count:
                   q + (r > count - r or r == count - r and q is odd)

    Shapes: x, count broadcast; count > 0
    Source: TensorFlow Lite, reference integer_ops/pooling.h: AveragePool (half_away)
    """
    x, count = np.asarray(x, np.int64), np.asarray(count, np.int64)
    if rounding is Rounding.HALF_EVEN:
        whole, rest = np.divmod(x, count)
        return np.asarray(whole + (rest > count - rest - (whole & 1)))
    return np.asarray(np.sign(x) * ((np.abs(x) + count // 2) // count))


def round_half_away(x: Array) -> Array:
    """Return x rounded to an integer, ties away from zero, as float64; NaN and infinities stay.

    Source: C++ std::round, which TensorFlow Lite quantises floats with
    """
    wide = np.asarray(x, np.float64)
    return np.asarray(np.copysign(np.floor(np.abs(wide) + 0.5), wide))
