"""The cut of a product for every shape: all of it, once, and even for two threads."""

import random

import pytest

from trireme.devices.cpu.codegen.target import ISAS
from trireme.devices.cpu.kernels.f32.product_shape import cycles_by_rows, rest_heights
from trireme.devices.cpu.kernels.f32.tiling import choose_register_tile, is_near
from trireme.devices.cpu.runtime.product_blocks import block_words, cycles_of_rows

SEED = 28


def words(isa, tile, rows, columns, depth, batch=1, threads=2, is_open=True):
    cycles = tuple(cycles_by_rows(isa, *tile, rest_heights(tile[0]) if is_open else ()))
    given = isa.lanes, isa.l2_bytes, False, threads, is_open, *tile, depth, cycles
    return block_words(*given, rows, columns, depth, batch)


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon", "sse4"])
def test_blocks_and_groups_are_the_whole_product_once(name):
    print("seed", SEED)
    isa, rng = ISAS[name], random.Random(SEED)
    for _ in range(500):
        rows, columns, depth = (round(10 ** rng.uniform(0, 3.5)) for _ in range(3))
        tile = choose_register_tile(isa, 480, columns)
        how = {"threads": rng.choice((2, 3, 16)), "is_open": rng.random() < 0.5}
        block, blocks, groups, panels = words(isa, tile, rows, columns, depth, **how)
        assert block * (blocks - 1) < rows <= block * blocks
        width = panels * tile[1] * isa.lanes
        assert width * (groups - 1) < columns <= width * groups
        left = (rows - block * (blocks - 1)) % tile[0]
        assert how["is_open"] or block % tile[0] in (0, left)


def test_two_threads_share_few_rows_evenly():
    """28 rows in tiles of 12 were 24 and 4."""
    isa = ISAS["avx512"]
    by_rows = tuple(cycles_by_rows(isa, 12, 2, rest_heights(12)))
    for rows in range(8, 200):
        block, blocks, groups, panels = words(isa, (12, 2), rows, 96, 576)
        chunks = []
        for first in range(0, rows, block):
            cycles = cycles_of_rows(min(block, rows - first), 12, by_rows)
            chunks += [cycles * min(panels, 3 - g * panels) for g in range(groups)]
        assert len(chunks) == blocks * groups
        mine = sum(chunks[: (len(chunks) + 1) // 2])
        assert mine / sum(chunks) <= 2 / 3, rows
    assert words(isa, (12, 2), 28, 96, 576)[:2] == (14, 2)


def test_a_small_right_side_has_wide_tiles():
    """96 columns in one tile write whole rows of the result; 12 x 32 took 1.28 times as long."""
    isa = ISAS["avx512"]
    assert is_near(isa, 16, 96) and not is_near(isa, 384, 96) and not is_near(isa, 0, 96)
    assert choose_register_tile(isa, None, 96, 16, 16, 16) == (4, 6)
    assert choose_register_tile(isa, 12544, 96, 16, 16, 16)[1] == 6
    assert choose_register_tile(isa, None, 144, 24, 16, 24) == (9, 3)
    assert choose_register_tile(isa, 480, 96, 384, 16, 384) == (12, 2)
    assert choose_register_tile(ISAS["avx2"], None, 96, 16, 16, 16) == (6, 2)
