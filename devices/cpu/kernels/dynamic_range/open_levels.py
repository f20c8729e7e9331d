"""Rounding to 8 bits and products of these integers, for any number of rows.

The sums are of integers, so each way to cut them has the same bits. A range is the largest of
magnitudes, in any order.
"""

from __future__ import annotations

from dataclasses import replace

from trireme.devices.cpu.codegen.ir import Word
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.dynamic_range.dynamic_quantize import (
    LevelRounding,
    LineLayout,
    QuantizeKernel,
)
from trireme.devices.cpu.kernels.int8.dequant import Dequantiser
from trireme.devices.cpu.kernels.int8.linear import (
    LinearKernel,
    kernel_name,
    operand_count,
)
from trireme.devices.cpu.kernels.int8.pack import Int8MatmulShape, RegisterTile
from trireme.devices.cpu.kernels.int8.prepare import Image, LineWindow
from trireme.devices.cpu.kernels.int8.product_cut import ProductCut
from trireme.devices.cpu.kernels.int8.split import Repeats
from trireme.devices.cpu.kernels.lowering import finish
from trireme.devices.cpu.kernels.spans import begin_sized

IMAGES = Word(0)
"""The images of an input whose rows have a range each."""


def sized_image_levels(isa: Isa, layout: LineLayout, rounding: LevelRounding) -> Code:
    """Return the kernel of images of one line; words: images, images of a chunk."""
    kernel = QuantizeKernel(isa, layout, rounding)
    fn, pointers, chunk, _ = begin_sized(kernel.name, isa, 3, 2)
    images, size = fn.words
    QuantizeKernel(isa, layout, rounding, (images, 1)).whole(fn, pointers, chunk, size)
    return finish(fn)


def sized_range(isa: Isa, layout: LineLayout, rounding: LevelRounding) -> Code:
    """Return the kernel of the range of one image; words: lines, lines of a chunk, chunks."""
    kernel = QuantizeKernel(isa, layout, rounding)
    fn, pointers, chunk, _ = begin_sized(kernel.range_name, isa, 2, 3)
    lines, size, parts = fn.words
    QuantizeKernel(isa, layout, rounding, (1, lines)).ranges(fn, pointers, chunk, size, parts)
    return finish(fn)


def sized_levels(isa: Isa, layout: LineLayout, rounding: LevelRounding) -> Code:
    """Return the kernel of the levels of one image.

    Words: lines, lines of a chunk, chunks, chunks in which the range was found
    """
    kernel = QuantizeKernel(isa, layout, rounding)
    fn, pointers, chunk, _ = begin_sized(kernel.name, isa, 4, 4)
    lines, size, *counts = fn.words
    kernel = QuantizeKernel(isa, layout, rounding, (1, lines))
    kernel.lines_of_ranges(fn, pointers, chunk, size, (counts[0], counts[1]))
    return finish(fn)


def sized_small_levels(isa: Isa, layout: LineLayout, rounding: LevelRounding) -> Code:
    """Return the kernel of a small image, whose range it finds; operands as of `sized_levels`."""
    kernel = QuantizeKernel(isa, layout, rounding)
    fn, (x, _, *made), _, _ = begin_sized(f"small_{kernel.name}", isa, 4, 4)
    kernel = QuantizeKernel(isa, layout, rounding, (1, fn.words[0]))
    kernel.whole(fn, (x, *made), 0, 1)
    return finish(fn)


def sized_linear(
    isa: Isa,
    product: Int8MatmulShape,
    image: Image,
    tile: RegisterTile,
    epilogue: Dequantiser,
    row_factor: int,
    repeats: Repeats | None,
) -> Code:
    """Return the kernel of a product of as many rows as a tile has, or more; words: a ProductCut.

    product, image: of one row
    """
    count = operand_count(product, epilogue, repeats)
    name = kernel_name(epilogue, image.dot, tile)
    fn, pointers, chunk, local = begin_sized(name, isa, count, 5)
    rows, *cut = fn.words
    if not epilogue.shared:
        epilogue = replace(epilogue, images=rows)
    source = image, LineWindow(1, 1, 1, 1, 1)
    kernel = LinearKernel(
        isa, product, source, tile, epilogue, row_factor, ProductCut(rows, *cut), repeats
    )
    kernel.emit(fn, pointers, chunk, local)
    return finish(fn)
