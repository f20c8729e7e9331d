"""deform_conv: a convolution with an offset for each kernel position."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops.convolution import Index, grouped_product
from trireme.ops.movement import draw
from trireme.ops.sampling import interpolate
from trireme.ops.shapes import (
    Types,
    expect,
    expect_dims,
    expect_rank,
    known_dims,
    one,
    spatial_attrs,
    window,
    windows,
)
from trireme.support.dtypes import FLOATING, Array
from trireme.support.errors import ShapeError

Ints = tuple[int, ...]


def _infer_deform(
    x: Value,
    w: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    *,
    strides: Ints | None,
    pads: Ints | None,
    dilations: Ints | None,
    group: int,
    offset_group: int,
    kernel_shape: Ints | None,
) -> Types:
    rank = expect_rank("w", w, len(x.shape)) - 2
    steps, edges, spread = window(rank, strides, pads, dilations)
    spatial_attrs(rank, strides=steps, pads=edges, dilations=spread)
    kernel = known_dims("the kernel", w.shape[2:])
    each = w.shape[1]
    if group < 1 or offset_group < 1:
        raise ShapeError(f"group {group} and offset_group {offset_group}, expected 1 or more")
    if isinstance(each, int):
        expect("the input's channel count", x.shape[1], each * group, f"weight {each} x {group}")
    for what, dim, parts in (("output", w.shape[0], group), ("input", x.shape[1], offset_group)):
        if isinstance(dim, int) and dim % parts:
            raise ShapeError(f"{dim} {what} channels do not divide into {parts} groups")
    space = [
        windows(dim, kernel[i], steps[i], (edges[i], edges[i + rank]), spread[i])
        for i, dim in enumerate(x.shape[2:])
    ]
    positions = offset_group * math.prod(kernel)
    expect_dims("offset", offset, x.shape[0], positions * rank, *space)
    expect_dims("mask", mask, x.shape[0], positions, *space)
    expect_dims("bias", bias, w.shape[0])
    return one((x.shape[0], w.shape[0], *space), x.dtype)


def _deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    strides: Ints | None,
    pads: Ints | None,
    dilations: Ints | None,
    group: int,
    offset_group: int,
    kernel_shape: Ints | None,
) -> Array:
    rank, kernel = x.ndim - 2, w.shape[2:]
    steps, edges, spread = window(rank, strides, pads, dilations)
    image, space = np.moveaxis(x, 1, -1), offset.shape[2:]
    grid = np.indices(space).astype(np.float64)
    moves = offset.reshape(x.shape[0], offset_group, math.prod(kernel), rank, *space)
    scale = None if mask is None else mask.reshape(x.shape[0], offset_group, -1, *space)
    each, total = x.shape[1] // offset_group, np.zeros((x.shape[0], *space, w.shape[0]))
    for number, position in enumerate(itertools.product(*map(range, kernel))):
        parts = []
        for g in range(offset_group):
            where = [
                grid[i] * steps[i] - edges[i] + position[i] * spread[i] + moves[:, g, number, i]
                for i in range(rank)
            ]
            part = interpolate(image[..., g * each : (g + 1) * each], where)
            parts.append(part if scale is None else part * scale[:, g, number][..., None])
        index: Index = (slice(None), slice(None), *position)
        rows = w[index].astype(np.float64)
        total += grouped_product(np.concatenate(parts, axis=-1), rows, group)
    total = total if bias is None else total + bias
    return np.ascontiguousarray(np.moveaxis(total, -1, 1)).astype(x.dtype)


def _deform_flops(call: Call) -> int:
    return 2 * call.outputs[0].elements * math.prod(call.type(1).dims[1:])


def _deform_samples(rng: np.random.Generator) -> Iterable[Sample]:
    inputs = [draw(rng, 2, 4, 6, 7), draw(rng, 4, 2, 3, 2), draw(rng, 2, 24, 4, 8), draw(rng, 4)]
    attrs = {"pads": (0, 1, 0, 1), "group": 2, "offset_group": 2}
    yield Sample(tuple(inputs), attrs, frozenset({1, 3}), note="no mask")
    mask = rng.random((2, 12, 4, 8)).astype(np.float32)
    yield Sample((*inputs, mask), attrs, frozenset({1, 3}), note="mask")
    apart = {"strides": (2, 1), "dilations": (1, 2)}
    parts = (draw(rng, 1, 2, 7, 6), draw(rng, 3, 2, 2, 2), draw(rng, 1, 8, 3, 4))
    yield Sample(parts, apart, frozenset({1}), note="strides and dilations")


define(
    "deform_conv",
    "x w offset bias? mask?",
    "conv whose kernel positions are moved by `offset` and scaled by `mask`, x read linearly "
    "between pixels. Shapes: x [N,C,H,W], w [O,C/group,KH,KW], offset "
    "[N,offset_group*KH*KW*2,OH,OW], mask [N,offset_group*KH*KW,OH,OW] -> y [N,O,OH,OW]. "
    "Source: ONNX DeformConv-22",
    _infer_deform,
    _deform_conv,
    flops=_deform_flops,
    family="conv",
    rtol=2e-5,
    samples=_deform_samples,
    attrs={
        "strides": Attr("ints", None),
        "pads": Attr("ints", None),
        "dilations": Attr("ints", None),
        "group": Attr("int", 1),
        "offset_group": Attr("int", 1),
        "kernel_shape": Attr("ints", None),
    },
    dtypes=(FLOATING, Like("x"), Like("x"), Like("x"), Like("x")),
)
