"""The register tile of a matrix product, the one with the least modelled cycles.

The choice depends on shapes, the instruction set and
the cache sizes only. So the same product is always computed in the same order.
"""

from __future__ import annotations

import functools
import math

from trireme.devices.cpu.codegen.target import Isa
from trireme.support.records import dataclass

_WAY_BYTES = 4096
_ROW_SHARE = 0.0008
"""What a row of a tile costs, as a share of the tile, where B lies in the L1 cache: as fast tiles
of fewer rows and more columns write longer parts of C. With AVX-512, 4 x 96 took 0.78 of the time
of 12 x 32 for a depth of 16, and 0.95 for 32. With the 16 registers of AVX2, 4 x 24 took 1.13
times as long as 6 x 16.
"""

_SPILLED = (5, 5)
"""Tile for which LLVM 20 has too few of AVX-512's registers: where an epilogue follows, 14 of 25
accumulators go to memory in each step. A convolution of 240 channels took 1.25 times as long as
with 9 x 3; no other tile spills.
"""


@dataclass(frozen=True)
class Size:
    """The size of a batch of products of A [rows, depth] and B [depth, columns]."""

    rows: int
    columns: int
    depth: int
    batch: int = 1


def tile_cycles(isa: Isa, rows: int, vectors: float) -> float:
    """Cycles of one step of depth in a register tile: multiply-adds, loads or latency.

    vectors: of which the last may be half a one
    """
    fmas = rows * vectors
    loads = (vectors + rows) / 2
    return max(fmas / isa.fma_per_cycle, loads, isa.fma_cycles) + 0.25


def lanes_for(isa: Isa, columns: int) -> int:
    """Lanes of the vector that holds so many columns: half a register where that is enough.

    Half a register takes half the time where registers of 16 lanes are done in two halves, as on
    Zen 4, and no longer elsewhere.
    """
    half = isa.lanes // 2
    return half if columns <= half and half >= 8 else isa.lanes


def vectors_of(isa: Isa, columns: int) -> float:
    """Vectors that columns take; half a one for the last where half a register is enough."""
    whole, rest = divmod(columns, isa.lanes)
    return whole + lanes_for(isa, rest) / isa.lanes if rest else whole


def _register_tiles(isa: Isa) -> list[tuple[int, int]]:
    """Every tile whose accumulators, columns and one broadcast fit the registers."""
    return [
        (rows, vectors)
        for vectors in range(1, 9)
        for rows in range(1, 17)
        if rows * vectors + vectors + 1 <= isa.registers and (rows, vectors) != _SPILLED
    ]


def most_rows(isa: Isa, a_row: int) -> int:
    """Rows of A, that many elements apart, which the L1 cache holds at a time.

    Rows whose distance is a power of two meet in few sets of the cache. Rows 1024 elements apart
    meet in one, and a tile of 14 of them ran a quarter slower than one of 7. A way of the cache is
    a page.
    """
    sets = _WAY_BYTES // math.gcd(_WAY_BYTES, max(4 * a_row, 64)) if a_row else 64
    return sets * (isa.l1_bytes // _WAY_BYTES)


def is_near(isa: Isa, depth: int, columns: int) -> bool:
    """Whether B lies in the L1 cache; it does not where the depth is not known, which is 0."""
    return 0 < 4 * depth * columns <= isa.l1_bytes


@functools.lru_cache(4096)
def choose_register_tile(
    isa: Isa, rows: int | None, columns: int, a_row: int = 0, most: int = 16, depth: int = 0
) -> tuple[int, int]:
    """Return (tile_rows, vectors) with the least modelled cycles for a product of that size.

    rows: None where they are not known, and no tile is better for what is left of them
    a_row: elements between rows of A where they are read in place; 0 where they were copied
    most: rows of a tile
    depth: 0 where it is not known
    """
    row_share = _ROW_SHARE if isa.registers >= 32 and is_near(isa, depth, columns) else 0

    def cycles(tile: tuple[int, int]) -> tuple[float, int]:
        of = tile[0] if rows is None else rows
        tile_rows, vectors = min(tile[0], of), tile[1]
        panels, last = divmod(vectors_of(isa, columns), vectors)
        whole, rest = divmod(of, tile_rows)
        total = whole * panels * tile_cycles(isa, tile_rows, vectors)
        total += whole * tile_cycles(isa, tile_rows, last) if last else 0
        total += panels * tile_cycles(isa, rest, vectors) if rest else 0
        total += tile_cycles(isa, rest, last) if rest and last else 0
        variants = (1 + bool(rest)) * (1 + bool(last))
        return total / of * (1 + 0.005 * variants + row_share * tile_rows), -tile_rows * vectors

    most = min(most, most_rows(isa, a_row))
    tiles = [tile for tile in _register_tiles(isa) if tile[0] <= most]
    tile_rows, vectors = min(tiles, key=cycles)
    vectors = min(vectors, -(-columns // isa.lanes))
    return min(tile_rows, rows or tile_rows), vectors
