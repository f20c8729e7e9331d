"""When Winograd pays, and how its tiles are cut into chunks: a model in cycles.

The choice of the algorithm depends on an image's shape and the instruction set only, never on
threads or the batch. So a convolution has the same bits for any number of both. The cut into chunks
may depend on them, because no sum crosses a chunk.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.tiling import choose_register_tile, tile_cycles
from trireme.devices.cpu.kernels.f32.winograd.transforms import POINTS, Scheme, scheme
from trireme.support.errors import InternalError
from trireme.support.records import dataclass


@dataclass(frozen=True)
class WinogradCut:
    """The cut of a Winograd convolution.

    outputs: m of F(m x m, kernel x kernel)
    tile_count: tiles of m x m outputs, over the batch; tiles: at most, in a chunk
    blocks, groups: parts of the tiles and of the panels; a chunk is one of each
    tile_rows, vectors: the register tile of the products
    is_even: whether register tiles of tile_rows fill every block
    last_columns: columns of the last panel; width when it is like the others
    """

    outputs: int
    tiles_high: int
    tiles_wide: int
    tile_count: int
    tiles: int
    blocks: int
    groups: int
    tile_rows: int
    is_even: bool
    vectors: int
    width: int
    panels: int
    last_columns: int


_PRODUCT = 1.1
"""Measured over modelled cycles of products whose operands are in the L2 cache."""
_WEIGHTS_CYCLES = 1 / 4.5
"""Cycles a byte of weights takes that come from memory, where nothing else is done: 12 GB/s."""
_CACHE_CYCLES = 1 / 48
"""Cycles a byte of the L2 cache takes where little else is done."""
_MEMORY_CYCLES = 1 / 8
"""The same for memory further away; see tiling.py."""


def schemes(window: ImageWindow) -> tuple[Scheme, ...]:
    """Return the schemes that fit a window: a square kernel, equal strides, no dilation."""
    (kernel, stride), square = (window.kernel[0], window.strides[0]), window.kernel[0]
    if (window.kernel, window.strides) != ((square, square), (stride, stride)):
        return ()
    sizes = POINTS.get((kernel, stride), {}) if window.dilations == (1, 1) else {}
    return tuple(scheme(kernel, stride, size) for size in sizes)


_SLOWNESS = {4: 1.0, 5: 1.5, 6: 2.0, 9: 4.0}
"""Factors of transforms by their points a side: all points are streams of memory that are written,
and of 9 a side values are spilled, too."""


def input_cycles(made: Scheme) -> float:
    """Cycles to transform a vector of channels of one tile: loads, stores and sums."""
    return 4.5 * made.points**2 * _slowness(made)


def output_cycles(made: Scheme) -> float:
    """Cycles to transform back a vector of outputs of one tile, with the epilogue."""
    return (2.5 * made.points**2 + 5 * made.outputs**2) * _slowness(made)


def _slowness(made: Scheme) -> float:
    return _SLOWNESS[made.points]


def winograd_cycles(isa: Isa, batch: int, window: ImageWindow, outputs: int, made: Scheme) -> float:
    """Return the modelled cycles of one core for a scheme."""
    size, points = made.outputs, made.points**2
    tiles = batch * -(-window.out_height // size) * -(-window.out_width // size)
    depth, columns = window.channels, -(-outputs // isa.lanes)
    rows, vectors = choose_register_tile(isa, min(tiles, 1024), outputs)
    product = points * depth * _product_cycles(isa, tiles, columns, rows, vectors)
    transforms = tiles * (
        -(-depth // isa.lanes) * input_cycles(made) + columns * output_cycles(made)
    )
    return transforms + _with_weights(isa, product, points * depth * outputs)


def _with_weights(isa: Isa, product: float, weights: int) -> float:
    """Cycles of products and, meanwhile, of reading their weights once.

    Weights beyond the L2 cache come from memory in every run of a network. Each hides a part of
    the other: the measured times lie near the root of the sum of squares.
    """
    return math.hypot(_PRODUCT * product, weights_cycles(isa, weights))


def weights_cycles(isa: Isa, weights: int) -> float:
    """Return the cycles of reading weights, where nothing else is done."""
    return 4 * weights * (_CACHE_CYCLES if 4 * weights <= isa.l2_bytes else _WEIGHTS_CYCLES)


def _product_cycles(isa: Isa, rows: int, columns: int, tile_rows: int, vectors: int) -> float:
    """Cycles of one step of depth, of rows by vectors of columns, in tiles of even height."""
    tiles = -(-rows // tile_rows)
    part = -(-rows // tiles)
    full = rows - tiles * (part - 1)
    panels, last = divmod(columns, vectors)
    cycles = 0.0
    for count, height in ((full, part), (tiles - full, part - 1)):
        if count:
            cycles += count * panels * tile_cycles(isa, height, vectors)
            cycles += count * tile_cycles(isa, height, last) if last else 0
    return cycles


def direct_cycles(isa: Isa, window: ImageWindow, outputs: int) -> float:
    """Return the modelled cycles of one core for an image's convolution as a matrix product."""
    rows = window.out_height * window.out_width
    depth = math.prod(window.kernel) * window.channels
    tile_rows, vectors = choose_register_tile(isa, rows, outputs)
    product = depth * _product_cycles(isa, rows, -(-outputs // isa.lanes), tile_rows, vectors)
    gather = rows * depth * 2.5 / isa.lanes
    return gather + _with_weights(isa, product, depth * outputs)


@functools.lru_cache(1024)
def choose_size(isa: Isa, window: ImageWindow, outputs: int) -> int:
    """Return m of the F(m x m, ...) that is fastest for one image, 0 where a product is.

    The batch does not count, so an image has the same bits alone, in a batch and in a part of one.
    """
    costs = {
        made.outputs: winograd_cycles(isa, 1, window, outputs, made) for made in schemes(window)
    }
    if not costs:
        return 0
    best = min(costs, key=lambda size: costs[size])
    return best if costs[best] < direct_cycles(isa, window, outputs) else 0


@functools.lru_cache(1024)
def cut_winograd(
    isa: Isa, batch: int, window: ImageWindow, outputs: int, size: int, threads: int
) -> WinogradCut:
    """Return the cut of a convolution by F(size x size, ...) with the least modelled time."""
    made = scheme(window.kernel[0], window.strides[0], size)
    cuts = _cuts(isa, batch, window, outputs, size)
    best = min(cuts, key=lambda cut: _makespan(isa, window.channels, cut, made, max(threads, 1)))
    if best.tile_count < 1:
        raise InternalError("a convolution without outputs")
    return best


def _cuts(
    isa: Isa, batch: int, window: ImageWindow, outputs: int, size: int
) -> Iterator[WinogradCut]:
    """Yield cuts worth trying."""
    high, wide = -(-window.out_height // size), -(-window.out_width // size)
    count, columns = batch * high * wide, -(-outputs // isa.lanes)
    for blocks in sorted({-(-count // tiles) for tiles in range(1, min(count, 128) + 1)}):
        tiles = -(-count // blocks)
        rows, vectors = choose_register_tile(isa, tiles, outputs)
        rows = -(-tiles // -(-tiles // rows))
        width = vectors * isa.lanes
        panels = -(-columns // vectors)
        even = count % blocks == 0 and tiles % rows == 0
        for groups in (g for g in (1, 2, 3, 4, 6, 8, 12, 16) if g <= panels):
            yield WinogradCut(
                size,
                high,
                wide,
                count,
                tiles,
                blocks,
                groups,
                rows,
                even,
                vectors,
                width,
                panels,
                outputs - (panels - 1) * width,
            )


def _makespan(isa: Isa, channels: int, cut: WinogradCut, made: Scheme, threads: int) -> float:
    """Modelled cycles of all chunks on that many threads."""
    work = chunk_cycles(isa, channels, cut, made)
    chunks = cut.blocks * cut.groups
    rounds = -(-chunks // threads)
    return rounds * work + (0.25 * work if chunks > 1 else 0)


def chunk_cycles(isa: Isa, channels: int, cut: WinogradCut, made: Scheme) -> float:
    """Return the modelled cycles of a chunk."""
    points = made.points**2
    panels = -(-cut.panels // cut.groups)
    columns = panels * cut.vectors
    work = cut.tiles * (-(-channels // isa.lanes) * input_cycles(made) + 40)
    work += cut.tiles * columns * output_cycles(made)
    work += points * channels * _product_cycles(isa, cut.tiles, columns, cut.tile_rows, cut.vectors)
    weights = 4 * points * channels * cut.width
    fits = weights * cut.panels <= isa.l2_bytes // 2
    work += panels * weights * (_CACHE_CYCLES if fits else _MEMORY_CYCLES)
    inputs = 4 * points * channels * cut.tiles
    near = inputs <= isa.l2_bytes // 2
    work += (panels if near else 2 * panels) * inputs * _CACHE_CYCLES
    return work + 1000
