"""Register tiles bring all of the next panel between them, and their sums stay in registers."""

import re

import numpy as np
import pytest

import trireme
from trireme.devices.cpu.codegen.ir import Function, Var
from trireme.devices.cpu.codegen.target import ISAS, available_isas
from trireme.devices.cpu.kernels.f32.gemm import product_kernel
from trireme.devices.cpu.kernels.f32.product_shape import (
    PACKED,
    MatmulShape,
    Strides,
    blocks_of,
    cut_of,
)
from trireme.devices.cpu.kernels.f32.register_tile import LINE, multiply_tile, part_ahead
from trireme.devices.cpu.kernels.f32.tiling import Size, choose_register_tile
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import ExecutionOptions

AVX512 = ISAS["avx512"]
_JUMP = re.compile(r"\sj\w+\s+(\.?L\w+)")
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


def kernel_text(product):
    cut = cut_of(AVX512, product)
    blocks = blocks_of(AVX512, product, cut, 1, False)
    return product_kernel(AVX512, product, cut, blocks, "gemm").text


def test_products_by_weights_prefetch():
    """Products by packed weights bring the next panel; one row reads them as fast as they come."""
    for rows in (49, 1):
        product = MatmulShape(Size(rows, 512, 256), Strides(256), PACKED, Strides(512))
        assert ("llvm.prefetch" in kernel_text(product)) is (rows > 1)


def test_operands_in_place_are_not_prefetched():
    """A computed B has rows apart, so there is no next panel in one piece."""
    product = MatmulShape(Size(49, 512, 256), Strides(256), Strides(512), Strides(512))
    assert "llvm.prefetch" not in kernel_text(product)


def innermost_loops(assembly):
    """Yield the lines of each loop of x86 code that has no loop inside."""
    lines = assembly.splitlines()
    places = {line.split(":")[0]: number for number, line in enumerate(lines) if ":" in line}
    jumps = ((_JUMP.search(line), number) for number, line in enumerate(lines))
    loops = {(places.get(jump[1], end), end) for jump, end in jumps if jump}
    loops = {(start, end) for start, end in loops if start < end}
    for start, end in loops:
        if not any(start <= other[0] and other[1] < end for other in loops):
            yield lines[start:end]


def tile_columns():
    """Return columns by tile, for each tile that products of open rows get with AVX-512."""
    return {choose_register_tile(AVX512, 480, n, 240, 16, 240): n for n in range(16, 520, 8)}


@pytest.mark.skipif("avx512" not in available_isas(), reason="this machine has no AVX-512")
@pytest.mark.parametrize("columns", tile_columns().values(), ids=str)
def test_accumulators_stay_in_registers(columns):
    b, rng = GraphBuilder("g"), np.random.default_rng(columns)
    x = b.input("x", TensorType(("n", 240), "float32"))
    weights = b.constant("w", rng.standard_normal((240, columns)).astype("f4"))
    scale = b.constant("s", rng.standard_normal(columns).astype("f4"))
    y = b.add("hard_swish", b.add("mul", b.add("matmul", x, weights), scale))
    options = ExecutionOptions(device_options={"cpu": {"isa": "avx512"}})
    with trireme.Session(b.finish(y), devices=["cpu"], execution_options=options) as session:
        session.run({"x": np.zeros((96, 240), "f4")})
        (text,) = (text for name, text in session.kernels("asm").items() if "fully" in name)
    main = max(innermost_loops(text), key=lambda lines: sum("vfmadd" in line for line in lines))
    assert sum("zmm" in line and "rsp" in line for line in main) <= 4
