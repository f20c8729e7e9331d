"""Facts of quantised types: limits of the integers, clamps, conversion to floats and back."""

from __future__ import annotations

import math

import numpy as np

from trireme.ir.graph import Quant, Rounding, TensorType
from trireme.ir.op import Call
from trireme.ops.integer.arithmetic import round_half_away
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import GraphError

EIGHT_BIT = ("int8", "uint8")
SIXTEEN_BIT = ("int16",)
"""The dtypes of activations in "16x8", beside int8 weights; their zero point is 0."""
CLAMPS: dict[str, tuple[float | None, float | None]] = {
    "": (None, None),
    "relu": (0.0, None),
    "relu6": (0.0, 6.0),
    "relu_n1_to_1": (-1.0, 1.0),
}
"""The activations that are a clamp, and so can be fused into integer arithmetic: (low, high)."""


def dtype_limits(dtype: str) -> tuple[int, int]:
    """Return the least and the greatest integer of a dtype."""
    info = np.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)


def stored_dtypes(call: Call) -> tuple[str, ...]:
    """Return the dtypes of a node's activations: 16-bit ones where its first input is int16."""
    return SIXTEEN_BIT if call.type(0).dtype in SIXTEEN_BIT else EIGHT_BIT


def quant_of(type: TensorType, role: str, dtypes: tuple[str, ...] = EIGHT_BIT) -> Quant:
    """Return the per-tensor quantisation of a type; `role` names it in the error.

    dtypes: the stored dtypes that the caller computes with
    Errors: GraphError, if the type is not quantised, of another dtype, quantised along an axis, or
        int16 with a zero point
    """
    quant = type.quant
    if quant is None:
        raise GraphError(f"{role} {type} is not quantised, while others of the node are")
    if type.dtype not in dtypes:
        kinds = "int8 and uint8" if dtypes == EIGHT_BIT else "int16"
        raise GraphError(f"{role} {type}: quantised arithmetic has {kinds} only")
    if len(quant.scales) != 1:
        raise GraphError(f"{role} {type} has a scale per channel; only weights may")
    if type.dtype in SIXTEEN_BIT and quant.zero_point:
        raise GraphError(f"{role} {type} has a zero point; int16 has none")
    return quant


def rounding_of(call: Call, otherwise: Rounding) -> Rounding:
    """Return how a node rounds: as its output's type says, otherwise as LiteRT's reference does."""
    quant = call.outputs[0].quant
    return quant.rounding if quant is not None and quant.rounding else otherwise


def clamp_limits(type: TensorType, activation: str) -> tuple[int, int]:
    """Return the stored integers (low, high) that a fused activation clamps a result to.

    Errors: GraphError, if the activation is no clamp
    Source: TensorFlow Lite, kernel_util: CalculateActivationRangeQuantized
    """
    if activation not in CLAMPS:
        raise GraphError(
            f"activation {activation!r} cannot be fused on quantised values",
            facts=[f"clamps: {', '.join(name for name in CLAMPS if name)}"],
        )
    return clamp_between(type, *CLAMPS[activation])


def clamp_between(type: TensorType, low: float | None, high: float | None) -> tuple[int, int]:
    """Return the stored integers of the real limits, within the dtype's own; None is no limit.

    A limit that is NaN makes every result NaN, which is stored as the least integer.
    """
    quant = quant_of(type, "output", (*EIGHT_BIT, *SIXTEEN_BIT))
    least, most = dtype_limits(type.dtype)
    if any(limit is not None and math.isnan(limit) for limit in (low, high)):
        return least, least

    def stored(real: float) -> int:
        ratio = np.asarray(np.float32(real) / np.float32(quant.scale))
        return int(np.clip(float(_rounded(ratio, quant)) + quant.zero_point, least, most))

    return (
        least if low is None else stored(low),
        most if high is None else stored(high),
    )


def quantized(x: Array, type: TensorType) -> Array:
    """Return floats as the stored integers of a type: clamp(round(x / scale) + zero_point).

    The division is in float32, the rounding half away from zero or, where the type says so, to
    even; NaN gives the least integer.

    Shapes: x of the type's shape; scales along the type's axis where it has one
    Source: TensorFlow Lite, reference quantize.h: AffineQuantize; ONNX QuantizeLinear-25
    """
    if type.quant is None:
        raise GraphError(f"output {type} is not quantised")
    low, high = dtype_limits(type.dtype)
    scale, zero = _along(type.quant, x.ndim)
    with np.errstate(all="ignore"):
        wide = _rounded(np.asarray(x, np.float32) / scale, type.quant) + zero
    wide = np.where(np.isnan(wide), low, np.clip(wide, low, high))
    return wide.astype(numpy_dtype(type.dtype))


def dequantized(x: Array, type: TensorType) -> Array:
    """Return stored integers as float32: scale * (x - zero_point), one rounding.

    Shapes: x of the type's shape; scales along the type's axis where it has one
    Source: TensorFlow Lite, reference dequantize.h
    """
    if type.quant is None:
        raise GraphError(f"input {type} is not quantised")
    scale, zero = _along(type.quant, x.ndim)
    return ((np.asarray(x, np.int64) - zero) * scale.astype(np.float64)).astype(np.float32)


def _rounded(x: Array, quant: Quant) -> Array:
    """Round quotients by a scale as a quantisation says, to float64."""
    if quant.rounding is Rounding.HALF_EVEN:
        return np.asarray(np.rint(x), np.float64)
    return round_half_away(x)


def _along(quant: Quant, rank: int) -> tuple[Array, Array]:
    """The scales (float32) and zero points (int64), shaped to broadcast against an array."""
    scale, zero = np.array(quant.scales, np.float32), np.array(quant.zero_points, np.int64)
    if quant.axis is None:
        return scale.reshape(()), zero.reshape(())
    shape = [1] * rank
    shape[quant.axis] = -1
    return scale.reshape(shape), zero.reshape(shape)
