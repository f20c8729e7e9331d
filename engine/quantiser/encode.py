"""Ranges and floats as integers: scales, zero points, weights and biases.

Source: TensorFlow Lite 8-bit quantization specification
"""

from __future__ import annotations

import numpy as np

from trireme.ir.graph import Quant
from trireme.ops.integer import dtype_limits, round_half_away
from trireme.support.dtypes import Array, numpy_dtype

_BIAS_ROOM = {"int32": 2.0**30, "int64": 2.0**39}
"""The most steps of a bias. The sums of products that are added need the rest of int32.

Beside int16 values a bias has 40 bits in Arm's Vela, and LiteRT's kernels take more.
"""
_MOST_BIAS = {"int32": 2**31 - 1, "int64": 2**46}
"""The greatest bias; LiteRT multiplies sums of 64 bits below 2**47."""


def per_tensor(low: float, high: float, dtype: str) -> Quant:
    """Return the quantisation of a range, per tensor: symmetric for int16, else asymmetric."""
    return symmetric(low, high, dtype) if dtype == "int16" else asymmetric(low, high, dtype)


def symmetric(low: float, high: float, dtype: str) -> Quant:
    """Return the quantisation of a range widened to be symmetric around 0, per tensor.

        scale = max(|low|, |high|) / 32767, zero point = 0

    A range of zero width has scale 1.
    """
    scale = float(np.float32(max(abs(float(low)), abs(float(high))) / dtype_limits(dtype)[1]))
    return Quant((scale if scale > 0 and np.isfinite(scale) else 1.0,), (0,))


def asymmetric(low: float, high: float, dtype: str) -> Quant:
    """Return the quantisation of a range widened to hold 0, per tensor.

        scale = (high - low) / 255, zero point = round(least - low / scale)

    A range of zero width has scale 1.
    """
    least, most = dtype_limits(dtype)
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    scale = float(np.float32((high - low) / (most - least)))
    if scale <= 0 or not np.isfinite(scale):
        return Quant((1.0,), (0,))
    zero = int(np.clip(round_half_away(np.asarray(least - low / scale)), least, most))
    return Quant((scale,), (zero,))


def range_of(quant: Quant, dtype: str) -> tuple[float, float]:
    """Return the least and the greatest real number of a per-tensor quantisation."""
    least, most = dtype_limits(dtype)
    return (least - quant.zero_point) * quant.scale, (most - quant.zero_point) * quant.scale


def stored(real: Array, quant: Quant, dtype: str) -> Array:
    """Return floats as stored integers: clamp(round(x / scale) + zero point), per tensor."""
    wide = round_half_away(np.asarray(real, np.float64) / quant.scale) + quant.zero_point
    return np.asarray(np.clip(wide, *dtype_limits(dtype)), numpy_dtype(dtype))


def weights_of(
    real: Array, axis: int, x_scale: float, bias: Array | None, dtypes: tuple[str, str]
) -> tuple[Array, Quant]:
    """Return weights as integers, symmetric around 0 with a scale for each index of `axis`.

    A scale is at least so large that the bias fits. Integers end at -127. A channel that is zero
    takes the scale of the largest.

    bias: what becomes integers with the scales of the weights; None where nothing does
    dtypes: of the weights, and of the bias
    Shapes: bias [O], O the size of the axis
    """
    most = dtype_limits(dtypes[0])[1]
    peaks = channel_peaks(real, axis)
    scales = np.where(peaks > 0, peaks, peaks.max(initial=0.0)) / most
    if bias is not None:
        room = x_scale * _BIAS_ROOM[dtypes[1]]
        scales = np.maximum(scales, np.abs(bias.astype(np.float64)) / room)
    scales = np.where(scales > 0, scales, 1.0).astype(np.float32)
    scales = np.maximum(scales, np.finfo(np.float32).tiny)
    shape = [1] * real.ndim
    shape[axis] = -1
    ratio = round_half_away(real / scales.astype(np.float64).reshape(shape))
    integers = np.clip(ratio, -most, most).astype(numpy_dtype(dtypes[0]))
    return integers, Quant(tuple(map(float, scales)), (0,) * len(scales), axis)


def channel_peaks(real: Array, axis: int) -> Array:
    """Return the largest magnitude at each index of an axis, in float64."""
    wide = np.moveaxis(np.asarray(real, np.float64), axis, 0)
    return np.asarray(np.abs(wide.reshape(wide.shape[0], -1)).max(axis=1, initial=0.0))


def bias_of(real: Array, x_scale: float, weights: Quant, dtype: str) -> tuple[Array, Quant]:
    """Return a bias as integers whose scale is exactly that of the input times the weights'.

    Shapes: real [O] -> [O]
    """
    scales = np.float64(x_scale) * np.array(weights.scales, np.float64)
    wide = round_half_away(real.astype(np.float64) / scales)
    integers = np.clip(wide, -_MOST_BIAS[dtype] - 1, _MOST_BIAS[dtype]).astype(numpy_dtype(dtype))
    kept = tuple(map(float, scales.astype(np.float32)))
    return integers, Quant(kept, (0,) * len(kept), 0 if len(kept) > 1 else None)
