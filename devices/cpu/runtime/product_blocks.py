"""How a product for every shape is cut into chunks: numbers alone, which a stored program needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache


@lru_cache
def _parts(threads: int) -> tuple[tuple[int, int], ...]:
    """Return the numbers of blocks of rows and groups of columns that are tried."""
    shares = {threads & -threads, threads}  # a power of two, and what an odd number shares evenly
    counts = sorted({share << bits for share in shares for bits in range(7)} | {1, 2, 4, 8})
    most = 16 * threads
    pairs = itertools.product(counts, counts)
    return tuple((rows, columns) for rows, columns in pairs if rows * columns <= most)


@lru_cache(4096)
def block_words(
    lanes: int,
    l2_bytes: int,
    gathers: bool,
    threads: int,
    is_open: bool,
    tile_rows: int,
    vectors: int,
    slice_depth: int,
    cycles: tuple[float, ...],
    rows: int,
    columns: int,
    depth: int,
    batch: int,
) -> tuple[int, int, int, int]:
    """Return the cut with the least modelled cycles on so many threads.

    It has rows of a block, blocks, groups of columns, and panels of a group.
    gathers: whether A is gathered; is_open: whether blocks may have any rows left; else all the
        same, or the last alone. slice_depth: depth that is done before the next, 0 for all
    cycles: of one step of depth, as in `cycles_of_rows`
    """
    width = vectors * lanes
    panels = -(-columns // width)
    b_rate = 48 if columns * depth * 4 <= l2_bytes // 2 else 8
    a_cycles = depth * (2.5 / lanes if gathers else 0.25)
    fits = max(l2_bytes // 2 // (4 * (slice_depth or depth)) // tile_rows, 1) * tile_rows

    def block_cycles(block: int) -> float:
        """Cycles of so many rows and one column, but for those of B."""
        return cycles_of_rows(block, tile_rows, cycles) * depth / width

    best, found = math.inf, (rows, 1, 1, panels)
    for (block, blocks), group in _cuts(rows, tile_rows, panels, fits, threads):
        left = rows - (blocks - 1) * block
        if not is_open and block % tile_rows not in (0, left % tile_rows):
            continue
        some_columns = min(group * width, columns)
        groups = -(-panels // group)
        chunks = batch * blocks * groups
        fixed = some_columns * depth * 4 / b_rate + block * a_cycles + 400
        work = some_columns * block_cycles(block) + fixed
        cost = -(-chunks // threads) * work + (0.25 * work if chunks > 1 else 0)
        if cost < best:
            best, found = cost, (block, blocks, groups, group)
    return found


def cycles_of_rows(rows: int, tile_rows: int, cycles: Sequence[float]) -> float:
    """Return the cycles of tiles of all rows, and of what is left; cycles: of 0 to all rows."""
    whole, rest = divmod(rows, tile_rows)
    return whole * cycles[-1] + cycles[rest]


def _cuts(
    rows: int, tile_rows: int, panels: int, fits: int, threads: int
) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield rows of a block, blocks, and panels of a group; blocks are whole tiles, or even."""
    tiles = -(-rows // tile_rows)
    for by_rows, by_columns in _parts(threads):
        if by_rows > tiles or by_columns > panels:
            continue
        whole = -(-tiles // by_rows) * tile_rows
        for block in dict.fromkeys((min(whole, fits, rows), min(-(-rows // by_rows), fits))):
            yield (block, -(-rows // block)), -(-panels // by_columns)
