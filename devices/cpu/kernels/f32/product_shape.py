"""A matrix product: its size and strides, and its cut into tiles, slices of depth and chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.tiling import (
    Size,
    choose_register_tile,
    is_near,
    tile_cycles,
)
from trireme.devices.cpu.kernels.lowering import varies
from trireme.devices.cpu.kernels.opaque import opaque
from trireme.devices.cpu.runtime.product_blocks import block_words
from trireme.support.records import dataclass

_USUAL = 480
"""Rows (or columns) for which tiles are chosen where they vary."""
_MOST_LINES = 6
"""Rows of a tile whose distance in A varies: each has an address register of its own."""
_BLOCK_ROWS = 96
"""Rows of a block that a slice of depth is cut for."""
CUT_WORDS = 4
"""Words of the blocks of a product whose sizes vary; they follow those of the product."""


@dataclass(frozen=True)
class Strides:
    """Elements from a row of a matrix to the next, and from a matrix to that of the next batch.

    batch: 0 where all batches use one matrix
    """

    row: int
    batch: int = 0


PACKED, PACKED_EACH = Strides(0), Strides(0, 1)
"""A packed B: one for all batches, or one for each."""


@dataclass(frozen=True)
class MatmulShape:
    """Size and strides of a batch of products with their epilogue.

    bias_batch: elements from a batch's bias to the next
    window: how rows of A are gathered; None where A is walked in place
    """

    size: Size
    a: Strides
    b: Strides
    c: Strides
    bias_batch: int = 0
    bias: bool = False
    residual: bool = False
    activation: str = ""
    window: ImageWindow | None = None


@dataclass(frozen=True)
class Cut:
    """The register tile of a product, and the depth that is done before the next.

    vectors: of a tile's columns
    slice: elements of depth; 0 for all of a depth that varies
    stride: elements between gathered rows
    """

    tile_rows: int
    vectors: int
    slice: int
    stride: int


class Blocks(NamedTuple):
    """How a product is cut into chunks: numbers, or Words where sizes vary.

    block_rows, blocks: rows of a block, and blocks of rows
    groups, group_panels: groups of columns, and panels of a group
    """

    block_rows: int
    blocks: int
    groups: int
    group_panels: int


def cut_of(isa: Isa, product: MatmulShape) -> Cut:
    """Return the tile and the slice of a product with the least modelled cycles."""
    size, window = product.size, product.window
    columns = _USUAL if varies(size.columns) else size.columns
    a_row = 0 if window or varies(product.a.row) else product.a.row
    most = _MOST_LINES if not window and varies(product.a.row) else 16
    depth = 0 if varies(size.depth) else size.depth
    rows = None if varies(size.rows) else size.rows
    usual = rows or (None if is_near(isa, depth, columns) else _USUAL)
    tile_rows, vectors = choose_register_tile(isa, usual, columns, a_row, most, depth)
    if not depth:
        return Cut(tile_rows, vectors, 0, 0)
    unit = window.row if window else 8
    block = min(rows or _BLOCK_ROWS, _BLOCK_ROWS)
    most = min(isa.l2_bytes // 2 // (4 * block), isa.l2_bytes // 4 // (4 * vectors * isa.lanes))
    slices = -(-depth // max(most, unit))
    slice_ = min(depth, -(-depth // slices // unit) * unit)
    return Cut(tile_rows, vectors, slice_, -(-slice_ // 16) * 16 + 16)


def blocks_of(isa: Isa, product: MatmulShape, cut: Cut, threads: int, is_open: bool) -> Blocks:
    """Return the blocks with the least modelled cycles on so many threads, or on two.

    is_open: whether the code serves every shape
    """
    tile_rows, vectors = cut.tile_rows, cut.vectors
    heights = rest_heights(tile_rows) if is_open else ()
    tiles = tile_rows, vectors, cut.slice, tuple(cycles_by_rows(isa, tile_rows, vectors, heights))
    threads = max(threads, 2)
    found = partial(
        block_words, isa.lanes, isa.l2_bytes, bool(product.window), threads, is_open, *tiles
    )
    size = product.size
    return Blocks(*opaque(found, size.rows, size.columns, size.depth, size.batch))


def local_bytes(cut: Cut, blocks: Blocks, product: MatmulShape) -> int:
    """Return the bytes that each thread needs of its own."""
    return 4 * cut.stride * min(blocks.block_rows, product.size.rows) if product.window else 0


def cycles_by_rows(
    isa: Isa, tile_rows: int, vectors: int, heights: Sequence[int]
) -> Iterator[float]:
    """Yield the cycles of one step of depth of 0 to all rows of a tile.

    heights: of tiles that do the rows, before one of what is left
    """
    for rows in range(tile_rows):
        left, cycles = rows, 0.0
        for height in heights:
            tiles = (left + 1) // height
            left = max(left - tiles * height, 0)
            cycles += tiles * tile_cycles(isa, height, vectors)
        yield cycles + (tile_cycles(isa, left, vectors) if left else 0)
    yield tile_cycles(isa, tile_rows, vectors)


def rest_heights(tile_rows: int) -> list[int]:
    """Return the heights of tiles at the end of a block of a number of rows that is read.

    Tiles of two rows or one follow. Four rows are enough to hide the latency of multiply-adds,
    eight read B half as often.
    """
    return [height for height in (8, 4) if height <= tile_rows]
