"""Whether Winograd's algorithm pays at a shape, and its chunks: numbers, as a product's are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from trireme.devices.cpu.runtime.product_blocks import cycles_of_rows

NOTHING = (0, 0, 0, 0, 0, 0)


@lru_cache(4096)
def winograd_words(
    threads: int,
    side: int,
    most: int,
    tile_rows: int,
    panels: int,
    transforms: tuple[float, float],
    products: tuple[float, ...],
    weights: float,
    inputs: tuple[float, float],
    direct: tuple[float, float, float],
    images: int,
    height: int,
    width: int,
) -> tuple[int, int, int, int, int, int]:
    """Return whether it pays (0 or 1), tiles high and wide, all tiles, and blocks and groups.

    The answer does not depend on the number of images, so an image has the same bits in a batch.
    threads: for which chunks are cut
    side, most: outputs of a tile along an axis; tiles of a chunk at most
    transforms: cycles of a tile's inputs, and of its outputs of one panel
    products: of a panel at every point, as in `cycles_of_rows`
    weights: of reading all weights
    inputs: bytes of a tile's transformed inputs, and half of the L2 cache
    direct: cycles of one output pixel as a product, of gathering it, and of reading its weights
    height, width: of an image's outputs
    """
    tiles_high, tiles_wide = -(-height // side), -(-width // side)

    def product(tiles: int) -> float:
        if tile_rows < tiles < 2 * tile_rows:
            return 2 * products[-(-tiles // 2)]
        return cycles_of_rows(tiles, tile_rows, products)

    of_image, pixels = tiles_high * tiles_wide, height * width
    own = of_image * (transforms[0] + panels * transforms[1])
    own += math.hypot(_PRODUCT * panels * product(of_image), weights)
    if own >= pixels * direct[1] + math.hypot(_PRODUCT * pixels * direct[0], direct[2]):
        return NOTHING
    best, found, count = math.inf, (1, 1), images * of_image
    for blocks, groups in _cuts(count, most, panels):
        tiles, group = -(-count // blocks), -(-panels // groups)
        near = 1 if inputs[0] * tiles <= inputs[1] else 2
        work = tiles * (transforms[0] + group * transforms[1]) + group * product(tiles)
        work += group * (weights / panels + near * inputs[0] * tiles * CACHE_CYCLES) + 1000
        cost = -(-blocks * groups // threads) * work + (0.25 * work if blocks * groups > 1 else 0)
        if cost < best:
            best, found = cost, (blocks, groups)
    return (1, tiles_high, tiles_wide, count, *found)


_PRODUCT = 1.1
"""Measured over modelled cycles of products, as in kernels/f32/winograd/plan.py."""
CACHE_CYCLES = 1 / 48
"""Cycles a byte of the L2 cache takes."""


def _cuts(count: int, most: int, panels: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of blocks of tiles and of groups of panels."""
    least = -(-count // most)
    for parts in (1, 2, 4, 8, 16, 32):
        blocks = -(-least // parts) * parts
        if blocks <= count:
            for groups in (1, 2, 4, 8):
                if groups <= panels:
                    yield blocks, groups
