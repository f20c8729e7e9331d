"""Ops that trade space for channels or batch: depth_to_space and its relatives."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from trireme.ir.dims import add, exact_divide, multiply, subtract
from trireme.ir.graph import UNKNOWN, Dim, Value
from trireme.ir.op import Attr, Sample
from trireme.ops.layouts import (
    LAYOUT,
    channels,
    channels_last,
    from_channels_last,
    image_shape,
    spatial,
)
from trireme.ops.movement import draw, ints, move
from trireme.ops.shapes import Types, expect_dims, expect_rank, ints_of, one, to_ints
from trireme.support.dtypes import ANY, INDICES, TEXT, Array
from trireme.support.errors import ShapeError

Ints = tuple[int, ...]


def _shares(subject: str, dim: Dim, by: int) -> Dim:
    if isinstance(dim, str):
        return exact_divide(dim, by)
    if dim % by:
        raise ShapeError(f"{subject} {dim} does not divide by {by}")
    return dim // by


def _infer_to_space(x: Value, *, blocksize: int, mode: str, layout: str) -> Types:
    expect_rank("x", x, 4)
    space = tuple(multiply(dim, blocksize) for dim in spatial(x.shape, layout))
    each = _shares("channel count", channels(x.shape, layout), blocksize * blocksize)
    return one(image_shape(x.shape[0], space, each, layout), x.dtype)


def _to_space(x: Array, *, blocksize: int, mode: str, layout: str) -> Array:
    image, b = channels_last(x, layout), blocksize
    n, h, w, c = image.shape
    if mode == "DCR":
        split = image.reshape(n, h, w, b, b, c // (b * b)).transpose(0, 1, 3, 2, 4, 5)
    else:
        split = image.reshape(n, h, w, c // (b * b), b, b).transpose(0, 1, 4, 2, 5, 3)
    return from_channels_last(split.reshape(n, h * b, w * b, c // (b * b)), layout)


def _infer_to_depth(x: Value, *, blocksize: int, mode: str, layout: str) -> Types:
    expect_rank("x", x, 4)
    height, width = spatial(x.shape, layout)
    space = (_shares("height", height, blocksize), _shares("width", width, blocksize))
    made = multiply(channels(x.shape, layout), blocksize * blocksize)
    return one(image_shape(x.shape[0], space, made, layout), x.dtype)


def _to_depth(x: Array, *, blocksize: int, mode: str, layout: str) -> Array:
    image, b = channels_last(x, layout), blocksize
    n, h, w, c = image.shape
    split = image.reshape(n, h // b, b, w // b, b, c)
    order = (0, 1, 3, 2, 4, 5) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    y = split.transpose(order).reshape(n, h // b, w // b, c * b * b)
    return from_channels_last(y, layout)


def _block_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = draw(rng, 2, 4, 6, 8)
    for mode in ("DCR", "CRD"):
        yield Sample((x,), {"blocksize": 2, "mode": mode, "layout": "NHWC"}, note=mode)
    yield Sample((draw(rng, 1, 4, 2, 6),), {"blocksize": 2, "layout": "NCHW"}, note="NCHW")
    yield Sample((draw(rng, 1, 6, 3, 9),), {"blocksize": 3}, note="blocks of 3")


_BLOCK = {
    "blocksize": Attr("int"),
    "mode": Attr("str", "DCR", ("DCR", "CRD")),
    "layout": LAYOUT,
}
move(
    "depth_to_space",
    "x",
    "y[n,h*b+i,w*b+j,c] = x[n,h,w,(i*b+j)*C'+c] (DCR) or x[n,h,w,(c*b+i)*b+j] (CRD), "
    "C' = C/b^2. Source: ONNX DepthToSpace-13",
    _infer_to_space,
    _to_space,
    rearranges=True,
    layout_inputs=(0,),
    attrs=_BLOCK,
    samples=_block_samples,
    dtypes=(ANY,),
)
move(
    "space_to_depth",
    "x",
    "the inverse of depth_to_space. Source: ONNX SpaceToDepth-13",
    _infer_to_depth,
    _to_depth,
    rearranges=True,
    layout_inputs=(0,),
    attrs=_BLOCK,
    samples=lambda rng: [s for s in _block_samples(rng) if s.attrs.get("mode") != "CRD"],
    dtypes=(ANY,),
)


def _expect_blocks(x: Value, block: Value, edges: Value) -> None:
    """Raise ShapeError unless block [k] and its pads or crops [k,2] fit x [N,*S,..]."""
    expect_rank("block", block, 1)
    expect_dims("pads or crops", edges, block.shape[0], 2)
    spatial_axes = block.shape[0]
    if isinstance(spatial_axes, int) and spatial_axes >= len(x.shape):
        raise ShapeError(f"block has {spatial_axes} entries, x {len(x.shape) - 1} axes for them")
    if min(ints_of(block) or (1,)) < 1 or min(ints_of(edges) or (0,)) < 0:
        raise ShapeError("an entry of block is below 1, or one of pads or crops below 0")


def _infer_space_to_batch(x: Value, block: Value, pads: Value) -> Types:
    _expect_blocks(x, block, pads)
    sizes, edges = ints_of(block), ints_of(pads)
    if sizes is None or edges is None:
        return one((UNKNOWN,) * len(x.shape), x.dtype)
    shape, batch = list(x.shape), x.shape[0]
    for i, size in enumerate(sizes):
        batch = multiply(batch, size)
        dim, extra = shape[i + 1], edges[2 * i] + edges[2 * i + 1]
        shape[i + 1] = _shares(f"padded dimension {i + 1},", add(dim, extra), size)
    return one((batch, *shape[1:]), x.dtype)


def _space_to_batch(x: Array, block: Array, pads: Array, fill: int | float = 0) -> Array:
    sizes, edges = to_ints(block), pads.reshape(-1, 2)
    rest = x.ndim - 1 - len(sizes)
    x = np.pad(x, [(0, 0), *map(tuple, edges), *[(0, 0)] * rest], constant_values=fill)
    shape = [x.shape[0]]
    for size, dim in zip(sizes, x.shape[1:], strict=False):
        shape += [dim // size, size]
    tail = x.shape[1 + len(sizes) :]
    inner = [2 * i + 2 for i in range(len(sizes))]
    outer = [2 * i + 1 for i in range(len(sizes))]
    order = [*inner, 0, *outer, *range(len(shape), len(shape) + len(tail))]
    moved = x.reshape(*shape, *tail).transpose(order)
    return moved.reshape(math.prod(sizes) * shape[0], *(shape[i] for i in outer), *tail)


def _infer_batch_to_space(x: Value, block: Value, crops: Value) -> Types:
    _expect_blocks(x, block, crops)
    sizes, edges = ints_of(block), ints_of(crops)
    if sizes is None or edges is None:
        return one((UNKNOWN,) * len(x.shape), x.dtype)
    shape, batch = list(x.shape), x.shape[0]
    for i, size in enumerate(sizes):
        batch = _shares("batch", batch, size)
        grown, cut = multiply(shape[i + 1], size), edges[2 * i] + edges[2 * i + 1]
        if isinstance(grown, int) and grown < cut:
            raise ShapeError(f"crops cut {cut} of the {grown} elements along axis {i + 1}")
        shape[i + 1] = subtract(grown, cut)
    return one((batch, *shape[1:]), x.dtype)


def _batch_to_space(x: Array, block: Array, crops: Array) -> Array:
    sizes, edges = to_ints(block), crops.reshape(-1, 2)
    count = len(sizes)
    batch = x.shape[0] // math.prod(sizes)
    split = x.reshape(*sizes, batch, *x.shape[1:])
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    order += range(2 * count + 1, split.ndim)
    moved = split.transpose(order)
    space = [x.shape[i + 1] * size for i, size in enumerate(sizes)]
    whole = moved.reshape(batch, *space, *x.shape[1 + count :])
    cuts = tuple(slice(int(a), dim - int(b)) for (a, b), dim in zip(edges, space, strict=True))
    return np.ascontiguousarray(whole[(slice(None), *cuts)])


move(
    "space_to_batch",
    "x block pads",
    "y = x padded with zeros, its space cut into blocks whose positions become the batch. "
    "Shapes: x [N,*S,..], block [k], pads [k,2]. Source: TFLite SPACE_TO_BATCH_ND",
    _infer_space_to_batch,
    _space_to_batch,
    moves=False,
    samples=lambda rng: [
        Sample(
            (draw(rng, 2, 4, 5, 3), ints(2, 3), ints(0, 0, 0, 1).reshape(2, 2)),
            constants=frozenset({1, 2}),
        )
    ],
    dtypes=(ANY - TEXT, INDICES, INDICES),
)
move(
    "batch_to_space",
    "x block crops",
    "the inverse of space_to_batch, cropping instead of padding. Source: TFLite BATCH_TO_SPACE_ND",
    _infer_batch_to_space,
    _batch_to_space,
    rearranges=True,
    samples=lambda rng: [
        Sample(
            (draw(rng, 12, 2, 2, 3), ints(2, 3), ints(0, 0, 0, 1).reshape(2, 2)),
            constants=frozenset({1, 2}),
        )
    ],
    dtypes=(ANY, INDICES, INDICES),
)
