"""resize, with all of ONNX Resize-19, which includes TFLite's conventions.

Each axis is a list of taps: the input positions of every output position, and their weights.
TFLite's align_corners is align_corners, half_pixel_centers is half_pixel (nearest:
round_prefer_ceil), and neither is asymmetric (nearest: floor).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from trireme.ir.dims import floor_divide, multiply
from trireme.ir.graph import UNKNOWN, Dim, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops import quantized
from trireme.ops.movement import draw, ints
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import Types, axes_of, dims_of, one, to_ints
from trireme.support.dtypes import BOOL, FLOATING, INDICES, REALS, Array
from trireme.support.errors import ShapeError

Ints = tuple[int, ...]
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
_NOISE = 1e-5
"""An interpolated integer this close to a whole number is that number: the rest is rounding."""
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


class AxisPlan(NamedTuple):
    """One resized axis: its input and output size, scale and region of interest.

    A given scale is float32, and its coordinates are computed in float32. There 1/3 is rounded up;
    in float64, position 1 would lie just before input 3. The ratio of two sizes is float64.
    """

    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0
    dtype: str = "float64"


def plan_axes(
    shape: Ints, scales: tuple[float, ...] | None, sizes: Ints | None, axes: Ints, policy: str
) -> dict[int, AxisPlan]:
    """Return the plan of each axis in `axes`, from scales or from sizes."""
    count = len(scales if scales is not None else sizes or ())
    if count != len(axes):
        raise ShapeError(f"scales or sizes have {count} entries, expected {len(axes)}")
    if scales is not None:
        return {
            axis: AxisPlan(shape[axis], _scaled(shape[axis], scale), scale, dtype="float32")
            for axis, scale in zip(axes, scales, strict=True)
        }
    wanted = dict(zip(axes, sizes or (), strict=True))
    ratios = {axis: wanted[axis] / shape[axis] for axis in axes}
    if policy == "stretch":
        return {axis: AxisPlan(shape[axis], wanted[axis], ratios[axis]) for axis in axes}
    ratio = (min if policy == "not_larger" else max)(ratios.values())
    return {
        axis: AxisPlan(shape[axis], math.floor(shape[axis] * ratio + 0.5), ratio) for axis in axes
    }


def _scaled_symbol(dim: str, scale: float) -> Dim:
    """Return a symbol times a scale that is a whole number or one over one, as float32 rounds."""
    if scale >= 1:
        return multiply(dim, int(scale)) if scale == int(scale) else UNKNOWN
    share = 1 / scale if scale > 0 else 0.0
    exact = share == int(share) and int(share) & (int(share) - 1) == 0
    return floor_divide(dim, int(share)) if share and exact else UNKNOWN


def _scaled(size: int, scale: float) -> int:
    """Return the size that float32 arithmetic gives."""
    with np.errstate(over="ignore"):
        wide = float(np.float32(size) * np.float32(scale))
    if not math.isfinite(wide):
        raise ShapeError(f"scale {scale:g} of {size} elements")
    return math.floor(wide)


def coordinates(plan: AxisPlan, transform: str) -> Array:
    """Return where each output position lies on the input axis. Source: ONNX Resize-19"""
    size, out, scale, start, end, dtype = plan
    x: Array = np.arange(plan.out).astype(dtype)
    if transform == "align_corners":
        return x * (size - 1) / (out - 1) if out > 1 else x * 0
    if transform == "asymmetric":
        return x / scale
    if transform == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if transform == "tf_crop_and_resize":
        if out == 1:
            return x + 0.5 * (start + end) * (size - 1)
        return start * (size - 1) + x * (end - start) * (size - 1) / (out - 1)
    if transform == "pytorch_half_pixel" and out == 1:
        return x * 0
    half = (x + 0.5) / scale - 0.5
    if transform == "half_pixel_symmetric":
        half = half + size / 2 * (1 - out / (scale * size))
    return half


def _nearest(where: Array, rounding: str) -> Array:
    if rounding == "floor":
        return np.floor(where)
    if rounding == "ceil":
        return np.ceil(where)
    if rounding == "round_prefer_floor":
        return np.ceil(where - 0.5)
    return np.floor(where + 0.5)


def cubic_kernel(distance: Array, a: float) -> Array:
    """Return Keys' cubic convolution kernel at |distance| <= 2."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def taps(
    plan: AxisPlan,
    *,
    mode: str,
    transform: str,
    rounding: str,
    cubic_a: float,
    exclude: bool,
    antialias: bool,
) -> tuple[Array, Array, Array]:
    """Return indices [out,taps], weights [out,taps] and which positions lie outside the input.

    Taps of one input position give exactly its value, as in ONNX Runtime: t * a + (1 - t) * a may
    be one unit off. The weights are 0.5, for 0 * inf is not a number; where an axis is copied they
    stay 1 and 0, and kernels leave the second tap out.
    """
    where = coordinates(plan, transform).astype(np.float64)
    outside = (where < 0) | (where > plan.size - 1)
    if mode == "nearest":
        picks = np.clip(_nearest(where, rounding), 0, plan.size - 1).astype(np.int64)
        return picks[:, None], np.ones((plan.out, 1)), outside
    squeeze = min(plan.scale, 1.0) if antialias else 1.0
    support = 2 if mode == "cubic" else 1
    base = np.floor(where)
    first = math.floor(-support / squeeze) + 1
    places = base[:, None] + np.arange(first, 2 - first)
    distance = (places - where[:, None]) * squeeze
    if mode == "cubic":
        weights = cubic_kernel(distance, cubic_a)
    else:
        weights = np.maximum(1 - np.abs(distance), 0)
    if exclude:
        weights = np.where((places < 0) | (places >= plan.size), 0, weights)
    if exclude or antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    picks = np.clip(places, 0, plan.size - 1).astype(np.int64)
    if plan.size == 1:
        return picks[:, :1], np.ones((plan.out, 1)), outside
    if picks.shape[1] == 2 and weights[:, 1].any():
        weights[picks[:, 0] == picks[:, 1]] = 0.5
    return picks, weights, outside


