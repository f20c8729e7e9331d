"""How a window kernel for every shape is cut into chunks: numbers, as a product's are."""

from __future__ import annotations

from functools import lru_cache

_LEAST_BLOCK = 64
"""Channels of a block: its tiles are entered again for each block."""


@lru_cache(4096)
def window_words(
    lanes: int, l1_bytes: int, channels: int, taps: int, rows: int, width: int, seconds: float
) -> tuple[int, int, int, int]:
    """Return the rows of a chunk, the chunks of a block, channels of a block, and chunks.

    A chunk is some rows of a block of channels. There is one block where the input of a row fits
    the L1 cache. Else blocks are so small that a row finds most of its input there, which the row
    before it has read, as long as blocks are not too small.

    taps: rows of the kernel; width: of the image; seconds: that all rows take
    """
    part, parts = even_chunks(rows, seconds)
    fits = max(l1_bytes * 3 // 4 // (4 * taps * max(width, 1)), 1)
    if parts == 1 or fits >= channels or fits < _LEAST_BLOCK:
        return part, parts, channels, parts
    blocks = -(-channels // fits)
    block = -(-channels // (blocks * lanes)) * lanes
    part = -(-rows // max(2 * ((parts + blocks) // (2 * blocks)), 2))
    parts = -(-rows // part)
    return part, parts, block, parts * -(-channels // block)


@lru_cache(4096)
def even_chunks(total: int, seconds: float) -> tuple[int, int]:
    """Cut `total` equal units of work into chunks: as `lowering.deal`, but without a search.

    Returns the units of a chunk and the number of chunks, even where threads pay.
    """
    if seconds < 1.5e-6 or total < 2:
        return max(total, 1), 1
    wanted = min(seconds / 1e-6, max(16.0, seconds / 25e-6), float(1 << 14))
    size = -(-total // min(max(2, round(wanted / 2) * 2), total))
    return size, -(-total // size)
