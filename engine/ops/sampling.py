"""Ops that read images between their pixels: grid_sample, roi_align, affine_grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import UNKNOWN, Value
from trireme.ir.op import Attr, Sample, define
from trireme.ops.bounds import check_range
from trireme.ops.movement import draw, ints
from trireme.ops.resize import cubic_kernel
from trireme.ops.shapes import Shape, Types, expect, expect_dims, expect_rank, ints_of, one, to_ints
from trireme.support.dtypes import BOOL, FLOATING, INDICES, REALS, Array
from trireme.support.errors import RunError, ShapeError
from trireme.support.limits import MOST_SAMPLES


def _reflect(places: Array, size: int, align_corners: bool) -> Array:
    """Return places mirrored at the border pixels' centres, or at their outer edges."""
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    span = high - low
    if span == 0:
        return np.zeros_like(places)
    away = np.abs(places - low) % (2 * span)
    return np.minimum(away, 2 * span - away) + low


def interpolate(
    x: Array,
    where: Sequence[Array],
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
) -> Array:
    """Return x [N,*S,C] at fractional places, one array [N,*OS] an axis of S, as [N,*OS,C].

    Outside x there are zeros, the border pixels, or x's reflection.
    """
    wide, batch = x.astype(np.float64), np.arange(x.shape[0])
    batch = batch.reshape(-1, *[1] * (where[0].ndim - 1))
    clean = [np.nan_to_num(w, nan=-1e6, posinf=1e6, neginf=-1e6) for w in where]
    base = [np.rint(w) if mode == "nearest" else np.floor(w) for w in clean]
    reach = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]
    total = np.zeros((*where[0].shape, x.shape[-1]))
    for steps in itertools.product(reach, repeat=len(where)):
        weight, index = np.ones(where[0].shape), [batch]
        for place, low, step, size in zip(clean, base, steps, x.shape[1:-1], strict=True):
            tap = low + step
            if mode != "nearest":
                distance = place - tap
                near = np.maximum(1 - np.abs(distance), 0)
                weight = weight * (near if mode == "linear" else cubic_kernel(distance, -0.75))
            if padding == "zeros":
                weight = weight * ((tap >= 0) & (tap < size))
            elif padding == "reflection":
                tap = _reflect(tap, size, align_corners)
            index.append(np.clip(np.rint(tap), 0, size - 1).astype(np.int64))
        values = wide[tuple(index)]
        total += np.where(weight[..., None] == 0, 0, values * weight[..., None])
    return total


def expect_pixels(space: Shape) -> None:
    """Raise ShapeError for an image without pixels."""
    if 0 in space:
        raise ShapeError(f"x has spatial dimensions {list(space)}, expected at least one pixel")


def _infer_grid_sample(x: Value, grid: Value, **attrs: object) -> Types:
    rank = len(x.shape) - 2
    if rank < 1:
        raise ShapeError(f"x has rank {rank + 2}, expected 3 or more")
    expect_pixels(x.shape[2:])
    expect_rank("grid", grid, rank + 2)
    expect("the grid's last dimension", grid.shape[-1], rank, "spatial axes of x")
    batch = expect("the grid's batch", grid.shape[0], x.shape[0], "as of x")
    return one((batch, x.shape[1], *grid.shape[1:-1]), x.dtype)


def _grid_sample(
    x: Array, grid: Array, *, align_corners: int, padding_mode: str, mode: str
) -> Array:
    places = []
    for axis, size in enumerate(x.shape[2:]):
        unit = grid[..., x.ndim - 3 - axis].astype(np.float64)
        places.append((unit + 1) / 2 * (size - 1) if align_corners else ((unit + 1) * size - 1) / 2)
    last = np.moveaxis(x, 1, -1)
    y = interpolate(last, places, mode, padding_mode, bool(align_corners))
    return np.ascontiguousarray(np.moveaxis(y, -1, 1)).astype(x.dtype)