def _resize_axis(x: Array, axis: int, picks: Array, weights: Array) -> Array:
    along = [1] * x.ndim
    along[axis] = -1
    if weights.shape[1] == 1:
        return x.take(picks[:, 0], axis=axis)
    wide = x.astype(np.float64)
    parts = [
        wide.take(picks[:, i], axis=axis) * weights[:, i].reshape(along)
        for i in range(weights.shape[1])
    ]
    return np.asarray(sum(parts[1:], start=parts[0]))


def _resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    mode: str,
    coordinate_transformation_mode: str,
    nearest_mode: str,
    cubic_coeff_a: float,
    exclude_outside: int,
    extrapolation_value: float,
    antialias: int,
    axes: Ints | None,
    keep_aspect_ratio_policy: str,
) -> Array:
    plans = _plans(x.shape, roi, scales, sizes, axes, keep_aspect_ratio_policy)
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    y, blank = x, np.zeros((1,) * x.ndim, bool)
    for axis, plan in plans.items():
        picks, weights, outside = taps(
            plan,
            mode=mode,
            transform=coordinate_transformation_mode,
            rounding=nearest_mode,
            cubic_a=cubic_coeff_a,
            exclude=bool(exclude_outside),
            antialias=bool(antialias),
        )
        if plan.out == plan.size and plan.scale == 1 and not crop:
            continue
        y = _resize_axis(y, axis, picks, weights)
        blank = blank | outside.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    if crop:
        y = np.where(blank, extrapolation_value, y)
    if x.dtype.kind in "iu" and mode != "nearest":
        info = np.iinfo(x.dtype)
        whole = np.rint(y)
        cut = np.where(np.abs(y - whole) < _NOISE, whole, np.trunc(y))
        y = np.clip(cut, info.min, info.max)
    return y.astype(x.dtype)


def _plans(
    shape: Ints,
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
    axes: Ints | None,
    policy: str,
) -> dict[int, AxisPlan]:
    where = tuple(range(len(shape))) if axes is None else axes_of(axes, len(shape))
    use_scales = scales is not None and scales.size > 0
    plans = plan_axes(
        shape,
        tuple(float(s) for s in scales.reshape(-1)) if scales is not None and use_scales else None,
        None if sizes is None or use_scales else to_ints(sizes),
        where,
        policy,
    )
    if roi is None or not roi.size:
        return plans
    ends = roi.reshape(2, -1).astype(np.float64)
    return {
        axis: plans[axis]._replace(start=float(ends[0, i]), end=float(ends[1, i]))
        for i, axis in enumerate(where)
    }


