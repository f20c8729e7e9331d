"""Shapes, tiles and packed constants of products of matrices on 8-bit integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import QUADS, Dot
from trireme.devices.cpu.kernels.int8.params import ProductParams
from trireme.devices.cpu.kernels.int8.requant import groups_of, lanes_to_channels
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.records import dataclass


@dataclass(frozen=True)
class Int8MatmulShape:
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

    def span_steps(self, dot: Dot) -> list[int]:
        """Steps of a multiplier that each span takes."""
        return [-(-length // dot.taps) for _, length in self.spans]

    def steps(self, dot: Dot) -> int:
        """Steps of a multiplier that one output takes."""
        return sum(self.span_steps(dot))

    def places(self, dot: Dot) -> Array:
        """Return where each step begins, in elements from where its row does, int32 [steps]."""
        parts = [
            offset + np.arange(steps) * dot.taps
            for (offset, _), steps in zip(self.spans, self.span_steps(dot), strict=True)
        ]
        return np.concatenate(parts).astype(np.int32)


@dataclass(frozen=True)
class RegisterTile:
    """The microkernel's block: rows by vectors of channels, held in registers."""

    rows: int
    vectors: int


MOST_VECTORS = 8
"""Of a tile."""
_STORE_CYCLES = {4: 16.0, 2: 10.0, 1: 7.0}
"""About the cycles to requantise and store a group of vectors of one row."""
_AGAIN_CYCLES = 1.2
"""As Dot.cycles, for a repeated step."""


