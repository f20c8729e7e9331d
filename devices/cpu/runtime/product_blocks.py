"""How a product for every shape is cut into chunks: numbers alone, which a stored program needs."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

_PARTS = tuple(
    (rows, columns)
    for rows, columns in itertools.product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16))
    if rows * columns <= 32
)
"""Numbers of blocks of rows and groups of columns that are tried."""


@lru_cache(4096)
def block_words(
    lanes: int,
    l2_bytes: int,
    gathers: bool,
    tile_rows: int,
    vectors: int,
    slice_depth: int,
    cycles: float,
    rows: int,
    columns: int,
    depth: int,
    batch: int,
) -> tuple[int, int, int, int]:
    """Return the cut with the least modelled cycles on two threads.

    It has rows of a block, blocks, groups of columns, and panels of a group.
    gathers: whether A is gathered; slice_depth: depth that is done before the next, 0 for all
    cycles: of a multiply-add in a tile
    """
    width = vectors * lanes
    tiles, panels = -(-rows // tile_rows), -(-columns // width)
    b_rate = 48 if columns * depth * 4 <= l2_bytes // 2 else 8
    a_rate = 2.5 / lanes if gathers else 0.25
    fits = max(l2_bytes // 2 // (4 * (slice_depth or depth)) // tile_rows, 1)
    best, found = math.inf, (rows, 1, 1, panels)
    for by_rows, by_columns in _PARTS:
        if by_rows > tiles or by_columns > panels:
            continue
        block, group = min(-(-tiles // by_rows), fits), -(-panels // by_columns)
        some_rows, some_columns = min(block * tile_rows, rows), min(group * width, columns)
        blocks, groups = -(-tiles // block), -(-panels // group)
        chunks = batch * blocks * groups
        work = some_rows * some_columns * depth * cycles + some_columns * depth * 4 / b_rate
        work += some_rows * depth * a_rate + 400
        cost = -(-chunks // 2) * work + (0.25 * work if chunks > 1 else 0)
        if cost < best:
            best, found = cost, (block * tile_rows, blocks, groups, group)
    return found
