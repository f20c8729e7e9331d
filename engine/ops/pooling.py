"""Pooling: max_pool (with indices), average_pool, lp_pool, in either layout, any spatial rank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from trireme.ir.graph import TensorType, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops import axis_maps, quantized
from trireme.ops.activation import ACTIVATION, activate
from trireme.ops.layouts import (
    LAYOUT,
    channels,
    channels_last,
    from_channels_last,
    image_shape,
    spatial,
)
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import Types, cropped_kernel, spatial_attrs, windows
from trireme.support.dtypes import FLOATING, REALS, Array
from trireme.support.errors import ShapeError

Ints = tuple[int, ...]
_WINDOW = {
    "kernel": Attr("ints"),
    "strides": Attr("ints"),
    "pads": Attr("ints"),
    "dilations": Attr("ints"),
    "ceil_mode": Attr("int", 0),
    "layout": LAYOUT,
    "activation": ACTIVATION,
}


def _infer(
    x: Value,
    *,
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    ceil_mode: int,
    layout: str,
    **attrs: object,
) -> Types:
    rank = len(x.shape) - 2
    if rank < 1:
        raise ShapeError(f"x has rank {rank + 2}, expected 3 or more")
    spatial_attrs(rank, kernel=kernel, strides=strides, pads=pads, dilations=dilations)
    space = tuple(
        windows(
            size, kernel[i], strides[i], (pads[i], pads[i + rank]), dilations[i], bool(ceil_mode)
        )
        for i, size in enumerate(spatial(x.shape, layout))
    )
    shape = image_shape(x.shape[0], space, channels(x.shape, layout), layout)
    return (TensorType(shape, x.dtype), TensorType(shape, "int64"))


def pool_windows(
    x: Array,
    fill: float,
    *,
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    ceil_mode: int,
) -> Array:
    """Return the windows of x [N,*S,C], filled where they leave it, as [prod(taps),N,*OS,C].

    The taps of an axis are the kernel's elements, but for those that lie beyond the pads.
    """
    rank = len(kernel)
    counts, after = [], []
    taps = cropped(x.shape[1:-1], kernel, pads, dilations)
    for i, size in enumerate(x.shape[1:-1]):
        count = windows(
            size, kernel[i], strides[i], (pads[i], pads[i + rank]), dilations[i], bool(ceil_mode)
        )
        counts.append(int(count))
        reach = (counts[-1] - 1) * strides[i] + dilations[i] * (taps[i] - 1) + 1
        after.append(max(pads[i + rank], reach - size - pads[i]))
    edges = [(0, 0), *zip(pads[:rank], after, strict=True), (0, 0)]
    padded = np.pad(x, edges, constant_values=fill)
    parts = []
    for position in itertools.product(*map(range, taps)):
        cuts = tuple(
            slice(p * d, p * d + (count - 1) * stride + 1, stride)
            for p, d, count, stride in zip(position, dilations, counts, strides, strict=True)
        )
        parts.append(padded[(slice(None), *cuts)])
    return np.stack(parts)


def cropped(space: Ints, kernel: Ints, pads: Ints, dilations: Ints) -> Ints:
    """Return the kernel without the elements that lie beyond the pads in every window."""
    sides = zip(pads[: len(space)], pads[len(space) :], strict=True)
    axes = zip(space, kernel, sides, dilations, strict=True)
    return tuple(cropped_kernel(*axis) for axis in axes)


def _lowest(dtype: np.dtype[Any]) -> float:
    return -np.inf if dtype.kind not in "iu" else int(np.iinfo(dtype).min)


def _max_pool(
    x: Array, *, layout: str, activation: str, storage_order: int, **window: object
) -> tuple[Array, Array]:
    image = channels_last(x, layout)
    parts = pool_windows(image, _lowest(x.dtype), **window)  # type: ignore[arg-type]
    y = activate(activation, parts.max(axis=0))
    where = _positions(image.shape, layout, storage_order)
    places = pool_windows(where, -1, **window)  # type: ignore[arg-type]
    best = np.where(places < 0, False, (parts == parts.max(axis=0)) | (parts != parts))
    chosen = np.take_along_axis(places, best.argmax(axis=0)[None], axis=0)[0]
    return from_channels_last(y, layout), from_channels_last(chosen, layout)


def _positions(shape: Ints, layout: str, storage_order: int) -> Array:
    """Return, for every element of an image [N,*S,C], its index in the whole tensor's memory.

    The index counts in the given layout. With storage_order 1 the first spatial axis is the
    fastest.
    Source: ONNX MaxPool-22
    """
    batch, *space, depth = shape
    order = list(reversed(range(len(space)))) if storage_order else list(range(len(space)))
    inner = np.zeros(space, np.int64)
    for axis in order:
        steps = np.arange(space[axis]).reshape([-1 if i == axis else 1 for i in range(len(space))])
        inner = inner * space[axis] + steps
    area = math.prod(space)
    n = np.arange(batch).reshape(-1, *(1 for _ in space), 1)
    c = np.arange(depth)
    if layout == "NCHW":
        return np.asarray((n * depth + c) * area + inner[None, ..., None])
    return np.asarray((n * area + inner[None, ..., None]) * depth + c)


def _average_pool(
    x: Array, *, layout: str, activation: str, count_include_pad: int, **window: object
) -> Array:
    """Return the means. A window around x without elements of x gives 0, as in ONNX Runtime.

    A window beside x gives NaN, as in ONNX Runtime; that takes pads as wide as the window.
    """
    image = channels_last(x, layout).astype(np.float64)
    sums = pool_windows(image, 0, **window).sum(axis=0)  # type: ignore[arg-type]
    counts = _counts(image.shape[1:-1], bool(count_include_pad), **window)  # type: ignore[arg-type]
    y = (sums / np.maximum(counts, 1)[None, ..., None]).astype(x.dtype)
    return activate(activation, from_channels_last(y, layout))


def _counts(
    space: Ints,
    with_pads: bool,
    *,
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    ceil_mode: int,
) -> Array:
    """Return how many elements each window averages; elements added by ceil_mode never count."""
    total = np.ones(())
    taps = cropped(space, kernel, pads, dilations)
    for i, size in enumerate(space):
        before, after = pads[i], pads[i + len(space)]
        count = windows(size, kernel[i], strides[i], (before, after), dilations[i], bool(ceil_mode))
        places = np.arange(int(count))[:, None] * strides[i] + np.arange(taps[i]) * dilations[i]
        low, high = (0, before + size + after) if with_pads else (before, before + size)
        total = total[..., None] * ((places >= low) & (places < high)).sum(axis=1)
    return total


def _lp_pool(x: Array, *, layout: str, activation: str, p: int, **window: object) -> Array:
    image = np.abs(channels_last(x, layout).astype(np.float64)) ** p
    sums = pool_windows(image, 0, **window).sum(axis=0)  # type: ignore[arg-type]
    y = (sums ** (1 / p)).astype(x.dtype)
    return activate(activation, from_channels_last(y, layout))


def _flops(call: Call) -> int:
    kernel: Ints = call.attrs["kernel"]
    return call.outputs[0].elements * math.prod(kernel)


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    def sample(note: str, shape: Ints, kernel: Ints, **attrs: object) -> Sample:
        x = rng.standard_normal(shape).astype(np.float32)
        rank = len(kernel)
        plain = {"strides": (1,) * rank, "pads": (0,) * 2 * rank, "dilations": (1,) * rank}
        return Sample((x,), {"kernel": kernel, **plain, **attrs}, note=note)

    yield sample("2x2, stride 2", (1, 8, 8, 16), (2, 2), strides=(2, 2))
    yield sample("odd", (2, 7, 9, 19), (3, 3), strides=(2, 2), pads=(0, 1, 1, 1))
    yield sample("same", (1, 5, 6, 3), (3, 3), pads=(1, 1, 1, 1), activation="relu")
    yield sample("ceil", (1, 7, 8, 3), (3, 2), strides=(2, 3), ceil_mode=1)
    yield sample("3x1, uneven", (1, 6, 5, 4), (3, 1), strides=(1, 2), pads=(2, 0, 0, 0))
    yield sample("whole image", (2, 5, 7, 9), (5, 7))
    yield sample("one axis", (1, 9, 3), (3,), strides=(2,))
    yield sample("NCHW", (1, 3, 6, 7), (3, 2), strides=(2, 2), layout="NCHW")
    yield sample("dilated in height", (1, 7, 6, 4), (2, 3), dilations=(2, 1))
    broken = sample("NaN, infinities", (1, 6, 6, 2), (2, 2), strides=(2, 2))
    image = broken.inputs[0]
    if image is not None:
        image[0, 0, 0, 0], image[0, 2, 2, 0], image[0, 5, 5, 1] = np.nan, np.inf, -np.inf
    yield broken


def _max_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from _samples(rng)
    x = rng.standard_normal((1, 9, 8, 5)).astype(np.float32)
    attrs = {"kernel": (3, 3), "strides": (1, 2), "pads": (1, 1, 1, 1), "dilations": (2, 2)}
    yield Sample((x,), attrs, note="dilated")


def _lp_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from _samples(rng)
    attrs = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "p": 3}
    yield Sample((rng.standard_normal((1, 3, 4, 2)).astype(np.float32),), attrs, note="p = 3")


def _average_samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield from _samples(rng)
    x = rng.standard_normal((1, 5, 6, 5)).astype(np.float32)
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    yield Sample((x,), {**attrs, "count_include_pad": 1}, note="pads count")
    x = rng.standard_normal((1, 1, 4, 5)).astype(np.float32)
    attrs = {"kernel": (2, 1), "strides": (1, 1), "pads": (1, 0, 1, 0), "dilations": (2, 1)}
    yield Sample((x,), attrs, note="around the image")


define(
    "max_pool",
    "x",
    "y = the greatest element of each window; indices are places in the tensor of that layout. "
    "Shapes: x [N,H,W,C] (or NCHW) -> y, indices [N,OH,OW,C]. Source: ONNX MaxPool-22",
    _infer,
    _max_pool,
    outputs="y indices?",
    flops=_flops,
    attrs={**_WINDOW, "storage_order": Attr("int", 0)},
    family="pool",
    samples=with_quantized("max_pool", _max_samples),
    quantized=quantized.max_pool,
    windows=True,
    axis_map=axis_maps.greatest,
    layout_inputs=(0,),
    integer_form="same",
    dtypes=(REALS,),
)
define(
    "average_pool",
    "x",
    "y = the mean of each window, over the elements inside x (0 of none), or with the pads "
    "when count_include_pad. Shapes: x [N,H,W,C] (or NCHW) -> y [N,OH,OW,C]. "
    "Source: ONNX AveragePool-22",
    lambda x, **attrs: _infer(x, **attrs)[:1],
    _average_pool,
    flops=_flops,
    attrs={**_WINDOW, "count_include_pad": Attr("int", 0)},
    samples=with_quantized("average_pool", _average_samples),
    quantized=quantized.average_pool,
    windows=True,
    axis_map=axis_maps.averaged,
    layout_inputs=(0,),
    integer_form="same",
    family="pool",
    rtol=2e-6,
    dtypes=(FLOATING,),
)
define(
    "lp_pool",
    "x",
    "y = (sum of |x|^p over each window)^(1/p). Source: ONNX LpPool-22",
    lambda x, **attrs: _infer(x, **attrs)[:1],
    _lp_pool,
    flops=_flops,
    attrs={**_WINDOW, "p": Attr("int", 2, least=1)},
    samples=_lp_samples,
    windows=True,
    layout_inputs=(0,),
    family="pool",
    rtol=4e-6,
    dtypes=(FLOATING,),
)
