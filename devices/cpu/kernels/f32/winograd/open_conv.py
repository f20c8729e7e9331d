"""Convolutions by Winograd's algorithm for every height, width and batch.

A conv has one scheme for every shape, that of an image as large as nets have with so many channels.
The product is used at shapes where it is faster. Tiles of a chunk are at most as many as fill the
thread's memory, which is laid out once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trireme.devices.cpu.codegen.index import plus, times
from trireme.devices.cpu.codegen.ir import Index, Value, Word
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.product_shape import Cut, MatmulShape, cut_of
from trireme.devices.cpu.kernels.f32.product_step import ProductVariant
from trireme.devices.cpu.kernels.f32.tiling import choose_register_tile, tile_cycles
from trireme.devices.cpu.kernels.f32.winograd.conv import (
    CYCLES_PER_S,
    is_finite,
    may_transform,
)
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
    weights_cycles,
    winograd_cycles,
)
from trireme.devices.cpu.kernels.f32.winograd.transforms import (
    Scheme,
    panels_shape,
    transform_weights,
)
from trireme.devices.cpu.kernels.lowering import Context, Packed, Sized, finish
from trireme.devices.cpu.kernels.opaque import opaque
from trireme.devices.cpu.kernels.sample import generalised
from trireme.devices.cpu.kernels.spans import begin_sized
from trireme.devices.cpu.runtime.winograd_blocks import ImageCost, winograd_words
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array

_USUAL = 3584
"""Channels times the side of an image, in nets that halve the image where they double channels."""
_SIDES = 7, 112
"""The least and the largest side of a usual image."""
_SMALL = 4
"""How many times as large as a small image a usual one is, along an axis."""
_MOST_TILES = 128
REST = 2
"""Rows by which the register tiles differ that do what is left of a chunk."""
_CUT_WORDS = 5
"""tiles_high, tiles_wide, tile_count, blocks, groups: words that follow those of the window."""
WindowOf = Callable[[Graph, Node], ImageWindow]


def winograd_variants(
    context: Context, node: Node, product: MatmulShape, window_of: WindowOf
) -> list[ProductVariant]:
    """Return the variants of a conv's product by Winograd's algorithm, none where none should be.

    The second has the tiles that suit a small image.
    """
    isa, window = context.isa, window_of(context.graph, node)
    outputs = context.type(node.used[1]).dims[0]
    if not may_transform(context, node, window):
        return []
    used: dict[int, ImageWindow] = {}
    for side in _sides(outputs):
        image = replace(window, height=side, width=side, out_height=side, out_width=side)
        used.setdefault(choose_size(isa, image, outputs), image)
    used.pop(0, None)
    if not used or not is_finite(context.constant(node.used[1])):
        return []
    known, count, words = generalised(window, node.label)
    conv = WinogradConv(0, known, outputs, product.bias, product.residual, product.activation)
    forms = [_form(isa, conv, image, size, count) for size, image in used.items()]
    by_product = cut_of(isa, product)
    direct = _direct_cost(isa, product, by_product)
    variants = []
    for k, form in enumerate(forms):
        which, rivals = (k, len(forms)), tuple(other.cost for other in forms[k + 1 :])
        given = context.threads, form.cut.tiles, form.cost, form.input_bytes, direct, rivals
        at_shape = _at_shape(node, form, window_of, words, partial(winograd_words, *given))
        code = context.kernel(sized_winograd_kernel, conv, form.cut, by_product, form.words, which)
        u = _transformed(context, node.used[1], form, window.channels, outputs)
        variants.append(ProductVariant(code, (u,), form.words, at_shape))
    return variants


@dataclass(frozen=True, eq=False)
class _Form:
    """A conv of every shape by one scheme; words: of its kernel.

    cost: as `winograd_words` takes it; input_bytes: of a tile, and half of the L2 cache
    local_bytes: of a thread; tile_s: seconds of a tile
    """

    made: Scheme
    cut: WinogradCut
    words: int
    cost: ImageCost
    input_bytes: tuple[float, float]
    local_bytes: int
    tile_s: float


def _sides(outputs: int) -> tuple[int, int]:
    """Return the sides of a usual image with so many channels, and of a small one."""
    side = max(_SIDES[0], min(_USUAL // outputs, _SIDES[1]))
    return side, -(-side // _SMALL)


def _form(isa: Isa, conv: WinogradConv, image: ImageWindow, size: int, count: int) -> _Form:
    """Return the form of F(size x size, ...) for images of about that size.

    count: how many words come before its own
    """
    made, channels, outputs = scheme_of(image, size), image.channels, conv.outputs
    tiles = math.ceil(image.out_height / size) ** 2
    cut = _cut(isa, image, outputs, made, tiles, count)
    layout, steps = layout_of(isa, conv, cut, made), made.points**2 * channels
    cost = (
        size,
        cut.tile_rows,
        cut.panels,
        (-(-channels // isa.lanes) * input_cycles(made) + 40, cut.vectors * output_cycles(made)),
        tuple(steps * one for one in _cycles_by_rows(isa, cut.tile_rows, cut.vectors)),
        weights_cycles(isa, steps * outputs),
    )
    bytes_ = 4 * made.points**2 * layout.v_row, isa.l2_bytes // 2
    tile_s = winograd_cycles(isa, 1, image, outputs, made) / CYCLES_PER_S / tiles
    return _Form(made, cut, count + _CUT_WORDS, cost, bytes_, layout.nbytes, tile_s)


def _at_shape(
    node: Node,
    form: _Form,
    window_of: WindowOf,
    words: Callable[[ImageWindow], tuple[int, ...]],
    search: Callable[..., tuple[int, ...]],
) -> Callable[[Graph, MatmulShape], Sized | None]:
    """Return what gives a shape's words and chunks; words: those of a window."""

    def at_shape(graph: Graph, product: MatmulShape) -> Sized | None:
        one, images = window_of(graph, node), graph.values[node.used[0]].type.dims[0]
        pays, *dealt = opaque(search, images, one.out_height, one.out_width)
        if not pays:
            return None
        *_, count, blocks, groups = dealt
        given = (*words(one), *dealt)
        return Sized(given, blocks * groups, count * form.tile_s, form.local_bytes, groups)

    return at_shape


