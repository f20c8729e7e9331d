"""Ops that bring two inputs of 8 bits to one fixed-point scale: comparisons, squared difference."""

from __future__ import annotations

from trireme.ir.graph import Rounding
from trireme.ir.op import Call
from trireme.ops.integer.arithmetic import quantize_multiplier
from trireme.ops.integer.types import dtype_limits, quant_of, rounding_of
from trireme.support.records import dataclass


@dataclass(frozen=True)
class CompareParams:
    """Comparisons of integers; near values of two scales may become equal.

        a' = multiply_by_quantized((a - a_zero) << left_shift, a_multiplier, a_shift)
        b' = multiply_by_quantized((b - b_zero) << left_shift, b_multiplier, b_shift)
        y = a' ? b'

    Source: TensorFlow Lite, comparisons.cc, reference comparisons.h: ComparisonWithScaling
    """

    a_zero: int
    b_zero: int
    left_shift: int
    a_multiplier: int
    a_shift: int
    b_multiplier: int
    b_shift: int


@dataclass(frozen=True)
class SquaredDifferenceParams:
    """squared_difference on integers, with a' and b' of `sides`.

        y = clamp(multiply((a' - b')**2, multiplier, shift, rounding) + y_zero, low, high)

    Source: TensorFlow Lite, squared_difference.cc
    """

    sides: CompareParams
    y_zero: int
    multiplier: int
    shift: int
    low: int
    high: int
    rounding: Rounding


def compare_params(call: Call) -> CompareParams:
    """Lower a comparison (a, b): see CompareParams."""
    return _sides(call, 8, 1.0)


def squared_difference_params(call: Call) -> SquaredDifferenceParams:
    """Lower squared_difference (a, b): see SquaredDifferenceParams."""
    y = quant_of(call.outputs[0], "output")
    a, b = (quant_of(call.type(k), f"input {k}") for k in range(2))
    twice, left_shift = 2 * max(a.scale, b.scale), 7
    return SquaredDifferenceParams(
        _sides(call, left_shift, twice),
        y.zero_point,
        *quantize_multiplier(twice * twice / ((1 << 2 * left_shift) * y.scale)),
        *dtype_limits(call.outputs[0].dtype),
        rounding_of(call, Rounding.TWICE),
    )


def _sides(call: Call, left_shift: int, unit: float) -> CompareParams:
    """Return the parameters that bring both inputs to steps of unit / 2**left_shift."""
    a, b = (quant_of(call.type(k), f"input {k}") for k in range(2))
    return CompareParams(
        a.zero_point,
        b.zero_point,
        left_shift,
        *quantize_multiplier(a.scale / unit),
        *quantize_multiplier(b.scale / unit),
    )