def _grid_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x, grid = draw(rng, 2, 3, 5, 7), draw(rng, 2, 4, 3, 2)
    for mode, padding, align in itertools.product(
        ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
    ):
        attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
        yield Sample((x, grid), attrs, note=f"{mode} {padding} {align}")
    yield Sample((draw(rng, 1, 2, 3, 4, 5), draw(rng, 1, 2, 2, 2, 3)), note="volume")


define(
    "grid_sample",
    "x grid",
    "y = x at the places of grid, where -1 and 1 are the ends of each axis, x's last axis "
    "first. Shapes: x [N,C,D1..Dr], grid [N,O1..Or,r] -> y [N,C,O1..Or]. "
    "Source: ONNX GridSample-22",
    _infer_grid_sample,
    _grid_sample,
    family="image",
    rtol=2e-5,
    samples=_grid_samples,
    flops=lambda call: 30 * call.outputs[0].elements,
    attrs={
        "align_corners": Attr("int", 0),
        "padding_mode": Attr("str", "zeros", ("zeros", "border", "reflection")),
        "mode": Attr("str", "linear", ("linear", "nearest", "cubic")),
    },
    dtypes=(REALS | BOOL, FLOATING),
)


def _infer_roi_align(
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    output_height: int,
    output_width: int,
    **attrs: object,
) -> Types:
    expect_rank("x", x, 4)
    expect_rank("rois", rois, 2)
    expect("the length of rois", rois.shape[1], 4)
    expect_pixels(x.shape[2:])
    expect_dims("batch_indices", batch_indices, rois.shape[0])
    return one((rois.shape[0], x.shape[1], output_height, output_width), x.dtype)


def _edge_places(start: float, each: float, count: int, points: int) -> Array:
    """Return where a region's bins are sampled along one axis, [count * points]."""
    return start + (np.arange(count * points) + 0.5) * each / points


def _roi_axis(places: Array, size: int) -> tuple[Array, Array, Array, Array]:
    """Return low and high pixels, the high one's weight, and whether a place is on the image."""
    inside = (places >= -1) & (places <= size)
    clamped = np.clip(places, 0, size - 1)
    low = np.floor(clamped).astype(np.int64)
    return low, np.minimum(low + 1, size - 1), clamped - low, inside


def _roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
) -> Array:
    check_range("batch index", batch_indices, 0, x.shape[0] - 1)
    if not np.isfinite(rois).all():
        raise RunError("a region has a corner that is not finite")
    outputs, half = [], coordinate_transformation_mode == "half_pixel"
    for roi, batch in zip(rois.astype(np.float64), batch_indices, strict=True):
        left, top, right, bottom = roi * spatial_scale - (0.5 if half else 0)
        sizes = [bottom - top, right - left]
        if not half:
            sizes = [max(size, 1.0) for size in sizes]
        counts, parts = (output_height, output_width), []
        points = [
            sampling_ratio or max(math.ceil(s / n), 0) for s, n in zip(sizes, counts, strict=True)
        ]
        if 0 in points:  # a region without an area has no samples
            outputs.append(np.zeros((x.shape[1], output_height, output_width)))
            continue
        samples = x.shape[1] * math.prod(c * p for c, p in zip(counts, points, strict=True))
        if samples > MOST_SAMPLES:
            raise RunError(f"a region takes {samples} samples, the limit is {MOST_SAMPLES}")
        for start, size, count, each, length in zip(
            (top, left), sizes, counts, points, x.shape[2:], strict=True
        ):
            parts.append(_roi_axis(_edge_places(start, size / count, count, each), length))
        (y0, y1, v, on_y), (x0, x1, u, on_x) = parts
        image, on = x[batch].astype(np.float64), on_y[:, None] & on_x
        v, u = v[:, None], u[None, :]
        corners = np.stack(
            [
                image[:, y0][:, :, x0] * (1 - v) * (1 - u),
                image[:, y0][:, :, x1] * (1 - v) * u,
                image[:, y1][:, :, x0] * v * (1 - u),
                image[:, y1][:, :, x1] * v * u,
            ]
        )
        sampled = np.where(on, corners.sum(0) if mode == "avg" else corners.max(0), 0)
        bins = sampled.reshape(-1, output_height, points[0], output_width, points[1])
        outputs.append(bins.mean((2, 4)) if mode == "avg" else bins.max((2, 4)))
    shape = (0, x.shape[1], output_height, output_width)
    return np.stack(outputs).astype(x.dtype) if outputs else np.zeros(shape, x.dtype)


