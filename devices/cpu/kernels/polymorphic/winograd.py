"""Convolutions by Winograd's algorithm for every height, width and batch.

A conv has one scheme for every shape, that of an image as large as nets have with so many channels.
The product is used at shapes where it is faster. Tiles of a chunk are at most as many as fill the
thread's memory, which is laid out once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from trireme.devices.cpu.codegen.index import plus, times
from trireme.devices.cpu.codegen.ir import Index, Value, Word
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.gemm import MatmulShape
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.tiling import choose_register_tile, tile_cycles
from trireme.devices.cpu.kernels.f32.winograd.conv import CYCLES_PER_S, is_finite
from trireme.devices.cpu.kernels.f32.winograd.kernel import (
    WinogradEmitter,
    kernel_note,
    scheme_of,
)
from trireme.devices.cpu.kernels.f32.winograd.layout import (
    WinogradConv,
    WinogradOperands,
    layout_of,
)
from trireme.devices.cpu.kernels.f32.winograd.plan import (
    WinogradCut,
    choose_size,
    chunk_cycles,
    input_cycles,
    output_cycles,
    schemes,
    weights_cycles,
    winograd_cycles,
)
from trireme.devices.cpu.kernels.f32.winograd.transforms import (
    Scheme,
    panels_shape,
    transform_weights,
)
from trireme.devices.cpu.kernels.lowering import Context, finish
from trireme.devices.cpu.kernels.polymorphic.gemm import SizedCut, cut_for_all
from trireme.devices.cpu.kernels.polymorphic.opaque import opaque
from trireme.devices.cpu.kernels.polymorphic.products import ProductVariant
from trireme.devices.cpu.kernels.polymorphic.sample import generalised
from trireme.devices.cpu.kernels.polymorphic.step import Sized, begin_sized
from trireme.devices.cpu.runtime.winograd_blocks import winograd_words
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array

_USUAL = 3584
"""Channels times the side of an image, in nets that halve the image where they double channels."""
_SIDES = 7, 112
"""The least and the largest side of a usual image."""
_MOST_TILES = 128
REST = 2
"""Rows by which the register tiles differ that do what is left of a chunk."""
_CUT_WORDS = 5
"""tiles_high, tiles_wide, tile_count, blocks, groups: words that follow those of the window."""
WindowOf = Callable[[Graph, Node], ImageWindow]


def winograd_variant(
    context: Context, node: Node, product: MatmulShape, window_of: WindowOf
) -> ProductVariant | None:
    """Return the variant of a conv's product by Winograd's algorithm; None where none should be."""
    isa, window = context.isa, window_of(context.graph, node)
    outputs = context.type(node.used[1]).dims[0]
    if not context.winograd or node.attrs["groups"] != 1 or not schemes(window):
        return None
    usual = _usual(window, outputs)
    size = choose_size(isa, usual, outputs)
    if not size or not is_finite(context.constant(node.used[1])):
        return None
    made, by_product = scheme_of(window, size), cut_for_all(isa, product)
    known, count, words = generalised(window, node.label)
    tiles = math.ceil(usual.out_height / size) ** 2
    cut = _cut(isa, window, outputs, made, tiles, count)
    conv = WinogradConv(0, known, outputs, product.bias, product.residual, product.activation)
    code = context.kernel(sized_winograd_kernel, conv, cut, by_product, count + _CUT_WORDS)
    nbytes = 4 * math.prod(panels_shape(made, outputs, window.channels, cut.width))

    def pack() -> Array:
        return transform_weights(context.constant(node.used[1]), made, cut.width)

    u = context.pack_later(node.used[1], f"winograd {size} {cut.width}", nbytes, pack)
    local = layout_of(isa, conv, cut, made).nbytes
    tile_s = winograd_cycles(isa, 1, usual, outputs, made) / CYCLES_PER_S / tiles
    costs = _costs(isa, window, product, cut, by_product, made)
    found = partial(winograd_words, context.threads, *costs)

    def at_shape(graph: Graph, _: MatmulShape) -> Sized | None:
        one, images = window_of(graph, node), graph.values[node.used[0]].type.dims[0]
        pays, *dealt = opaque(found, images, one.out_height, one.out_width)
        if not pays:
            return None
        given = (*words(one), *dealt)
        return Sized(given, dealt[3] * dealt[4], dealt[2] * tile_s, local, dealt[4])

    return ProductVariant(code, (u,), count + _CUT_WORDS, at_shape)


def _usual(window: ImageWindow, outputs: int) -> ImageWindow:
    """Return the window over an image as large as nets have with so many channels."""
    side = max(_SIDES[0], min(_USUAL // outputs, _SIDES[1]))
    return replace(window, height=side, width=side, out_height=side, out_width=side)


def _cut(
    isa: Isa, window: ImageWindow, outputs: int, made: Scheme, usual: int, words: int
) -> WinogradCut:
    """Return the cut for all shapes.

    usual: tiles of a usual image; words: how many words come before its own
    """
    rows, vectors = choose_register_tile(isa, usual, outputs)
    width = vectors * isa.lanes
    panels = -(-outputs // width)
    last = outputs - (panels - 1) * width
    at: list[Any] = [Word(words + k) for k in range(_CUT_WORDS)]
    cut = WinogradCut(
        made.outputs,
        at[0],
        at[1],
        at[2],
        0,
        at[3],
        at[4],
        rows,
        False,
        vectors,
        width,
        panels,
        last,
    )
    step = math.lcm(rows, REST)

    def cycles(tiles: int) -> float:
        return chunk_cycles(isa, window.channels, replace(cut, tiles=tiles, groups=1), made) / tiles

    return replace(cut, tiles=min(range(step, max(_MOST_TILES, step) + 1, step), key=cycles))


def _cycles_by_rows(isa: Isa, tile_rows: int, vectors: int) -> Iterator[float]:
    """Yield the cycles of one step of depth in a register tile of 0 to all rows."""
    for rows in range(tile_rows + 1):
        made = min(rows + rows % REST, tile_rows)
        yield tile_cycles(isa, made, vectors) if rows else 0.0


def _costs(
    isa: Isa,
    window: ImageWindow,
    product: MatmulShape,
    cut: WinogradCut,
    by_product: SizedCut,
    made: Scheme,
) -> tuple[Any, ...]:
    """Return the arguments of `winograd_words` between threads and images."""
    points, depth = made.points**2, window.channels
    outputs, direct_depth = product.size.columns, product.size.depth
    row_bytes = layout_of(isa, WinogradConv(0, window, outputs, False, False, ""), cut, made).v_row
    one = by_product.vectors
    vectors = -(-outputs // isa.lanes)
    of_row = tile_cycles(isa, by_product.tile_rows, one) / by_product.tile_rows
    return (
        made.outputs,
        cut.tiles,
        cut.tile_rows,
        cut.panels,
        (-(-depth // isa.lanes) * input_cycles(made) + 40, cut.vectors * output_cycles(made)),
        tuple(points * depth * one for one in _cycles_by_rows(isa, cut.tile_rows, cut.vectors)),
        weights_cycles(isa, points * depth * outputs),
        (4 * points * row_bytes, isa.l2_bytes // 2),
        (
            direct_depth * of_row * vectors / one,
            direct_depth * 2.5 / isa.lanes,
            weights_cycles(isa, direct_depth * outputs),
        ),
    )


def sized_winograd_kernel(
    isa: Isa, conv: WinogradConv, cut: WinogradCut, by_product: SizedCut, words: int
) -> Code:
    """Return the kernel for every shape.

    Operands: as those of `sized_product_kernel`, with the transformed weights before C
    """
    made = scheme_of(conv.window, cut.outputs)
    name = f"conv_f32_winograd{kernel_note(made)}_{cut.tile_rows}x{cut.vectors}"
    count = 4 + conv.bias + conv.residual
    fn, operands, chunk, local = begin_sized(name, isa, count, words)
    x, b, *extra, u, y = operands
    conv, cut = fn.known(conv), fn.known(cut)
    given = WinogradOperands.of(conv, x, u, (b,), extra, y)
    emitter = _SizedWinograd(fn, conv, cut, made, layout_of(isa, conv, cut, made), given, local)
    emitter.panel_width = by_product.vectors * isa.lanes
    emitter.chunk(chunk)
    return finish(fn)


class _SizedWinograd(WinogradEmitter):
    """Writes a Winograd kernel whose tiles are as many as words say.

    panel_width: columns of a packed panel of the product's weights
    """

    panel_width: int

    def turn(self, i: Index) -> tuple[Index, int]:
        """Two register tiles bring the next point's U: how many there are is not known."""
        return self.fn.minimum(i, 1), 2

    def product(self, v: Value, u: Value, m: Value, vectors: int) -> None:
        """Emit M = V U for one point: tiles of all rows, then one or two of those that are left.

        The last may reach beyond the chunk's tiles, but not beyond the memory for the most.
        """
        fn, rows = self.fn, self.cut.tile_rows
        whole, times, left = self._tiles()
        for i in fn.range(0, whole):
            self.tile(i, self.i64(i) * rows, rows, v, u, m, vectors)
        for height in range(REST, rows, REST):
            with fn.when(fn.compare("eq", left, height)):
                for i in fn.range(0, times):
                    row = whole * rows + self.i64(i) * height
                    self.tile(whole + i, row, height, v, u, m, vectors, steps=1)

    def _tiles(self) -> tuple[Value, Value, Value]:
        """Return how many tiles have all rows, and how many are left, of how many rows each.

        Two tiles are equally high, so that each brings its half of what comes next in time.
        """
        fn, rows, count = self.fn, self.cut.tile_rows, self.count
        are_two = fn.compare("ult", count - (rows + 1), rows - 1)
        whole = fn.select(are_two, 0, self.i64(fn.integer("udiv", count, rows)))
        times = fn.select(are_two, self.i64(2), 1)
        half = self.i64(fn.integer("udiv", count + 1, 2))
        left = fn.select(are_two, half, self.i64(fn.integer("urem", count, rows)))
        left = left + self.i64(fn.integer("urem", left, REST))
        are_whole = fn.compare("sge", left, rows)
        return fn.select(are_whole, whole + times, whole), times, left

    def weight_at(self, column: Value, count: int) -> Callable[[Index, Index, Index], Value]:
        """Return what loads weights from the panels of the product."""
        fn, width, channels = self.fn, self.panel_width, self.conv.window.channels
        kernel = self.scheme.kernel
        panel, at = (fn.integer(op, column, width) for op in ("udiv", "urem"))
        depth = kernel * kernel * channels
        (packed,) = self.weights
        place = fn.at(packed, plus(fn, times(fn, panel, depth * width), at))

        def load(kh: Index, kw: Index, c: Index) -> Value:
            row = (self.i64(kh) * kernel + kw) * channels + c
            return fn.load(self.type, fn.at(place, row * width))

        return load
