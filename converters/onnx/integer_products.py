"""Products of 8-bit integers as products of floats that are exact.

A sum of float32 is exact while it stays below 2^24. With constant weights the largest sum is known,
and a depth that could reach the limit is cut into parts, which are added as int32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.converters.onnx import quantized
from trireme.converters.onnx.scope import NodeUse
from trireme.support.dtypes import Array

_EXACT = 1 << 24
_WIDEST = 255
"""The most that 8-bit integers differ from their zero point."""
_MOST_PARTS = 16


def matmul_integer(use: NodeUse) -> Sequence[int]:
    """MatMulInteger(a, b, a zero?, b zero?) by floats where b is constant, else by int32."""
    weights = _constant_weights(use)
    parts = None if weights is None else _parts(weights)
    if weights is None or parts is None or not use.type().shape:
        return quantized.matmul_integer(use)
    a = quantized.whole(use, 0, 2, True, "float32")
    total: int | None = None
    for start, stop in parts:
        piece = a if len(parts) == 1 else _columns(use, a, start, stop)
        w = np.ascontiguousarray(weights[..., start:stop, :].astype(np.float32))
        y = use.add("cast", use.add("matmul", piece, use.constant(w)), to="int32")
        total = y if total is None else use.add("add", total, y)
    return () if total is None else (total,)


def _constant_weights(use: NodeUse) -> Array | None:
    """Return b less its zero point; None where one of them is not constant."""
    b, zero = use.array(1), use.array(3)
    if b is None or b.ndim < 2 or not b.size or (zero is None and use.input(3) is not None):
        return None
    return b.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))


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
    y = use.add("cast", use.add("clip", y, zero, most), to="uint8")
    return y, scale, use.add("cast", point, to="uint8")
