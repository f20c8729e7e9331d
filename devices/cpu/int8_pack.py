"""Shapes, tiles and packed constants of products of matrices on 8-bit integers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trireme.devices.cpu.int8 import QUADS, Dot
from trireme.devices.cpu.int8_requant import groups_of, lanes_to_channels
from trireme.devices.cpu.target import Isa
from trireme.dtypes import Array, numpy_dtype
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


_STORE_CYCLES = {4: 16.0, 2: 10.0, 1: 7.0}
"""About what it takes to requantise and store a group of vectors of one row."""


def choose_tile(isa: Isa, rows: int, channels: int, quads: int) -> tuple[Tile, float]:
    """Return the tile of least modelled cycles, and these, for the whole product.

    `quads` is the groups of taps that a sum takes.

    rows x vectors accumulators, the vectors of weights and a broadcast must fit the registers.
    """
    wanted = -(-channels // isa.lanes)
    best, least = Tile(1, 1), math.inf
    for vectors in range(1, min(wanted, 8) + 1):
        most = (isa.registers - vectors - 2) // vectors
        panels, last = divmod(wanted, vectors)
        for height in range(1, min(most, rows, 14) + 1):
            cost = panels * _tile_cycles(isa, Tile(height, vectors), quads)
            cost += _tile_cycles(isa, Tile(height, last), quads) if last else 0.0
            cost *= -(-rows // height)
            if cost < least * 0.999:
                best, least = Tile(height, vectors), cost
    return best, least


def _tile_cycles(isa: Isa, tile: Tile, quads: int) -> float:
    latency = isa.fma_cycles * (isa.fma_per_cycle / 2)
    step = max(tile.rows * tile.vectors, latency, (tile.rows + tile.vectors) / 2)
    store = sum(_STORE_CYCLES[group] for group in groups_of(tile.vectors))
    return quads * (step + 0.05 * (tile.rows + tile.vectors)) + tile.rows * store + 10


def kernel_order(isa: Isa, tile: Tile, channels: int) -> Array:
    """Return the channel in each lane of all panels of a group of the conv; padding included."""
    wanted = -(-channels // isa.lanes)
    whole, last = divmod(wanted, tile.vectors)
    panel = lanes_to_channels(isa, isa.lanes, tile.vectors)
    parts = [panel + p * len(panel) for p in range(whole)]
    if last:
        parts.append(whole * len(panel) + lanes_to_channels(isa, isa.lanes, last))
    return np.concatenate(parts)


def weight_zero(w: Array, params: LinearParams, dot: Dot) -> int:
    """Return what is subtracted from weights before they are multiplied.

    It is their zero point where the differences fit the multiplier; else with VNNI half of the
    range of uint8, and the rest is made up for by sums of the inputs.
    """
    least, most = int(w.min()) - params.w_zero, int(w.max()) - params.w_zero
    if dot is not QUADS or (least >= -128 and most <= 127):
        return params.w_zero
    return 128 if w.dtype == np.uint8 else 0


def pack_weights(
    w: Array, zero: int, product: Product, dot: Dot, order: Array, tile: Tile, lanes: int
) -> Array:  # fmt: skip
    """Return weights [O, depth], less `zero`, as [group, panel, steps, vector, lanes, taps].

    A step is a group of taps. A panel is what one tile multiplies with, in the order in which it
    does; the last one may be narrower. Spans are filled up with zeros to whole groups of taps,
    channels to whole vectors.
    """
    groups, channels = product.groups, product.channels
    wide = w.astype(np.int16).reshape(groups, channels, -1) - zero
    columns = []
    start = 0
    for _, length in product.spans:
        part = wide[:, :, start : start + length]
        room = -(-length // dot.taps) * dot.taps
        columns.append(np.pad(part, ((0, 0), (0, len(order) - channels), (0, room - length))))
        start += length
    flat = np.concatenate(columns, axis=2)[:, order]
    flat = flat.astype(np.int8 if dot is QUADS else np.int16)
    panels = []
    for start in range(0, len(order), tile.vectors * lanes):
        panel = flat[:, start : start + tile.vectors * lanes]
        blocks = panel.reshape(groups, panel.shape[1] // lanes, lanes, -1, dot.taps)
        panels.append(blocks.transpose(0, 3, 1, 2, 4).reshape(groups, -1))
    return np.ascontiguousarray(np.concatenate(panels, axis=1))


def constant_terms(
    w: Array, bias: Array | None, params: LinearParams, x_dtype: str, dot: Dot
) -> tuple[Array, int]:
    """Return what is added to the sum of products for each channel, and the factor of row sums."""
    channels = len(w)
    total = np.zeros(channels, np.int64) if bias is None else bias.astype(np.int64)
    if dot is not QUADS:
        return total, 0
    x_zero = params.x_zero + (128 if x_dtype == "int8" else 0)
    zero = weight_zero(w, params, dot)
    signed = w.reshape(channels, -1).astype(np.int64) - zero
    factor = params.w_zero - zero
    total = total - x_zero * signed.sum(1) + signed.shape[1] * x_zero * factor
    return total, factor


def sum_bounds(
    w: Array, bias: Array | None, params: LinearParams, x_dtype: str
) -> tuple[Array, Array]:
    """Return the least and the greatest sum of each channel, int64 [O], over all inputs."""
    wide = w.reshape(len(w), -1).astype(np.int64) - params.w_zero
    info = np.iinfo(numpy_dtype(x_dtype))
    ends = (wide * (info.min - params.x_zero), wide * (info.max - params.x_zero))
    start = np.zeros(len(w), np.int64) if bias is None else bias.astype(np.int64)
    return start + np.minimum(*ends).sum(1), start + np.maximum(*ends).sum(1)