def _transformed(
    context: Context, weights: int, form: _Form, channels: int, outputs: int
) -> Packed:
    """Return the transformed weights."""
    made, width = form.made, form.cut.width
    nbytes = 4 * math.prod(panels_shape(made, outputs, channels, width))

    def pack() -> Array:
        return transform_weights(context.constant(weights), made, width)

    return context.pack_later(weights, f"winograd {made.outputs} {width}", nbytes, pack)


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


def _direct_cost(isa: Isa, product: MatmulShape, by_product: Cut) -> tuple[float, float, float]:
    """Return cycles of one output pixel as a product, of gathering it, and of reading weights."""
    outputs, depth = product.size.columns, product.size.depth
    one = by_product.vectors
    of_row = tile_cycles(isa, by_product.tile_rows, one) / by_product.tile_rows
    return (
        depth * of_row * -(-outputs // isa.lanes) / one,
        depth * 2.5 / isa.lanes,
        weights_cycles(isa, depth * outputs),
    )


def sized_winograd_kernel(
    isa: Isa,
    conv: WinogradConv,
    cut: WinogradCut,
    by_product: Cut,
    words: int,
    which: tuple[int, int],
) -> Code:
    """Return the kernel for every shape.

    Operands: as those of `product_kernel`, with transformed weights before C
    which: transformed weights it reads, of how many
    """
    made = scheme_of(conv.window, cut.outputs)
    name = f"conv_f32_winograd{kernel_note(made)}_{cut.tile_rows}x{cut.vectors}"
    at, of = which
    more = conv.bias + conv.residual
    fn, operands, chunk, local = begin_sized(name, isa, 3 + more + of, words)
    x, b, *rest, y = operands
    extra, u = rest[:more], rest[more + at]
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
