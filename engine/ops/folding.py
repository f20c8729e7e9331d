"""Ops that put parts back into an image: col2im and max_unpool."""

from __future__ import annotations

import itertools
import math

import numpy as np

from trireme.ir.graph import UNKNOWN, Dim, Value
from trireme.ir.op import Attr, Sample
from trireme.ops.bounds import check_range
from trireme.ops.convolution import Index
from trireme.ops.movement import draw, ints, move
from trireme.ops.shapes import (
    Types,
    expect,
    expect_dims,
    expect_rank,
    ints_of,
    known_length,
    one,
    product,
    spatial_attrs,
    to_ints,
    window,
    windows,
)
from trireme.support.dtypes import BOOL, INDICES, NUMBERS, REALS, Array
from trireme.support.errors import ShapeError

Ints = tuple[int, ...]
_WINDOW = {"strides": Attr("ints", None), "pads": Attr("ints", None)}


def _infer_col2im(
    x: Value,
    image_shape: Value,
    block_shape: Value,
    *,
    strides: Ints | None,
    pads: Ints | None,
    dilations: Ints | None,
) -> Types:
    expect_rank("x", x, 3)
    rank = known_length(image_shape, "image_shape")
    expect_dims("block_shape", block_shape, rank)
    steps, edges, spread = window(rank, strides, pads, dilations)
    spatial_attrs(rank, strides=steps, pads=edges, dilations=spread)
    image, block = ints_of(image_shape), ints_of(block_shape)
    depth: Dim = UNKNOWN
    if block is not None and isinstance(x.shape[1], int):
        if min(block, default=0) < 1 or x.shape[1] % math.prod(block):
            raise ShapeError(f"{x.shape[1]} rows do not divide into blocks {block}")
        depth = x.shape[1] // math.prod(block)
    if block is not None and image is not None:
        counts = [
            windows(size, block[i], steps[i], (edges[i], edges[i + rank]), spread[i])
            for i, size in enumerate(image)
        ]
        expect("the count of columns", x.shape[2], product(counts), "as blocks fit the image")
    space = image or (UNKNOWN,) * rank
    return one((x.shape[0], depth, *space), x.dtype)


def _col2im(
    x: Array,
    image_shape: Array,
    block_shape: Array,
    *,
    strides: Ints | None,
    pads: Ints | None,
    dilations: Ints | None,
) -> Array:
    image, block = to_ints(image_shape), to_ints(block_shape)
    rank = len(image)
    steps, edges, spread = window(rank, strides, pads, dilations)
    sizes = [n + edges[i] + edges[i + rank] for i, n in enumerate(image)]
    counts = [
        (size - spread[i] * (block[i] - 1) - 1) // steps[i] + 1 for i, size in enumerate(sizes)
    ]
    depth = x.shape[1] // math.prod(block)
    columns = x.reshape(x.shape[0], depth, *block, *counts)
    whole = np.zeros((x.shape[0], depth, *sizes), x.dtype)
    for position in itertools.product(*map(range, block)):
        cuts = tuple(
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, d, n, s in zip(position, spread, counts, steps, strict=True)
        )
        index: Index = (slice(None), slice(None), *position)
        whole[(slice(None), slice(None), *cuts)] += columns[index]
    inner = tuple(slice(edges[i], edges[i] + n) for i, n in enumerate(image))
    return whole[(slice(None), slice(None), *inner)]


move(
    "col2im",
    "x image_shape block_shape",
    "y = the image whose blocks are x's columns, added where they overlap. Shapes: "
    "x [N,C*prod(block),L] -> y [N,C,*image_shape]. Source: ONNX Col2Im-18",
    _infer_col2im,
    _col2im,
    attrs={**_WINDOW, "dilations": Attr("ints", None)},
    moves=False,
    samples=lambda rng: [
        Sample(
            (draw(rng, 2, 12, 12), ints(5, 4), ints(2, 3)),
            {"pads": (0, 1, 0, 0)},
            frozenset({1, 2}),
        ),
        Sample(
            (draw(rng, 2, 4, 4), ints(5, 4), ints(2, 2)),
            {"strides": (2, 1), "dilations": (1, 2)},
            frozenset({1, 2}),
            note="strides",
        ),
    ],
    dtypes=(NUMBERS | BOOL, INDICES, INDICES),
)


def _unpooled(
    shape: tuple[Dim, ...], kernel: Ints, strides: Ints | None, pads: Ints | None
) -> tuple[Dim, ...]:
    rank = len(kernel)
    steps, edges, _ = window(rank, strides, pads)
    spatial_attrs(rank, kernel=kernel, strides=steps, pads=edges)
    return tuple(
        (dim - 1) * steps[i] + kernel[i] - edges[i] - edges[i + rank]
        if isinstance(dim, int)
        else UNKNOWN
        for i, dim in enumerate(shape[2:])
    )


def _infer_max_unpool(
    x: Value,
    indices: Value,
    output_shape: Value | None = None,
    *,
    kernel_shape: Ints,
    strides: Ints | None,
    pads: Ints | None,
) -> Types:
    if len(x.shape) != len(kernel_shape) + 2:
        raise ShapeError(f"x has rank {len(x.shape)}, expected {len(kernel_shape) + 2}")
    expect_dims("indices", indices, *x.shape)
    unpooled = _unpooled(x.shape, kernel_shape, strides, pads)
    if output_shape is not None:
        expect_dims("output_shape", output_shape, len(x.shape))
    if output_shape is not None:
        return one(ints_of(output_shape) or (UNKNOWN,) * len(x.shape), x.dtype)
    return one((*x.shape[:2], *unpooled), x.dtype)


def _max_unpool(
    x: Array,
    indices: Array,
    output_shape: Array | None = None,
    *,
    kernel_shape: Ints,
    strides: Ints | None,
    pads: Ints | None,
) -> Array:
    space = [int(dim) for dim in _unpooled(x.shape, kernel_shape, strides, pads)]
    y = np.zeros((*x.shape[:2], *space), x.dtype)
    check_range("index", indices, 0, y.size - 1)
    y.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)
    if output_shape is None:
        return y
    wanted = to_ints(output_shape)
    return np.pad(y, [(0, max(n - m, 0)) for n, m in zip(wanted, y.shape, strict=True)])


move(
    "max_unpool",
    "x indices output_shape?",
    "y = zeros, with x's elements at `indices` of the flat output of a max_pool that gave x. "
    "Source: ONNX MaxUnpool-22",
    _infer_max_unpool,
    _max_unpool,
    attrs={**_WINDOW, "kernel_shape": Attr("ints")},
    moves=False,
    samples=lambda rng: [
        Sample(
            (draw(rng, 1, 1, 2, 2), ints(5, 7, 13, 15).reshape(1, 1, 2, 2)),
            {"kernel_shape": (2, 2), "strides": (2, 2)},
        ),
        Sample(
            (draw(rng, 1, 1, 2, 2), ints(1, 5, 6, 11).reshape(1, 1, 2, 2)),
            {"kernel_shape": (2, 2), "strides": (2, 1)},
            note="uneven strides",
        ),
    ],
    dtypes=(REALS, INDICES, INDICES),
)