def choose_tile(
    isa: Isa, product: Int8MatmulShape, dot: Dot, again: Sequence[float] = ()
) -> tuple[RegisterTile, float]:
    """Return the tile of least modelled cycles, and these, for one group of a product.

    again: the steps that are done again with panels of one vector, two, ...; empty: none

    rows x vectors accumulators, the vectors of weights and a broadcast must fit the registers.
    """
    rows, steps = product.rows, product.steps(dot)
    wanted = -(-product.channels // isa.lanes)
    best, least = RegisterTile(1, 1), math.inf
    for vectors in range(1, min(wanted, MOST_VECTORS) + 1):
        most = (isa.registers - (vectors + 1) * dot.run - dot.spare) // vectors
        panels, last = divmod(wanted, vectors)
        more = again[vectors - 1] if again else 0.0
        for height in range(1, min(most, rows, 14) + 1):
            tile = RegisterTile(height, vectors)
            cost = panels * _tile_cycles(isa, tile, steps, dot)
            cost += _tile_cycles(isa, RegisterTile(height, last), steps, dot) if last else 0.0
            cost += more * _step_cycles(isa, tile, _AGAIN_CYCLES)
            cost *= -(-rows // height)
            if cost < least * 0.999:
                best, least = tile, cost
    return best, least


def _step_cycles(isa: Isa, tile: RegisterTile, product_cycles: float) -> float:
    latency = isa.fma_cycles * (isa.fma_per_cycle / 2) if isa.vnni else 1
    products = tile.rows * tile.vectors * product_cycles * max(isa.lanes / 8, 1)
    loads = (tile.rows + tile.vectors) / 2
    return max(products, latency, loads) + 0.05 * (tile.rows + tile.vectors)


def _tile_cycles(isa: Isa, tile: RegisterTile, steps: int, dot: Dot) -> float:
    store = sum(_STORE_CYCLES[group] for group in groups_of(tile.vectors))
    return steps * _step_cycles(isa, tile, dot.cycles) + tile.rows * store + 10


def store_cycles(isa: Isa, product: Int8MatmulShape, tile: RegisterTile) -> float:
    """Return the modelled cycles in which one group's outputs are requantised and stored."""
    panels, last = divmod(-(-product.channels // isa.lanes), tile.vectors)
    vectors = [*groups_of(tile.vectors) * panels, *(groups_of(last) if last else ())]
    rows = -(-product.rows // tile.rows) * tile.rows
    return rows * sum(_STORE_CYCLES[group] for group in vectors)


def kernel_order(isa: Isa, tile: RegisterTile, channels: int) -> Array:
    """Return the channel in each lane of all panels of a group of the conv; padding included."""
    wanted = -(-channels // isa.lanes)
    whole, last = divmod(wanted, tile.vectors)
    panel = lanes_to_channels(isa, isa.lanes, tile.vectors)
    parts = [panel + p * len(panel) for p in range(whole)]
    if last:
        parts.append(whole * len(panel) + lanes_to_channels(isa, isa.lanes, last))
    return np.concatenate(parts)


def weight_zero(w: Array, params: ProductParams, dot: Dot) -> int:
    """Return the number that is subtracted from weights before the product.

    It is their zero point where the differences fit the multiplier. Else with VNNI it is half of
    the range of uint8, and sums of the inputs make up for the rest.
    """
    least, most = int(w.min()) - params.w_zero, int(w.max()) - params.w_zero
    if dot is not QUADS or (least >= -128 and most <= 127):
        return params.w_zero
    return 128 if w.dtype == np.uint8 else 0


def steps_of(w: Array, zero: int, product: Int8MatmulShape, dot: Dot) -> Array:
    """Return weights [O, depth], less `zero`, as int16 [group, channel, steps, taps].

    Spans are filled up with zeros to whole steps.
    """
    wide = w.astype(np.int16).reshape(product.groups, product.channels, -1) - zero
    columns = []
    start = 0
    for (_, length), steps in zip(product.spans, product.span_steps(dot), strict=True):
        part = wide[:, :, start : start + length]
        columns.append(np.pad(part, ((0, 0), (0, 0), (0, steps * dot.taps - length))))
        start += length
    return np.concatenate(columns, axis=2).reshape(*wide.shape[:2], -1, dot.taps)


def in_order(steps: Array, order: Array) -> Array:
    """Return [group, channel, steps, taps] with channels in the order of lanes; padding is 0."""
    room = len(order) - steps.shape[1]
    return np.pad(steps, ((0, 0), (0, room), (0, 0), (0, 0)))[:, order]


def pack_weights(steps: Array, dot: Dot, order: Array, tile: RegisterTile, lanes: int) -> Array:
    """Return weights as [group, panel, steps, vector, lanes, taps].

    A panel holds the weights of one tile, in the order of their use. The last one may be narrower.
    Channels are filled up with zeros to whole vectors.
    """
    flat = in_order(steps, order).astype(np.int8 if dot.width == 1 else np.int16)
    groups, panels = len(flat), []
    for start in range(0, len(order), tile.vectors * lanes):
        panel = flat[:, start : start + tile.vectors * lanes]
        blocks = panel.reshape(groups, panel.shape[1] // lanes, lanes, -1, dot.taps)
        panels.append(blocks.transpose(0, 3, 1, 2, 4).reshape(groups, -1))
    return np.ascontiguousarray(np.concatenate(panels, axis=1))


def constant_terms(
    w: Array, bias: Array | None, params: ProductParams, x_dtype: str, dot: Dot
) -> tuple[Array, int]:
    """Return the addend of each channel's sum of products, and the factor of row sums."""
    channels = len(w)
    total = np.zeros(channels, np.int64) if bias is None else bias.astype(np.int64)
    if dot.width == 2:
        return total, 0
    x_zero = params.x_zero + (128 if x_dtype == "int8" else 0)
    zero = weight_zero(w, params, dot)
    signed = w.reshape(channels, -1).astype(np.int64) - zero
    factor = params.w_zero - zero
    total = total - x_zero * signed.sum(1) + signed.shape[1] * x_zero * factor
    return total, factor


def sum_bounds(
    w: Array, bias: Array | None, params: ProductParams, x_dtype: str
) -> tuple[Array, Array]:
    """Return the least and the greatest sum of each channel, int64 [O], over all inputs."""
    wide = w.reshape(len(w), -1).astype(np.int64) - params.w_zero
    info = np.iinfo(numpy_dtype(x_dtype))
    ends = (wide * (info.min - params.x_zero), wide * (info.max - params.x_zero))
    start = np.zeros(len(w), np.int64) if bias is None else bias.astype(np.int64)
    return start + np.minimum(*ends).sum(1), start + np.maximum(*ends).sum(1)
