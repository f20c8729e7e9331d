"""Float operators with int8 weights ("dynamic range"): the input is quantised on the fly.

LiteRT measures the range of each batch entry, rounds the input to 8 bits, multiplies integers and
scales back. The same is built here of float nodes on whole numbers: their products are exact, so
any device's float kernel gives LiteRT's answer. Only ties of the rounding go to even here.

    symmetric:  step = max |x| / 127, q = round(x / step)                  one scale for all weights
    asymmetric: step = (max(x, 0) - min(x, 0)) / 255, zero = round(-128 - min / step),
                q = clamp(round(x / step + zero)) - zero                   a scale per channel
    y = activation(op(q, w) * step * scale of w + bias)

Source: TensorFlow Lite, conv.cc, depthwise_conv.cc, fully_connected.cc: EvalHybrid; portable
        tensor_utils: SymmetricQuantizeFloats, AsymmetricQuantizeFloats
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.converters.tflite.use import OperatorUse
from trireme.ir.graph import Quant
from trireme.support.dtypes import Array

_TINY = 1e-30
"""The range of an input of zeros alone."""


def dynamic_range(
    use: OperatorUse,
    op: str,
    x: int,
    data: Array,
    quant: Quant,
    bias: int | None,
    *,
    axes: Sequence[int],
    asymmetric: bool,
    activation: str,
    **attrs: Any,
) -> None:
    """Add the nodes of a float `op` with int8 weights as outputs of the operator.

    Shapes: data as `op` takes its weights, quant along its output channels or per tensor
    axes: the input's axes that share a range
    Errors: ConvertError, if the weights are not symmetric int8
    """
    if data.dtype != np.int8 or any(quant.zero_points):
        raise use.fail(f"{data.dtype} weights under a float input must be symmetric int8")
    scales = np.array(quant.scales, np.float32)
    levels, step = float_levels(use, x, use.int_constant(axes), asymmetric=asymmetric)
    weights = use.builder.constant(f"{use.source}_levels", data.astype(np.float32))
    product = use.add(op, levels, weights, activation="", **attrs)
    scale = use.add("mul", step, use.builder.constant(f"{use.source}_scales", scales))
    if bias is None:
        use.done("mul", product, scale, activation=activation)
    else:
        use.done("add", use.add("mul", product, scale), bias, activation=activation)


def float_levels(use: OperatorUse, x: int, axes: int, *, asymmetric: bool) -> tuple[int, int]:
    """Quantise a float value and return (whole numbers as floats, the step between them)."""
    return (_asymmetric if asymmetric else _symmetric)(use, x, axes)


def _symmetric(use: OperatorUse, x: int, axes: int) -> tuple[int, int]:
    """Return (whole numbers in -127..127, the step between them)."""
    most = use.add("reduce_max", use.add("abs", x), axes, keepdims=1)
    most = use.add("max", most, use.float_constant(_TINY))
    inverse = use.add("div", use.float_constant(127.0), most)
    levels = use.add("round", use.add("mul", x, inverse))
    return levels, use.add("mul", most, use.float_constant(1 / 127))


def _asymmetric(use: OperatorUse, x: int, axes: int) -> tuple[int, int]:
    """Return (whole numbers of a range of 255 that holds 0, the step between them)."""
    zero, least, most = (use.float_constant(v) for v in (0.0, -128.0, 127.0))
    low = use.add("min", use.add("reduce_min", x, axes, keepdims=1), zero)
    high = use.add("max", use.add("reduce_max", x, axes, keepdims=1), zero)
    step = use.add("mul", use.add("sub", high, low), use.float_constant(1 / 255))
    step = use.add("max", step, use.float_constant(_TINY))
    point = use.add("round", use.add("sub", least, use.add("div", low, step)))
    point = use.add("clip", point, least, most)
    shifted = use.add("add", use.add("div", x, step), point)
    levels = use.add("clip", use.add("round", shifted), least, most)
    return use.add("sub", levels, point), step