def _roi_samples(rng: np.random.Generator) -> Iterable[Sample]:
    rois = np.array([[0, 0, 5, 5], [1.5, 2, 9, 6], [-2, 3, 3, 12], [4, 4, 4, 6]], np.float32)
    inputs = (draw(rng, 2, 3, 10, 8), rois, ints(0, 1, 0, 1))
    for transform in ("half_pixel", "output_half_pixel"):
        attrs = {"coordinate_transformation_mode": transform, "output_height": 3}
        yield Sample(inputs, {**attrs, "output_width": 2, "sampling_ratio": 2}, note=transform)
        yield Sample(inputs, {**attrs, "spatial_scale": 0.5}, note=f"{transform}, adaptive")


define(
    "roi_align",
    "x rois batch_indices",
    "y = the mean (or max) of points sampled linearly in each bin of each region. Shapes: "
    "x [N,C,H,W], rois [R,4] as x1,y1,x2,y2, batch_indices [R] -> y [R,C,OH,OW]. "
    "Source: ONNX RoiAlign-22",
    _infer_roi_align,
    _roi_align,
    family="image",
    rtol=1e-5,
    samples=_roi_samples,
    flops=lambda call: 40 * call.outputs[0].elements,
    attrs={
        "coordinate_transformation_mode": Attr(
            "str", "half_pixel", ("half_pixel", "output_half_pixel")
        ),
        "mode": Attr("str", "avg", ("avg", "max")),
        "output_height": Attr("int", 1),
        "output_width": Attr("int", 1),
        "sampling_ratio": Attr("int", 0),
        "spatial_scale": Attr("float", 1.0),
    },
    dtypes=(FLOATING, Like("x"), INDICES),
)


def _infer_affine_grid(theta: Value, size: Value, *, align_corners: int) -> Types:
    expect_rank("theta", theta, 3)
    rank = theta.shape[1]
    if rank not in (2, 3):
        raise ShapeError(f"theta is {theta.type}, expected [N,2,3] or [N,3,4]")
    expect("columns of theta", theta.shape[2], int(rank) + 1)
    expect_dims("size", size, int(rank) + 2)
    known = ints_of(size)
    space = (UNKNOWN,) * int(rank) if known is None else known[2:]
    return one((theta.shape[0], *space, rank), theta.dtype)


def _affine_grid(theta: Array, size: Array, *, align_corners: int) -> Array:
    space = to_ints(size)[2:]
    axes = []
    for count in space:
        steps = np.arange(count, dtype=np.float64)
        even = steps / max(count - 1, 1) * 2 - 1 if align_corners else (steps + 0.5) / count * 2 - 1
        axes.append(even)
    grid = np.meshgrid(*axes, indexing="ij")
    places = np.stack([*reversed(grid), np.ones(space)], axis=-1)
    moved = np.asarray(np.einsum("...k,nik->n...i", places, theta.astype(np.float64)))
    return moved.astype(theta.dtype)


define(
    "affine_grid",
    "theta size",
    "y = theta applied to the places of an image of `size`, -1 and 1 being its ends, for "
    "grid_sample. Shapes: theta [N,r,r+1], size [r+2] -> y [N,D1..Dr,r]. "
    "Source: ONNX AffineGrid-20",
    _infer_affine_grid,
    _affine_grid,
    attrs={"align_corners": Attr("int", 0)},
    family="image",
    flops=lambda call: 8 * call.outputs[0].elements,
    rtol=1e-5,
    samples=lambda rng: [
        Sample((draw(rng, 2, 2, 3), ints(2, 3, 4, 5)), {"align_corners": align}, frozenset({1}))
        for align in (0, 1)
    ],
    dtypes=(FLOATING, INDICES),
)