def _infer_resize(
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
    *,
    axes: Ints | None,
    keep_aspect_ratio_policy: str,
    **attrs: object,
) -> Types:
    where = tuple(range(len(x.shape))) if axes is None else axes_of(axes, len(x.shape))
    shape: list[Dim] = list(x.shape)
    use_scales = scales is not None and scales.shape != (0,)
    given = scales if use_scales else sizes
    if given is None:
        raise ShapeError("neither scales nor sizes is given")
    known = given.data is not None and given.data.dtype != object
    if not use_scales and any(shape[axis] == 0 for axis in where):
        raise ShapeError("an axis of length 0 cannot be resized")
    if known and all(isinstance(shape[axis], int) for axis in where):
        fixed = tuple(dim if isinstance(dim, int) else 1 for dim in shape)
        plans = _plans(
            fixed,
            None,
            scales.data if scales is not None and use_scales else None,
            sizes.data if sizes is not None else None,
            axes,
            keep_aspect_ratio_policy,
        )
        for axis, plan in plans.items():
            shape[axis] = plan.out
        return one(shape, x.dtype)
    wanted = dims_of(sizes) if not use_scales and keep_aspect_ratio_policy == "stretch" else None
    factors = given.data.reshape(-1) if use_scales and given.data is not None else None
    for i, axis in enumerate(where):
        dim = shape[axis]
        if wanted is not None:
            shape[axis] = wanted[i]
        elif factors is None or isinstance(factors[i], str):
            shape[axis] = UNKNOWN
        elif isinstance(dim, str):
            shape[axis] = _scaled_symbol(dim, float(factors[i]))
        else:
            shape[axis] = _scaled(dim, float(factors[i]))
    return one(shape, x.dtype)


def _flops(call: Call) -> int:
    each = {"nearest": 0, "linear": 8, "cubic": 32}[call.attrs["mode"]]
    return each * call.outputs[0].elements


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    fixed = frozenset({1, 2, 3})
    x = draw(rng, 1, 5, 7, 3)

    def to(h: int, w: int, mode: str, transform: str, note: str = "", **attrs: object) -> Sample:
        full = {"mode": mode, "coordinate_transformation_mode": transform, "axes": (1, 2), **attrs}
        return Sample((x, None, None, ints(h, w)), full, fixed, note=note or f"{mode} {transform}")

    for transform in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
        yield to(10, 14, "linear", transform)
        yield to(3, 11, "linear", transform)
    for rounding in ROUNDINGS:
        yield to(10, 21, "nearest", "asymmetric", nearest_mode=rounding)
        yield to(8, 3, "nearest", "half_pixel", nearest_mode=rounding)
    yield to(9, 14, "cubic", "half_pixel")
    yield to(9, 14, "cubic", "half_pixel", "Catmull-Rom", cubic_coeff_a=-0.5, exclude_outside=1)
    yield to(5, 7, "linear", "half_pixel", "same size")
    yield to(1, 1, "linear", "align_corners", "one pixel")
    scales = np.array([1, 2, 2, 1], np.float32)
    plain = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    yield Sample((x, None, scales), {**plain, "nearest_mode": "floor"}, fixed, note="2x nearest")


define(
    "resize",
    "x roi? scales? sizes?",
    "y = x sampled at other sizes along `axes`: nearest, linear or cubic (Keys, with "
    "cubic_coeff_a), antialiased when asked. Source: ONNX Resize-19",
    _infer_resize,
    _resize,
    flops=_flops,
    family="image",
    rtol=1e-5,
    samples=with_quantized("resize", _samples),
    quantized=quantized.resize,
    integer_form="same",
    attrs={
        "mode": Attr("str", "nearest", ("nearest", "linear", "cubic")),
        "coordinate_transformation_mode": Attr("str", "half_pixel", COORDINATES),
        "nearest_mode": Attr("str", "round_prefer_floor", ROUNDINGS),
        "cubic_coeff_a": Attr("float", -0.75),
        "exclude_outside": Attr("int", 0),
        "extrapolation_value": Attr("float", 0.0, finite=False),
        "antialias": Attr("int", 0),
        "axes": Attr("ints", None),
        "keep_aspect_ratio_policy": Attr(
            "str", "stretch", ("stretch", "not_larger", "not_smaller")
        ),
    },
    dtypes=(REALS | BOOL, FLOATING, FLOATING, INDICES),
)
