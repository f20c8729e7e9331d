"""GatherBlockQuantized: rows of a table whose weights have few bits and a scale for each block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.converters.onnx.scope import NodeUse
from trireme.ops.block_quantized import codes as unpacked
from trireme.support.dtypes import Array


def gather_block_quantized(use: NodeUse) -> Sequence[int]:
    """GatherBlockQuantized(codes, indices, scales, zero points?): (code - zero point) * scale.

    Codes of uint8 hold several in a byte, the low bits first; their zero point is the middle where
    none is given, that of other codes 0. Source: ONNX Runtime com.microsoft.GatherBlockQuantized-1
    """
    numbers, scales, zeros = _table(use)
    block, rank = use.attrs.get("block_size", 128), numbers.ndim
    axis = use.attrs.get("quantize_axis", 1) % rank
    gathered = use.attrs.get("gather_axis", 0) % rank
    in_rows = gathered == 0 and axis == rank - 1 == 1 and numbers.shape[1] % block == 0
    if in_rows and scales.dtype == np.float32:
        return (_rows(use, numbers, scales, zeros, block),)
    wide = [np.repeat(part, block, axis) for part in (scales, zeros)]
    step, zero = (part.take(range(numbers.shape[axis]), axis) for part in wide)
    table = (numbers.astype(np.float32) - zero) * step.astype(np.float32)
    made = use.constant(table.astype(scales.dtype))
    return (use.add("gather", made, use.need(1), axis=gathered),)


def _table(use: NodeUse) -> tuple[Array, Array, Array]:
    """Return codes, scales, and zero points of float32 in the shape of the scales."""
    numbers, scales, zeros = use.array(0), use.array(2), use.array(3)
    if numbers is None or scales is None or (use.input(3) is not None and zeros is None):
        raise use.error("codes, scales and zero points that are not constant are not supported")
    bits, packed = use.attrs.get("bits", 4), use.type(0).dtype == "uint8"
    if packed and bits < 8:
        numbers = unpacked(numbers, bits)
        zeros = None if zeros is None else unpacked(zeros, bits)[..., : scales.shape[-1]]
    if zeros is None:
        zeros = np.full(scales.shape, 1 << (bits - 1) if packed else 0)
    return numbers, scales, zeros.astype(np.float32)


def _rows(use: NodeUse, numbers: Array, scales: Array, zeros: Array, block: int) -> int:
    """Return rows of a table [V,K] that stays in bytes, scaled after they are gathered."""
    indices = use.need(1)
    kept = (0,) * len(use.type(1).shape)
    stored = np.uint8 if numbers.min() >= 0 else np.int8
    rows = use.add("gather", use.constant(np.ascontiguousarray(numbers, stored)), indices, axis=0)
    whole = use.add("cast", rows, to="float32")
    blocks = use.add("reshape", whole, use.constant((*kept, scales.shape[1], block), "int64"))
    last = use.constant([-1], "int64")
    zero, step = (
        use.add("unsqueeze", use.add("gather", use.constant(part), indices, axis=0), last)
        for part in (zeros, scales)
    )
    scaled = use.add("mul", use.add("sub", blocks, zero), step)
    return use.add("reshape", scaled, use.constant((*kept, numbers.shape[1]), "int64"))
