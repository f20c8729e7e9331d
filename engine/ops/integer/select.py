"""Ops that choose or average stored integers of one quantisation: pools, pad, resize, max, min."""

from __future__ import annotations

import numpy as np

from trireme.ir.graph import Rounding
from trireme.ir.op import Call
from trireme.ops.integer.types import EIGHT_BIT, clamp_limits, quant_of, rounding_of
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError
from trireme.support.records import dataclass


@dataclass(frozen=True)
class PoolParams:
    """average_pool and max_pool on integers; input and output have the same quantisation.

        average, half_away: y = clamp(divide(sum(x in window), count, rounding), low, high)
        average, half_even: y = clamp(divide(sum(x in window) - count * zero, count, rounding)
                                      + zero, low, high)
        max:                y = clamp(max(x in window), low, high)

    `count` is the number of elements of the window inside x, or its whole size where
    count_include_pad is set; then each padded element is `zero`. The sum fits int32. LiteRT's
    reference kernels round a mean of the stored integers, whose zero point is not subtracted.

    Source: TensorFlow Lite, reference integer_ops/pooling.h
    """

    zero: int
    low: int
    high: int
    rounding: Rounding


@dataclass(frozen=True, eq=False)
class ResizeAxis:
    """Linear resizing along one axis: weights are in 1/1024.

        along rows then columns, with (r0, r1, f) of rows and (c0, c1, g) of columns:
        v = x[r0,c0] (1024-f)(1024-g) + x[r1,c0] f (1024-g) + x[r0,c1] (1024-f) g + x[r1,c1] f g
        half_away: y = divide(v, 2**20)
        half_even: y = divide(v - zero * 2**20, 2**20) + zero

    The weights of a pixel add up to 2**20. Fractions before the first or beyond the last element
    are outside 0..1024, where lower and upper are the same element.

    int8 takes multiples of a rounded step as coordinates, so a long axis drifts: from 640 to
    1000 elements the last coordinate is 0.35 elements off. uint8, which LiteRT interpolates in
    floats, takes each coordinate rounded.

    Shapes: lower, upper, fraction int32 [output size]
    Source: TensorFlow Lite, reference resize_bilinear.h: ResizeBilinearInteger
    """

    lower: Array
    upper: Array
    fraction: Array


def same_quant(call: Call, dtypes: tuple[str, ...] = EIGHT_BIT) -> None:
    """Raise GraphError unless every quantised input has the quantisation of the output."""
    y = call.outputs[0]
    for value in call.inputs:
        if value is None or value.quant is None:
            continue
        if (value.dtype, value.quant) != (y.dtype, y.quant):
            raise GraphError(
                f"input {value.type} and output {y} must have the same quantisation",
                fix="requantise the input with a quantize node",
            )
    quant_of(call.type(0), "input", dtypes)
    quant_of(y, "output", dtypes)


def pool_params(call: Call, dtypes: tuple[str, ...] = EIGHT_BIT) -> PoolParams:
    """Lower average_pool or max_pool (x): see PoolParams."""
    same_quant(call, dtypes)
    y = call.outputs[0]
    return PoolParams(
        quant_of(y, "output", dtypes).zero_point,
        *clamp_limits(y, str(call.attrs.get("activation", ""))),
        rounding_of(call, Rounding.HALF_AWAY),
    )


def pad_value(call: Call, dtypes: tuple[str, ...] = EIGHT_BIT) -> int:
    """Return the stored integer that a quantised constant pad (x, pads, value?) fills with."""
    same_quant(call, dtypes)
    value = call.input(2)
    if value is None:
        return quant_of(call.type(0), "input", dtypes).zero_point
    if value.data is None:
        raise GraphError("pad: the value of a quantised pad must be a constant")
    return int(value.data.reshape(-1)[0])


_EXACT = 1e-3
"""The most elements by which a size may differ from another size times a scale in float32."""
_INTEGER_COORDINATES = ("asymmetric", "half_pixel", "align_corners")


def resize_reason(call: Call) -> str | None:
    """Return why a resize has no form on stored integers (ResizeAxis), None where it has one."""
    x, y, attrs = call.type(0).dims, call.outputs[0].dims, call.attrs
    if 0 in x:
        return "there is nothing to resize"
    changed = {axis for axis in range(len(x)) if x[axis] != y[axis]}
    if attrs["mode"] != "linear" or len(x) != 4 or not changed <= {1, 2}:
        return "stored integers are resized linearly along rows and columns of [N,H,W,C] only"
    coordinates = str(attrs["coordinate_transformation_mode"])
    if coordinates not in _INTEGER_COORDINATES:
        return f"stored integers are not resized by {coordinates} coordinates"
    if attrs["antialias"]:
        return "stored integers are not resized with antialiasing"
    if not _by_sizes(call):
        return "stored integers are resized by the ratio of the sizes only"
    if rounding_of(call, Rounding.HALF_AWAY) is Rounding.HALF_EVEN and not whole_positions(call):
        return "ONNX resizes in floats where positions are not whole 1024ths"
    return None


