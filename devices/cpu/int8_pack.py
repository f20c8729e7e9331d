"""Shapes, tiles and packed constants of products of matrices on 8-bit integers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trireme.devices.cpu.int8 import QUADS, ChannelTable, Dot, channel_table
from trireme.devices.cpu.target import Isa
from trireme.dtypes import Array
from trireme.quantize import LinearParams


@dataclass(frozen=True)
class Product:
    """The shape of the product of matrices.

    rows, channels: output positions, and output channels of a group
    offsets: where each row begins in the prepared input, in elements; None: row * row_step
    spans: (offset, length) of what a row multiplies, in elements from where it begins
    """

    rows: int
    channels: int
    groups: int
    offsets: Array | None
    row_step: int
    group_step: int
    spans: tuple[tuple[int, int], ...]

    @property
    def depth(self) -> int:
        """Multiplications that one output takes."""
        return sum(length for _, length in self.spans)


@dataclass(frozen=True)
class Tile:
    """The microkernel's block: rows by vectors of channels, held in registers."""

    rows: int
    vectors: int


def choose_tile(isa: Isa, rows: int, channels: int) -> Tile:
    """Return the tile that wastes least and keeps the multipliers busy.

    rows x vectors accumulators, the vectors of weights and a broadcast must fit the registers.
    """
    wanted = -(-channels // isa.lanes)
    best, least = Tile(1, 1), math.inf
    for vectors in range(1, min(wanted, 8) + 1):
        most = (isa.registers - vectors - 2) // vectors
        for height in range(1, min(most, rows, 14) + 1):
            tiles = -(-rows // height) * -(-wanted // vectors)
            products = height * vectors
            stall = max(products, isa.fma_cycles * isa.fma_per_cycle)
            loads = (height + vectors) * 0.5
            cost = tiles * (max(stall, loads) + 0.1 * loads)
            if cost < least * 0.999:
                best, least = Tile(height, vectors), cost
    return best


def pack_weights(w: Array, zero: int, product: Product, dot: Dot, lanes: int) -> Array:
    """Return weights [O, depth] as [group, block of lanes, taps of each span, lanes, taps].

    Spans are filled up with zeros to whole groups of taps, channels to whole vectors.
    """
    groups, channels = product.groups, product.channels
    padded = -(-channels // lanes) * lanes
    wide = w.astype(np.int16).reshape(groups, channels, -1)
    wide = wide - (zero if dot is not QUADS else (128 if w.dtype == np.uint8 else 0))
    columns = []
    start = 0
    for _, length in product.spans:
        part = wide[:, :, start : start + length]
        room = -(-length // dot.taps) * dot.taps
        columns.append(np.pad(part, ((0, 0), (0, padded - channels), (0, room - length))))
        start += length
    flat = np.concatenate(columns, axis=2)
    blocks = flat.reshape(groups, padded // lanes, lanes, -1, dot.taps).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(blocks.astype(np.int8 if dot is QUADS else np.int16))


def constant_terms(
    w: Array, bias: Array | None, params: LinearParams, x_dtype: str, dot: Dot
) -> tuple[Array, int]:
    """Return what is added to the sum of products for each channel, and the factor of row sums."""
    channels = len(w)
    total = np.zeros(channels, np.int64) if bias is None else bias.astype(np.int64)
    if dot is not QUADS:
        return total, 0
    x_zero = params.x_zero + (128 if x_dtype == "int8" else 0)
    shift = 128 if w.dtype == np.uint8 else 0
    signed = w.reshape(channels, -1).astype(np.int64) - shift
    w_zero = params.w_zero - shift
    total = total - x_zero * signed.sum(1) + signed.shape[1] * x_zero * w_zero
    return total, w_zero


def grouped_table(
    params: LinearParams, terms: Array, product: Product, lanes: int, most: int
) -> ChannelTable:
    """Return the channel table with every group padded to whole vectors."""
    if product.groups == 1:
        return channel_table(params, terms, lanes, most)
    parts = []
    size = product.channels
    for group in range(product.groups):
        cut = slice(group * size, (group + 1) * size)
        own = LinearParams(
            params.x_zero, params.w_zero, params.y_zero, params.multipliers[cut],
            params.shifts[cut], params.low, params.high,
        )  # fmt: skip
        parts.append(channel_table(own, terms[cut], lanes, most))
    has_left = any(part.has_left for part in parts)
    rows = 5 if has_left else 4
    data = [np.pad(part.data, ((0, rows - len(part.data)), (0, 0))) for part in parts]
    return ChannelTable(
        np.ascontiguousarray(np.concatenate(data, axis=1)), has_left,
        "exact" if any(part.rounding == "exact" for part in parts) else parts[0].rounding,
    )  # fmt: skip
