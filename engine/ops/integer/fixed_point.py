"""sigmoid and tanh of 16-bit fixed point, as tables of all 65536 inputs.

Both go through exp of a negative number and a division by Newton's method. Every operation rounds
to 16 bits. `bits` are the integer bits of an argument; 15 - bits are behind the point.

Source: gemmlowp, fixedpoint.h: logistic, tanh, exp_on_negative_values,
        one_over_one_plus_x_for_x_in_0_1, one_minus_x_over_one_plus_x_for_x_in_0_1
"""

from __future__ import annotations

from functools import cache

import numpy as np

from trireme.ops.integer.arithmetic import rounding_divide_by_power_of_two
from trireme.support.dtypes import Array

_ONE = 32767
_EXPONENTS = (
    (-2, 1672461947),
    (-1, 1302514674),
    (0, 790015084),
    (1, 290630308),
    (2, 39332535),
    (3, 720401),
    (4, 242),
)
"""exp(-2**k) for each k, in 31 bits behind the point."""


def _wrapped(x: Array) -> Array:
    return np.asarray(x).astype(np.int16).astype(np.int64)


def _saturated(x: Array) -> Array:
    return np.clip(x, -32768, 32767)


def _times(a: Array | int, b: Array | int) -> Array:
    """Return (a * b) / 2**15 rounded to nearest, ties upwards."""
    return _saturated((np.asarray(a, np.int64) * b + (1 << 14)) >> 15)


def _scaled(x: Array, power: int) -> Array:
    """Return x * 2**power, saturated, or rounded with ties away from zero."""
    if power >= 0:
        return _saturated(x << power)
    return rounding_divide_by_power_of_two(x, -power)


def _constant(bits_31: int) -> int:
    return int(rounding_divide_by_power_of_two(np.asarray(bits_31), 16))


def _exp_near_zero(a: Array) -> Array:
    """Return exp(a) for -1/4 <= a < 0, by Taylor's series around -1/8."""
    x = _wrapped(a + (1 << 12))
    x2 = _times(x, x)
    x3, x4 = _times(x2, x), _times(x2, x2)
    rest = _wrapped(_scaled(x4, -2) + x3)
    rest = _scaled(_wrapped(_times(rest, _constant(715827883)) + x2), -1)
    base = _constant(1895147668)
    return _saturated(base + _times(base, _wrapped(x + rest)))


def _exp_of_negative(a: Array, bits: int) -> Array:
    """Return exp(a) for a <= 0: a quarter at most, times exp of powers of two."""
    fraction = 15 - bits
    quarter = 1 << (fraction - 2)
    low = (a & (quarter - 1)) - quarter
    result = _exp_near_zero(_scaled(low, bits))
    remainder = _wrapped(low - a)
    for exponent, factor in _EXPONENTS:
        if bits > exponent:
            taken = remainder & (1 << (fraction + exponent)) != 0
            result = np.where(taken, _times(result, _constant(factor)), result)
    if bits > 5:
        result = np.where(a < -(1 << (20 - bits)), 0, result)
    return np.where(a == 0, _ONE, result)


def _reciprocal(x: Array) -> Array:
    """Return 2 / (1 + x) for 0 <= x <= 1, with 2 integer bits."""
    total = x + _ONE
    half = (total + np.where(total >= 0, 1, -1)) // 2
    y = _wrapped(_constant(1515870810) + _times(half, _constant(-1010580540)))
    for _ in range(3):
        left = _wrapped((1 << 13) - _times(half, y))
        y = _wrapped(y + _scaled(_times(y, left), 2))
    return y


@cache
def sigmoid_table() -> Array:
    """Return sigmoid of every 16-bit number with 3 integer bits; the result has none.

    Shapes: int16 [65536], indexed by the argument + 32768
    """
    a = np.arange(-32768, 32768)
    magnitude = _wrapped(np.where(a > 0, a, -a))
    exponential = _exp_of_negative(_wrapped(-magnitude), 3)
    positive = _scaled(_reciprocal(exponential), 1)  # halved, and 2 integer bits fewer
    made = np.where(a > 0, positive, _wrapped(_ONE - positive))
    return _frozen(np.where(a == 0, 1 << 14, made))


@cache
def tanh_table(bits: int) -> Array:
    """Return tanh of every 16-bit number with `bits` integer bits (0 to 6); the result has none.

    Shapes: int16 [65536], indexed by the argument + 32768
    """
    a = np.arange(-32768, 32768)
    negative = _wrapped(np.where(a < 0, a, -a))
    exponential = _exp_of_negative(negative, bits + 1)  # of twice the argument
    t = _scaled(_wrapped(_reciprocal(exponential) - (1 << 13)), 2)
    return _frozen(np.where(a == 0, 0, np.where(a < 0, _wrapped(-t), t)))


def _frozen(table: Array) -> Array:
    narrow = table.astype(np.int16)
    narrow.flags.writeable = False
    return narrow
