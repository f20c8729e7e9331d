"""Whether Winograd's algorithm pays at a shape, and its chunks: numbers, as a product's are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from trireme.devices.cpu.runtime.product_blocks import cycles_of_rows

NOTHING = (0, 0, 0, 0, 0, 0)
ImageCost = tuple[int, int, int, tuple[float, float], tuple[float, ...], float]
"""What an image costs: outputs of a tile along an axis, rows of a register tile, panels, cycles of
a tile's inputs and of its outputs of one panel, of a panel at every point as in `cycles_of_rows`,
and of reading all weights.
"""


@lru_cache(4096)
def winograd_words(
    threads: int,
    most: int,
    own: ImageCost,
    inputs: tuple[float, float],
    direct: tuple[float, float, float],
    rivals: tuple[ImageCost, ...],
    images: int,
    height: int,
    width: int,
) -> tuple[int, int, int, int, int, int]:
    """Return whether it pays (0 or 1), tiles high and wide, all tiles, and blocks and groups.

    The answer does not depend on the number of images, so an image has the same bits in a batch.
    threads: for which chunks are cut; most: tiles of a chunk
    inputs: bytes of a tile's transformed inputs, and half of the L2 cache
    direct: cycles of one output pixel as a product, of gathering it, and of reading its weights
    rivals: of other schemes, which may be faster
    height, width: of an image's outputs
    """
    pixels = height * width
    by_product = pixels * direct[1] + math.hypot(_PRODUCT * pixels * direct[0], direct[2])
    others = [_image_cycles(rival, height, width) / _RIVAL for rival in rivals]
    if _image_cycles(own, height, width) >= min([by_product, *others]):
        return NOTHING
    side, tile_rows, panels, transforms, products, weights = own
    tiles_high, tiles_wide = -(-height // side), -(-width // side)
    count = images * tiles_high * tiles_wide
    best, found = math.inf, (1, 1)
    for blocks, groups in _cuts(count, most, panels):
        tiles, group = -(-count // blocks), -(-panels // groups)
        near = 1 if inputs[0] * tiles <= inputs[1] else 2
        work = tiles * (transforms[0] + group * transforms[1])
        work += group * _product_cycles(tiles, tile_rows, products)
        work += group * (weights / panels + near * inputs[0] * tiles * CACHE_CYCLES) + 1000
        cost = -(-blocks * groups // threads) * work + (0.25 * work if blocks * groups > 1 else 0)
        if cost < best:
            best, found = cost, (blocks, groups)
    return (1, tiles_high, tiles_wide, count, *found)


def _image_cycles(cost: ImageCost, height: int, width: int) -> float:
    """Cycles of one image on one thread."""
    side, tile_rows, panels, transforms, products, weights = cost
    tiles = -(-height // side) * -(-width // side)
    product = panels * _product_cycles(tiles, tile_rows, products)
    transformed = tiles * (transforms[0] + panels * transforms[1])
    return transformed + math.hypot(_PRODUCT * product, weights)


def _product_cycles(tiles: int, tile_rows: int, products: tuple[float, ...]) -> float:
    """Cycles of one panel at every point; two register tiles are equally high."""
    if tile_rows < tiles < 2 * tile_rows:
        return 2 * products[-(-tiles // 2)]
    return cycles_of_rows(tiles, tile_rows, products)


_RIVAL = 0.8
"""What part of the modelled cycles a rival takes at most: where registers of 16 lanes are done in
halves, fewer multiply-adds are worth more than is modelled (2 x 2 for 4 x 4 took 1.4 times as long
at 0.9).
"""
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
