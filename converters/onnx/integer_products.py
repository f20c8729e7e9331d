"""Products of 8-bit integers as products of floats that are exact.

A sum of float32 is exact while it stays below 2^24. With constant weights the largest sum is known,
and a depth that could reach the limit is cut into parts, which are added as int32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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

    A kernel of one position makes a product of it. Elsewhere the sums of a float convolution are
    cast to int32, which tells devices that the sums must be exact.
    """
    weights, shape = _constant_weights(use), use.type(1).shape
    if weights is None:
        return quantized.conv_integer(use)
    sizes = np.abs(weights).reshape(*weights.shape[:2], -1).sum(-1).T
    attrs = window.conv_attrs(use, 0, shape)
    parts = _parts(sizes)
    if parts is None or (len(parts) > 1 and attrs["groups"] > 1):
        return quantized.integer_conv(use, attrs)
    x = quantized.whole(use, 0, 2, False, "float32")
    if len(sizes) == weights.size // len(weights) and not _moves(attrs):
        rank = len(shape)
        last = use.add("transpose", x, perm=(0, *range(2, rank), 1))
        y = _product(use, last, weights.reshape(len(weights), -1).T)
        return (use.add("transpose", y, perm=(0, rank - 1, *range(1, rank - 1))),)
    total: int | None = None
    for start, stop in parts:
        piece = x if len(parts) == 1 else _columns(use, x, start, stop, 1)
        w = use.constant(np.ascontiguousarray(weights[:, start:stop].astype(np.float32)))
        y = use.add("cast", use.add("conv", piece, w, **attrs), to="int32")
        total = y if total is None else use.add("add", total, y)
    if total is None:
        raise InternalError("weights without a depth")
    return (total,)


def _moves(attrs: Mapping[str, Any]) -> bool:
    """Whether a convolution of one position reads other elements than all, each for all outputs."""
    return attrs["groups"] > 1 or any(attrs["pads"]) or any(n > 1 for n in attrs["strides"])


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


def _columns(use: NodeUse, a: int, start: int, stop: int, axis: int = -1) -> int:
    return use.add("slice", a, *(use.constant([n], "int64") for n in (start, stop, axis)))


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
