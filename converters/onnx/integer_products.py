"""Products of 8-bit integers as products of floats that are exact.

A sum of float32 is exact while it stays below 2^24. With constant weights the largest sum is known,
and a depth that could reach the limit is cut into parts, which are added as int32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.converters.onnx import quantized, window
from trireme.converters.onnx.scope import NodeUse
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError

_EXACT = 1 << 24
_WIDEST = 255
"""The most that 8-bit integers differ from their zero point."""
_MOST_PARTS = 16


def matmul_integer(use: NodeUse) -> Sequence[int]:
    """MatMulInteger(a, b, a zero?, b zero?) by floats where b is constant, else by int32."""
    weights = _constant_weights(use)
    if weights is None or weights.ndim < 2 or not use.type().shape or _parts(weights) is None:
        return quantized.matmul_integer(use)
    return (_product(use, quantized.whole(use, 0, 2, True, "float32"), weights),)


def _product(use: NodeUse, a: int, weights: Array) -> int:
    """Return the int32 product of whole numbers in float32 by weights that have parts."""
    parts = _parts(weights) or []
    total: int | None = None
    for start, stop in parts:
        piece = a if len(parts) == 1 else _columns(use, a, start, stop)
        w = np.ascontiguousarray(weights[..., start:stop, :].astype(np.float32))
        y = _integers(use, use.add("matmul", piece, use.constant(w)), "int32")
        total = y if total is None else use.add("add", total, y)
    if total is None:
        raise InternalError("weights without a depth")
    return total


def _integers(use: NodeUse, whole: int, dtype: str) -> int:
    """Return whole numbers of float32 as integers; a cast back to float32 gives the same value."""
    y = use.add("cast", whole, to=dtype)
    use.scope.whole[y] = whole
    return y


def conv_integer(use: NodeUse) -> Sequence[int]:
    """ConvInteger(x, w, x zero?, w zero?) by floats where w is constant, else by int32.

    A matrix of the elements under each window makes a product of it; a depthwise convolution is a
    sum of shifted images. A float convolution may round, by Winograd's algorithm for one.
    """
    weights, x = _constant_weights(use), use.type().shape
    groups = use.attrs.get("group", 1)
    depthwise = weights is not None and groups == x[1] == len(weights) != 1
    known = all(isinstance(dim, int) for dim in x[1:])
    if weights is None or not known or not (depthwise or groups == 1):
        return quantized.conv_integer(use)
    positions = tuple(np.moveaxis(weights, (0, 1), (-1, -2)).reshape(-1, *weights.shape[1::-1]))
    matrix = np.concatenate(positions) if groups == 1 else np.stack([p[0] for p in positions])
    if _parts(matrix if groups == 1 else matrix[:, None, :].swapaxes(0, 1)) is None:
        return quantized.conv_integer(use)
    images = _shifted(use, weights.shape)
    if depthwise:
        return (_sum_of_images(use, images, matrix),)
    rank = len(x)
    whole = images[0] if len(images) == 1 else use.add("concat", *images, axis=1)
    last = use.add("transpose", whole, perm=(0, *range(2, rank), 1))
    y = _product(use, last, matrix)
    return (use.add("transpose", y, perm=(0, rank - 1, *range(1, rank - 1))),)


def _shifted(use: NodeUse, weight: Sequence[int]) -> list[int]:
    """Return the elements of x that each position of the kernel meets, as images of y's size."""
    attrs = window.conv_attrs(use, 0, weight)
    spatial, half = len(weight) - 2, len(attrs["pads"]) // 2
    x = quantized.whole(use, 0, 2, False, "float32")
    pads = attrs["pads"]
    if any(pads):
        ends = (0, 0, *pads[:half], 0, 0, *pads[half:])
        x = use.add("pad", x, use.constant(ends, "int64"))
    sizes = [int(dim) for dim in use.scope.builder.type(x).shape[2:]]
    images = []
    for place in np.ndindex(*weight[2:]):
        starts = [k * d for k, d in zip(place, attrs["dilations"], strict=True)]
        reach = [(k - 1) * d for k, d in zip(weight[2:], attrs["dilations"], strict=True)]
        stops = [start + size - r for start, size, r in zip(starts, sizes, reach, strict=True)]
        lists = (starts, stops, range(2, 2 + spatial), attrs["strides"])
        images.append(use.add("slice", x, *(use.constant([*row], "int64") for row in lists)))
    return images


def _sum_of_images(use: NodeUse, images: Sequence[int], factors: Array) -> int:
    """Return the int32 sum of images [N,C,..] times factors [positions, C]."""
    rank = len(use.type().shape)
    total: int | None = None
    for image, row in zip(images, factors, strict=True):
        column = row.astype(np.float32).reshape(-1, *(1,) * (rank - 2))
        y = use.add("mul", image, use.constant(column))
        total = y if total is None else use.add("add", total, y)
    if total is None:
        raise InternalError("a kernel without positions")
    return use.add("cast", total, to="int32")


def _constant_weights(use: NodeUse) -> Array | None:
    """Return the weights less their zero point; None where one of them is not constant."""
    b, zero = use.array(1), use.array(3)
    if b is None or not b.size or (zero is None and use.input(3) is not None):
        return None
    if zero is None:
        return b.astype(np.int64)
    if use.op == "ConvInteger" and zero.ndim == 1:
        zero = zero.reshape(-1, *(1,) * (b.ndim - 1))
    return b.astype(np.int64) - zero.astype(np.int64)


def _parts(weights: Array) -> list[tuple[int, int]] | None:
    """Return the fewest equal parts of the depth whose sums are exact; None for too many."""
    depth = weights.shape[-2]
    size = np.abs(weights)
    for count in range(1, _MOST_PARTS + 1):
        step = -(-depth // count)
        ends = [(start, min(start + step, depth)) for start in range(0, depth, step)]
        if all(size[..., a:b, :].sum(-2).max() * _WIDEST < _EXACT for a, b in ends):
            return ends
    return None


def _columns(use: NodeUse, a: int, start: int, stop: int) -> int:
    return use.add("slice", a, *(use.constant([n], "int64") for n in (start, stop, -1)))


def dynamic_quantize_linear(use: NodeUse) -> Sequence[int]:
    """DynamicQuantizeLinear(x) -> y, scale, zero point, of elementwise ops and two reductions.

    A range of 0 has the scale 1, as in ONNX Runtime.
    """
    x = use.need(0)
    if 0 in use.type().shape:
        return use.add_node("dynamic_quantize_linear", [x], {}, 3)
    zero, one, most = (use.constant(number, "float32") for number in (0, 1, 255))
    low, high = (use.add(f"reduce_{end}", x, keepdims=0) for end in ("min", "max"))
    low = use.add("min", low, zero)
    extent = use.add("sub", use.add("max", high, zero), low)
    scale = use.add("where", use.add("equal", extent, zero), one, use.add("div", extent, most))
    point = use.add("round", use.add("div", use.add("sub", zero, low), scale))
    point = use.add("clip", point, zero, most)
    y = use.add("add", use.add("round", use.add("div", x, scale)), point)
    y = use.add("clip", y, zero, most)
    return _integers(use, y, "uint8"), scale, _integers(use, point, "uint8")
