"""Layer normalisation of 16-bit integers, as an lstm of int8 values has it in its gates."""

from __future__ import annotations

import numpy as np

from trireme.ops.integer.arithmetic import (
    multiply_by_quantized,
    rounding_divide_by_power_of_two,
    rounding_doubling_high_multiply,
)
from trireme.support.dtypes import Array

_INT32_MAX = 2**31 - 1


def layer_normalized(
    x: Array, weights: Array, bias: Array, scale: tuple[int, int], guard: int
) -> Array:
    """Return (x - mean) / deviation * weights + bias along the last axis, in int16.

    The mean has 10 bits behind the point. A variance below 1 becomes the guard.

    Shapes: x [B,H], weights and bias [H]
    Source: TensorFlow Lite, portable tensor_utils: ApplyLayerNorm
    """
    count = x.shape[-1]
    mean = _cut(x.sum(axis=-1, keepdims=True) * 1024, count)
    squares = (x * x).sum(axis=-1, keepdims=True) * ((1 << 20) // count)
    variance = _cut(squares - mean * mean, 1 << 20)
    variance = np.where(variance < 1, guard, variance)
    inverse = np.array([inverse_square_root(int(v)) for v in variance.reshape(-1)], np.int64)
    multipliers, shifts = inverse.reshape(-1, 2).T.reshape(2, *variance.shape)
    rescaled = multiply_by_quantized(1024 * x - mean, multipliers, shifts)
    total = rescaled * weights + bias
    total = _cut(total + np.where(total > 0, 512, -512), 1024)
    multiplier, shift = scale
    return np.clip(multiply_by_quantized(total, multiplier, shift + 12), -32768, 32767)


def _cut(x: Array, divisor: int) -> Array:
    """Return x / divisor, cut toward zero."""
    return np.asarray(np.sign(x) * (np.abs(x) // divisor))


def inverse_square_root(x: int) -> tuple[int, int]:
    """Return (multiplier, shift) of 1 / sqrt(x), for `multiply_by_quantized`.

    Source: TensorFlow Lite, kernels/internal/common.h: GetInvSqrtQuantizedMultiplierExp
    """
    if x <= 1:
        return _INT32_MAX, 0
    right = 11
    while x >= 1 << 29:
        x, right = x // 4, right + 1
    pairs = (32 - x.bit_length() - 1) // 2 - 1
    right -= pairs
    x <<= 2 * pairs
    whole = x >> 1  # 3 integer bits
    half, three_halves = _shifted(whole, -1), (1 << 28) + (1 << 27)
    root = 1 << 28
    for _ in range(5):
        cube = _shifted(_times(_times(root, root), root), 6)
        step = _times(three_halves, root) - _times(half, cube)
        root = _shifted(step, 3)
    root = _times(root, 1518500250)  # half of the square root of 2
    if right < 0:
        root, right = root << -right, 0
    return root, -right


def _times(a: int, b: int) -> int:
    return int(rounding_doubling_high_multiply(np.asarray(a), b))


def _shifted(x: int, power: int) -> int:
    """Return x * 2**power, saturated to int32, or rounded with ties away from zero."""
    if power < 0:
        return int(rounding_divide_by_power_of_two(np.asarray(x), -power))
    return max(min(x << power, _INT32_MAX), -(2**31))
