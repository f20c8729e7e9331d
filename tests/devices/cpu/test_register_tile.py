"""The prefetches of register tiles: the tiles of a panel bring all of the next one."""

import re

import pytest

from trireme.devices.cpu.codegen.ir import Function, Var
from trireme.devices.cpu.codegen.target import ISAS
from trireme.devices.cpu.kernels.f32.gemm import (
    PACKED,
    MatmulShape,
    Strides,
    cut_product,
    product_kernel,
)
from trireme.devices.cpu.kernels.f32.register_tile import LINE, multiply_tile, part_ahead
from trireme.devices.cpu.kernels.f32.tiling import Size

AVX512 = ISAS["avx512"]
_AT = re.compile(r"(%\w+) = getelementptr float, ptr (%\w+), i64 (\d+)")
_BRINGS = re.compile(r"call void @llvm.prefetch.p0\(ptr (%\w+), i32 0, i32 2, i32 1\)")


def brought(text):
    """The element offsets from %next that a function prefetches into the L2 cache."""
    places = {"%next": 0}
    for name, base, offset in _AT.findall(text):
        if base in places:
            places[name] = places[base] + int(offset)
    return {places[name] for name in _BRINGS.findall(text)}


@pytest.mark.parametrize("unroll", [1, 2, 4])
@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 7, 16])
def test_the_tiles_bring_the_whole_panel(tiles, unroll):
    """Each line of a panel of one step is brought by a tile, and few lines beyond it."""
    width, found = 32, set()
    for tile in range(tiles):
        fn = Function("walk", AVX512, ["ptr a", "ptr b", "ptr next"])
        a, b, following = fn.arguments
        ahead = part_ahead(fn, following, 14, (tile, tiles), (unroll, width), unroll)
        if ahead is None:
            assert tiles == 1 or tiles > 2 * unroll * width // LINE
            return
        acc = [[Var(fn, fn.isa.vector, 0.0)]]
        multiply_tile(
            fn,
            acc,
            [(a, 0)],
            (b, width),
            lambda at, fn=fn: [fn.load(fn.isa.vector, at)],
            unroll,
            unroll,
            ahead=ahead,
        )
        found |= brought(fn.text())
    lines = unroll * width // LINE
    assert found >= set(range(0, lines * LINE, LINE))
    assert len(found) < lines + tiles


def test_products_by_weights_prefetch():
    """Products by packed weights bring the next panel; one row reads them as fast as they come."""
    for rows in (49, 1):
        product = MatmulShape(Size(rows, 512, 256), Strides(256), PACKED, Strides(512))
        code, _, _ = product_kernel(AVX512, product, cut_product(AVX512, product, 1), "gemm")
        assert ("llvm.prefetch" in code.text) is (rows > 1)


def test_operands_in_place_are_not_prefetched():
    """A computed B has rows apart, so there is no next panel in one piece."""
    product = MatmulShape(Size(49, 512, 256), Strides(256), Strides(512), Strides(512))
    code, _, _ = product_kernel(AVX512, product, cut_product(AVX512, product, 1), "matmul")
    assert "llvm.prefetch" not in code.text