def whole_positions(call: Call) -> bool:
    """Whether all positions of a linear resize are known as whole 1024ths of an element."""
    how, x, y = str(call.attrs["coordinate_transformation_mode"]), call.type(0), call.outputs[0]
    if not (x.is_static and y.is_static) or how not in _INTEGER_COORDINATES or not _by_sizes(call):
        return False
    sizes = zip(x.dims, y.dims, strict=True)
    return all(_is_whole(*pair, how) for pair in sizes if pair[0] != pair[1])


def _is_whole(size_in: int, size_out: int, mode: str) -> bool:
    over, under = 1024 * size_in, size_out
    if mode == "align_corners" and size_out > 1:
        over, under = 1024 * (size_in - 1), size_out - 1
    return over % under == 0 and (mode != "half_pixel" or over // under % 2 == 0)


def _by_sizes(call: Call) -> bool:
    """Whether the scale of each axis is the ratio of its sizes."""
    x, y, attrs, scales = call.type(0).dims, call.outputs[0].dims, call.attrs, call.input(2)
    if scales is None or not scales.type.elements:
        return bool(attrs["keep_aspect_ratio_policy"] == "stretch")
    if scales.data is None:
        return False
    axes = attrs["axes"] or range(len(x))
    pairs = zip(axes, scales.data.reshape(-1), strict=True)
    return all(abs(x[axis] * float(scale) - y[axis]) < _EXACT for axis, scale in pairs)


def resize_axes(call: Call) -> tuple[ResizeAxis, ResizeAxis]:
    """Return the rows and the columns of a linear resize of [N,H,W,C]: see ResizeAxis."""
    x, y = call.type(0).dims, call.outputs[0].dims
    how = str(call.attrs["coordinate_transformation_mode"])
    exact = call.type(0).dtype == "uint8"
    rows, columns = (resize_axis(x[axis], y[axis], how, exact=exact) for axis in (1, 2))
    return rows, columns


def resize_axis(size_in: int, size_out: int, mode: str, *, exact: bool = False) -> ResizeAxis:
    """Return the elements and weights of linear resizing along one axis: see ResizeAxis.

    `mode` is ONNX's coordinate_transformation_mode, one of _INTEGER_COORDINATES.
    exact: whether each coordinate is rounded by itself, not the step from one to the next
    Errors: GraphError, if the mode has no integer form
    """
    if mode not in _INTEGER_COORDINATES:
        raise GraphError(f"resize: mode {mode!r} has no integer form")
    place = _rounded_places if exact else _multiples_of_a_step
    position = place(size_in, size_out, mode)
    lower = np.maximum(_cut(position, 1024), 0)
    upper = np.minimum(_cut(position + 1023, 1024), size_in - 1)
    lower = np.minimum(lower, size_in - 1)
    lower, upper, fraction = (a.astype(np.int32) for a in (lower, upper, position - 1024 * lower))
    return ResizeAxis(lower, upper, fraction)


def _multiples_of_a_step(size_in: int, size_out: int, mode: str) -> Array:
    """Return coordinates in 1024ths, multiples of a step that is rounded to one."""
    scale = (1024 * size_in + size_out // 2) // size_out
    if mode == "align_corners" and size_out > 1:
        scale = (1024 * (size_in - 1) + (size_out - 1) // 2) // (size_out - 1)
    position = np.arange(size_out, dtype=np.int64) * scale
    return position + scale // 2 - 512 if mode == "half_pixel" else position


def _rounded_places(size_in: int, size_out: int, mode: str) -> Array:
    """Return coordinates in 1024ths, each rounded to nearest."""
    at = np.arange(size_out, dtype=np.int64)
    over, under = at * size_in, size_out
    if mode == "align_corners" and size_out > 1:
        over, under = at * (size_in - 1), size_out - 1
    if mode == "half_pixel":
        over, under = (2 * at + 1) * size_in - size_out, 2 * size_out
    return (2048 * over + under) // (2 * under)


def _cut(x: Array, divisor: int) -> Array:
    """x / divisor, cut toward zero as C does."""
    return np.asarray(np.sign(x) * (np.abs(x) // divisor))
