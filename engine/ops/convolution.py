"""Convolutions of any spatial rank, in either layout.

A convolution is a sum over the kernel's positions of a shifted input times that position's weights,
in double precision, which is exact for 8-bit integers too. A depthwise conv has groups == C.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from trireme.ir.dtype_rules import BIAS, WEIGHT, Like
from trireme.ir.graph import Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops import axis_maps, quantized
from trireme.ops.activation import ACTIVATION, ACTIVATIONS, activate
from trireme.ops.layouts import (
    LAYOUT,
    channels,
    channels_last,
    from_channels_last,
    image_shape,
    spatial,
)
from trireme.ops.quantized_samples import with_quantized
from trireme.ops.shapes import (
    Types,
    dtype_of_sums,
    expect,
    known_dims,
    one,
    spatial_attrs,
    windows,
)
from trireme.support.dtypes import REALS, Array
from trireme.support.errors import ShapeError

Ints = tuple[int, ...]
Index = tuple[slice | int, ...]


def _placed(
    x: Array, strides: Ints, pads: Ints, dilations: Ints, kernel: Ints
) -> Iterator[tuple[Ints, Array]]:
    """Yield each kernel position with the part of x [N,*S,C] that it meets, [N,*OS,C]."""
    rank = len(kernel)
    padded = np.pad(x, [(0, 0), *zip(pads[:rank], pads[rank:], strict=True), (0, 0)])
    counts = [
        (size - dilation * (k - 1) - 1) // stride + 1
        for size, k, stride, dilation in zip(
            padded.shape[1:-1], kernel, strides, dilations, strict=True
        )
    ]
    for position in itertools.product(*map(range, kernel)):
        starts = [p * dilation for p, dilation in zip(position, dilations, strict=True)]
        cuts = tuple(
            slice(start, start + (count - 1) * stride + 1, stride)
            for start, count, stride in zip(starts, counts, strides, strict=True)
        )
        yield position, padded[(slice(None), *cuts)]


def grouped_product(x: Array, w: Array, groups: int) -> Array:
    """Return x [...,C] times w [O,C/groups], each group of channels with its own rows of w."""
    if groups == 1:
        return np.asarray(x @ w.T)
    depth, each = w.shape[0] // groups, w.shape[1]
    split, rows = x.reshape(*x.shape[:-1], groups, each), w.reshape(groups, depth, each)
    if each == 1:
        return np.asarray(split * rows[:, :, 0]).reshape(*x.shape[:-1], len(w))
    front = np.moveaxis(split, -2, 0).reshape(groups, math.prod(x.shape[:-1]), each)
    out = np.moveaxis(front @ rows.transpose(0, 2, 1), 0, 1)
    return out.reshape(*x.shape[:-1], len(w))


def conv_sum(
    x: Array, w: Array, strides: Ints, pads: Ints, dilations: Ints, groups: int, layout: str
) -> Array:
    """Return the cross-correlation of x with w in double precision, in the same layout.

    Exact for integers as long as sums stay under 2^53. Shapes as for conv.
    """
    x, w = channels_last(x, layout), channels_last(w, layout)
    x, w = x.astype(np.float64), w.astype(np.float64)
    total: Array | None = None
    for position, part in _placed(x, strides, pads, dilations, w.shape[1:-1]):
        index: Index = (slice(None), *position)
        product = grouped_product(part, w[index], groups)
        total = product if total is None else np.add(total, product, out=total)
    if total is None:
        raise ShapeError(f"weight {list(w.shape)} has an empty kernel")
    return from_channels_last(total, layout)


def with_bias(y: Array, bias: Array | None, layout: str) -> Array:
    """Return an image with a bias added to each channel."""
    if bias is None:
        return y
    ones = (1,) * (y.ndim - 2)
    return y + bias.reshape((-1,) if layout == "NHWC" else (-1, *ones))


def _conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    groups: int,
    layout: str,
    activation: str,
) -> Array:
    y = conv_sum(x, w, strides, pads, dilations, groups, layout)
    y = with_bias(y, bias, layout)
    if residual is not None:
        y = y + residual
    return activate(activation, y.astype(x.dtype))


def check_parts(x: Value, w: Value, layout: str, groups: int, **lists: Ints) -> int:
    """Return the spatial rank after checking ranks, attribute lists and groups."""
    rank = len(x.shape) - 2
    if rank < 1 or len(w.shape) != rank + 2:
        raise ShapeError(f"x has rank {rank + 2} and w rank {len(w.shape)}, expected 3 or more")
    spatial_attrs(rank, **lists)
    if groups < 1:
        raise ShapeError(f"groups is {groups}, expected 1 or more")
    return rank


def _infer_conv(
    x: Value,
    w: Value,
    bias: Value | None = None,
    residual: Value | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    groups: int,
    layout: str,
    activation: str,
) -> Types:
    rank = check_parts(x, w, layout, groups, strides=strides, pads=pads, dilations=dilations)
    depth, each = w.shape[0], channels(w.shape, layout)
    if isinstance(depth, int) and depth % groups:
        raise ShapeError(f"{depth} output channels do not divide into {groups} groups")
    if isinstance(each, int):
        order = "OHWI" if layout == "NHWC" else "OIHW"
        expect(
            "the input's channel count",
            channels(x.shape, layout),
            each * groups,
            f"weight {each} x groups {groups}",
            fix=f"weights are {order} for layout {layout}; another order gives this",
        )
    kernel = known_dims("the kernel", spatial(w.shape, layout))
    if not all(kernel):
        raise ShapeError(f"w is {w.type}: the kernel is empty")
    space = tuple(
        windows(size, kernel[i], strides[i], (pads[i], pads[i + rank]), dilations[i])
        for i, size in enumerate(spatial(x.shape, layout))
    )
    shape = image_shape(x.shape[0], space, depth, layout)
    if bias is not None:
        if len(bias.shape) != 1:
            raise ShapeError(f"bias is {bias.type}, expected one dimension")
        expect("the bias' length", bias.shape[0], depth, "output channels")
    if residual is not None:
        if len(residual.shape) != len(shape):
            raise ShapeError(f"residual is {residual.type}, expected rank {len(shape)}")
        for axis, dim in enumerate(shape):
            expect(f"the residual's dimension {axis}", residual.shape[axis], dim)
    return one(shape, dtype_of_sums(x, bias))


def conv_flops(call: Call) -> int:
    """Return the multiply-adds of a conv, times two."""
    each = math.prod(call.type(1).dims[1:])
    return 2 * call.outputs[0].elements * each


WINDOW = {
    "strides": Attr("ints"),
    "pads": Attr("ints"),
    "dilations": Attr("ints"),
    "groups": Attr("int", 1),
    "layout": LAYOUT,
}


_PLAIN: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
_SAME = {"pads": (1, 1, 1, 1)}
_Case = tuple[str, Ints, Ints, dict[str, Any]]
"""The note of a sample, the shapes of x and w, and the attributes that differ from the usual."""
_CASES: tuple[_Case, ...] = (
    ("pointwise, odd channels", (1, 6, 7, 5), (19, 1, 1, 5), {}),
    ("pointwise", (1, 8, 8, 16), (32, 1, 1, 16), {"activation": "relu6"}),
    ("batch 2, same", (2, 9, 7, 3), (8, 3, 3, 3), _SAME),
    (
        "stride 2, uneven pads",
        (1, 9, 8, 3),
        (17, 3, 3, 3),
        {"strides": (2, 2), "pads": (0, 0, 1, 1), "activation": "relu"},
    ),
    ("dilated", (1, 11, 10, 4), (6, 3, 3, 4), {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    ("5x1, strides 1,3, no bias", (1, 7, 7, 4), (3, 5, 1, 4), {"strides": (1, 3)}),
    ("3 groups", (1, 6, 6, 12), (9, 3, 3, 4), {"groups": 3, **_SAME}),
    ("one output pixel", (1, 3, 3, 2), (4, 3, 3, 2), {}),
    ("mostly padding", (1, 4, 4, 2), (4, 5, 5, 2), {"pads": (2, 2, 2, 2)}),
    ("depthwise", (2, 8, 7, 19), (19, 3, 3, 1), {"groups": 19, "activation": "relu6", **_SAME}),
    ("depthwise, stride 2", (1, 9, 9, 8), (8, 3, 3, 1), {"groups": 8, "strides": (2, 2), **_SAME}),
    (
        "depthwise 5x5, dilated",
        (1, 9, 9, 8),
        (8, 5, 5, 1),
        {"groups": 8, "dilations": (2, 2), "pads": (4, 4, 4, 4)},
    ),
    ("depth multiplier 2", (1, 5, 5, 6), (12, 3, 3, 1), {"groups": 6}),
    ("residual", (1, 5, 6, 7), (5, 3, 3, 7), {"activation": "relu", **_SAME}),
    *((name, (1, 4, 5, 3), (5, 1, 1, 3), {"activation": name}) for name in ACTIVATIONS if name),
    ("NaN and infinities", (1, 5, 5, 3), (4, 3, 3, 3), {"activation": "relu"}),
    (
        "one spatial axis",
        (1, 9, 3),
        (4, 3, 3),
        {"strides": (2,), "pads": (1, 1), "dilations": (1,)},
    ),
    (
        "three spatial axes",
        (1, 4, 5, 3, 2),
        (3, 2, 3, 1, 2),
        {"strides": (1, 1, 2), "pads": (0, 1, 0, 0, 1, 0), "dilations": (1, 1, 1)},
    ),
    ("NCHW", (1, 3, 7, 6), (4, 3, 3, 3), {"layout": "NCHW", **_SAME}),
    ("NCHW depthwise", (2, 6, 7, 5), (6, 1, 3, 3), {"layout": "NCHW", "groups": 6, **_SAME}),
)


def conv_samples(rng: np.random.Generator) -> Iterable[Sample]:
    """Yield convs of every kind that devices meet: see the notes."""
    for note, x, w, attrs in _CASES:
        image, weight = (rng.standard_normal(shape).astype(np.float32) for shape in (x, w))
        inputs: list[Array | None] = [image, weight, None]
        if "no bias" not in note:
            inputs[2] = rng.standard_normal(w[0]).astype(np.float32)
        if note == "residual":
            inputs.append(rng.standard_normal((*x[:-1], w[0])).astype(np.float32))
        if note == "NaN and infinities":
            image[0, 0, 0, 0], image[0, 4, 4, 1], image[0, 0, 4, 2] = np.nan, np.inf, -np.inf
        yield Sample(tuple(inputs), {**_PLAIN, **attrs}, frozenset({1, 2}), note=note)


define(
    "conv",
    "x w bias? residual?",
    "y = activation(cross-correlation of x with w + bias + residual). Shapes: NHWC: "
    "x [N,H,W,C], w [O,KH,KW,C/groups], y and residual [N,OH,OW,O]; NCHW: x [N,C,H,W], "
    "w [O,C/groups,KH,KW], y [N,O,OH,OW]; bias [O]; any spatial rank; depthwise when groups "
    "is C. Pads are (top, left, .., bottom, right, ..). Source: ONNX Conv-22",
    _infer_conv,
    _conv,
    attrs={**WINDOW, "activation": ACTIVATION},
    flops=conv_flops,
    samples=with_quantized("conv", conv_samples),
    family="conv",
    rtol=1e-5,
    windows=True,
    axis_map=axis_maps.convolved,
    quantized=quantized.or_floats("conv", quantized.conv, activate),
    layout_inputs=(0, 1, 3),
    integer_form="linear",
    dtypes=(REALS, WEIGHT, BIAS, Like("x")),
)
