"""Convolution and fully connected on 8-bit integers, as one product of matrices.

A row is an output position, a column an output channel. A row's operands lie in the prepared image
(prepare.py) as a few spans of consecutive bytes, one a kernel row (or position). So nothing is
gathered. The microkernel broadcasts a few bytes of each row and multiplies them with a vector of
channels.

    acc[o] = bias[o] + sum (x - x_zero) * (w[o] - w_zero)

Where bytes are multiplied the zero points go into the bias, and with VNNI, where weights less
theirs do not fit int8, the sum of a row's inputs times it is subtracted in the end. Without VNNI
such weights, and those whose sums a word of 16 bits would not hold, take a few steps twice
(split.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.backend.kernel_table import STORED_8
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code, formed
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import CYCLES_PER_S, Dot, dot_of, stored_reason
from trireme.devices.cpu.kernels.int8.depthwise import is_depthwise, lower_depthwise
from trireme.devices.cpu.kernels.int8.dequant import static_dequantiser
from trireme.devices.cpu.kernels.int8.dot_variants import best_way
from trireme.devices.cpu.kernels.int8.epilogue import Int8Epilogue, element_kind
from trireme.devices.cpu.kernels.int8.microkernel import rank_update, row_sum
from trireme.devices.cpu.kernels.int8.pack import (
    Int8MatmulShape,
    RegisterTile,
    constant_terms,
    kernel_order,
    pack_weights,
    store_cycles,
    sum_bounds,
)
from trireme.devices.cpu.kernels.int8.params import ProductParams, params_of
from trireme.devices.cpu.kernels.int8.prepare import Image, LineWindow
from trireme.devices.cpu.kernels.int8.product_cut import ProductCut, cut_product, panels_of
from trireme.devices.cpu.kernels.int8.requant import groups_of, requantiser
from trireme.devices.cpu.kernels.int8.shapes import conv_shape, fully_connected_shape
from trireme.devices.cpu.kernels.int8.split import Repeats, repeats_of
from trireme.devices.cpu.kernels.lines import for_lines
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    begin,
    finish,
)
from trireme.ir.graph import Graph, Node
from trireme.ops.integer import FloatSumParams
from trireme.support.dtypes import Array


class LinearKernel:
    """Emits the kernel of one product: chunks > panels of channels > tiles of rows.

    The rows of the product and its cut may be read when the kernel runs.
    """

    def __init__(
        self,
        isa: Isa,
        product: Int8MatmulShape,
        source: tuple[Image, LineWindow],
        tile: RegisterTile,
        epilogue: Int8Epilogue,
        row_factor: int,
        cut: ProductCut,
        repeats: Repeats | None,
    ) -> None:
        self.isa, self.product, self.repeats = isa, product, repeats
        self.image, self.view = source
        dot = self.dot = self.image.dot
        self.tile, self.epilogue, self.row_factor = tile, epilogue, row_factor
        self.cut, self.panels = cut, panels_of(isa, product, tile)
        self.span_steps = product.span_steps(dot)
        self.vector_bytes = isa.lanes * 4
        self.lane_step = sum(self.span_steps) * self.vector_bytes  # bytes of one vector of channels
        self.padded = epilogue.data.shape[1] // product.groups
        self.width = product.channels * product.groups  # elements from an output row to the next

    def emit(self, fn: Function, pointers: Sequence[Value], chunk: Value, local: Value) -> None:
        """Emit a chunk; pointers: as many as `operand_count`, in its order."""
        with_offsets, again = self.product.offsets is not None, 2 * (self.repeats is not None)
        cut, rows = self.cut, self.cut.rows
        part = fn.integer("urem", chunk, cut.parts)
        rest = fn.integer("udiv", chunk, cut.parts)
        block = fn.integer("urem", rest, cut.blocks)
        group = fn.integer("udiv", rest, cut.blocks) if self.product.groups > 1 else 0
        first = fn.minimum(block * cut.block, rows - self.tile.rows)
        last = fn.minimum(first + cut.block, rows)
        x = pointers[0]
        if not self.image.as_is:
            x = self.image.fetch(fn, x, local, *self.view.lines(fn, first, last))
        offsets = pointers[3] if with_offsets else None
        self.places = (x, pointers[1], pointers[2], offsets, pointers[-1])
        self.extra = pointers[3 + with_offsets : -1 - again]
        self.again = pointers[-1 - again : -1]
        self.panel_loops(fn, part * cut.part, (first, last), group)

    def panel_loops(
        self, fn: Function, first_panel: Index, rows: tuple[Index, Index], group: Index
    ) -> None:
        """Emit the panels of a chunk: first full ones, then the last one if it is narrower."""
        last_panel = fn.minimum(first_panel + self.cut.part, self.panels)
        whole = self.product.channels // (self.tile.vectors * self.isa.lanes)
        for full in (True, False):
            low = first_panel if full else fn.maximum(first_panel, whole)
            high = fn.minimum(last_panel, whole) if full else last_panel
            if full and not whole or not full and whole == self.panels:
                continue
            for panel in fn.range(low, high):
                for at in fn.range(*rows, self.tile.rows):
                    row = fn.minimum(at, self.cut.rows - self.tile.rows)
                    self.emit_tile(fn, panel, row, group, full)

    def emit_tile(self, fn: Function, panel: Index, row: Index, group: Index, full: bool) -> None:
        """Emit the tile whose first row is `row`; the last one of all overlaps its neighbour."""
        x, w, table, offsets, y = self.places
        rows, lanes, product = self.tile.rows, self.isa.lanes, self.product
        left = product.channels - (self.panels - 1) * self.tile.vectors * lanes
        vectors = self.tile.vectors if full else -(-left // lanes)
        starts = [self.row_start(fn, x, offsets, row, r, group) for r in range(rows)]
        column = panel * (self.tile.vectors * lanes)
        block = group * (self.padded // lanes) + panel * self.tile.vectors
        weights = fn.at(w, block * self.lane_step, "i8")
        at = group * self.padded + column
        marks = self.marks(fn, row)
        number = group * self.panels + panel
        sums = self.products(fn, starts, weights, vectors, (number, at), marks)
        if self.row_factor:
            extra = self.row_terms(fn, starts, row)
            sums = [[acc - x for acc in row] for row, x in zip(sums, extra, strict=True)]
        width, element = self.width, self.epilogue.element
        target = fn.at(y, row * width + (group * product.channels + column), element)
        start = 0
        for size in groups_of(vectors):
            count = min(size * lanes, (product.channels if full else left) - start * lanes)
            first = at + start * lanes
            for r in range(rows):
                together = sums[r][start : start + size]
                place = fn.at(target, r * width + start * lanes, element)
                channels = (table, first, lanes, size)
                self.epilogue.finish(fn, together, channels, marks[r], place, count)
            start += size

    def row_terms(self, fn: Function, starts: Sequence[Value], row: Index) -> list[Value]:
        """Return the sums of the inputs of a tile's rows times their factor, in every lane."""
        return [row_sum(fn, self.product, start, self.row_factor) for start in starts]

    def marks(self, fn: Function, row: Index) -> list[Any]:
        """Return what the epilogue knows of each row of a tile."""
        if self.epilogue.shared:
            return [self.epilogue.enter(fn, self.extra, row)] * self.tile.rows
        return [self.epilogue.enter(fn, self.extra, row + r) for r in range(self.tile.rows)]

    def row_start(
        self, fn: Function, x: Value, offsets: Value | None, row: Index, r: int, group: Index
    ) -> Value:
        """Return the address at which a row begins in the prepared input."""
        if offsets is None:
            at: Index = (row + r) * self.product.row_step
        else:
            narrow = fn.load("i32", fn.at(offsets, row + r, "i32"), 4)
            at = fn.convert("sext", narrow, "i64")
        return fn.at(x, at + group * self.product.group_step, self.dot.element)

    def products(
        self,
        fn: Function,
        starts: Sequence[Value],
        weights: Value,
        vectors: int,
        panel: tuple[Index, Index],
        marks: Sequence[Any],
    ) -> list[list[Value]]:
        """Return the sums of products of a tile and the bias, by row and vector.

        panel: its number among those of all groups, and that of its first channel
        """
        type, lanes, run = vector(self.isa.lanes, "i32"), self.isa.lanes, self.dot.run
        table = self.places[2]
        channels = (table, panel[1], lanes, vectors)
        first = {id(mark): self.epilogue.start(fn, channels, mark) for mark in marks}
        acc = [[Var(fn, type, value) for value in first[id(mark)]] for mark in marks]
        at = 0
        for (offset, _), steps in zip(self.product.spans, self.span_steps, strict=True):
            places = [fn.at(start, offset, self.dot.element) for start in starts]
            base = fn.at(weights, at * self.vector_bytes * vectors, "i8")
            whole = steps // run * run
            unroll = 4 if len(starts) * vectors < 8 and whole % (4 * run) == 0 else 1
            for k in fn.range(0, whole, run * unroll):
                for u in range(unroll):
                    rank_update(fn, self.dot, acc, places, base, (k + u * run, run))
            for rest in range(whole, steps):
                rank_update(fn, self.dot, acc, places, base, (rest, 1))
            at += steps
        if self.repeats is not None:
            self.repeats.emit(fn, self.dot, acc, starts, self.again, panel[0])
        return [[var.get() for var in row] for row in acc]


def kernel_name(epilogue: Int8Epilogue, dot: Dot, tile: RegisterTile) -> str:
    """Return the name of a product's kernel."""
    return f"gemm_{element_kind(epilogue)}_{dot.name}_{tile.rows}x{tile.vectors}"


def operand_count(product: Int8MatmulShape, epilogue: Int8Epilogue, again: Repeats | None) -> int:
    """Return the number of operands of a product's kernel.

    They are image, weights, table, [offsets], those of the epilogue, [two of repeats], output.
    """
    return 4 + (product.offsets is not None) + len(epilogue.operands) + 2 * (again is not None)


def product_code(
    isa: Isa,
    product: Int8MatmulShape,
    source: tuple[Image, LineWindow],
    tile: RegisterTile,
    epilogue: Int8Epilogue,
    row_factor: int,
    cut: ProductCut,
    repeats: Repeats | None,
) -> Code:
    """Return the kernel of a product; only the forms of arrays count."""
    name = kernel_name(epilogue, source[0].dot, tile)
    operands = operand_count(product, epilogue, repeats)
    fn, pointers, chunk, local = begin(name, isa, operands)
    kernel = LinearKernel(isa, product, source, tile, epilogue, row_factor, cut, repeats)
    kernel.emit(fn, pointers, chunk, local)
    return finish(fn)


def product_step(
    context: Context,
    product: Int8MatmulShape,
    source: tuple[Image, LineWindow],
    timed: tuple[RegisterTile, float],
    epilogue: Int8Epilogue,
    operands: tuple[Operand, Array, int],
    row_factor: int = 0,
    repeats: Repeats | None = None,
) -> Step:
    """Return the step of a product.

    timed: the tile, and modelled cycles of a group
    operands: image, packed weights, the value that is made
    """
    x, packed, y = operands
    tile, cycles = timed
    seconds = product.groups * cycles / CYCLES_PER_S
    source = (source[0].form, source[1])
    cut, chunks, local_bytes = cut_product(context.isa, product, source, tile, seconds)
    code = context.kernel(
        product_code,
        formed(product),
        source,
        tile,
        epilogue.form,
        row_factor,
        cut,
        repeats and repeats.form,
    )
    offsets = () if product.offsets is None else (product.offsets,)
    again = () if repeats is None else (repeats.index, repeats.weights)
    reads = (x, packed, epilogue.data, *offsets, *epilogue.operands, *again)
    stores_s = product.groups * store_cycles(context.isa, product, tile) / CYCLES_PER_S
    return Step(
        code, reads, (y,), chunks, local_bytes, seconds=seconds, stores_s=stores_s, family="gemm_q8"
    )


def lane_channels(product: Int8MatmulShape, order: Array) -> Array:
    """Return the channel in each lane of all groups, by the order of lanes in one of them."""
    total = product.channels * product.groups
    return np.concatenate(
        [
            np.where(order < product.channels, order + group * product.channels, total)
            for group in range(product.groups)
        ]
    )


def _steps(
    context: Context,
    node: Node,
    product: Int8MatmulShape,
    params: ProductParams,
    source: tuple[Image, LineWindow],
) -> list[Step]:
    isa, x_id = context.isa, node.used[0]
    w = context.constant(node.used[1])
    way = best_way(isa, w, params, product)
    dot, tile = way.dot, way.tile
    is_float = isinstance(params, FloatSumParams)
    whole = np.arange(-(-product.channels // isa.lanes) * isa.lanes)
    order = whole if is_float else kernel_order(isa, tile, product.channels)
    make = _dequantiser if is_float else _requantiser
    epilogue, factor = make(context, node, params, dot, lane_channels(product, order))
    repeats = repeats_of(way.parts, product, dot, order, tile, isa.lanes) if way.parts else None
    packed = pack_weights(way.steps, dot, order, tile, isa.lanes)
    operands = (context.operand(x_id), packed, node.outputs[0])
    source = (replace(source[0], dot=dot), source[1])
    timed = (tile, way.cycles)
    return [product_step(context, product, source, timed, epilogue, operands, factor, repeats)]


def _requantiser(
    context: Context, node: Node, params: Any, dot: Dot, lanes: Array
) -> tuple[Int8Epilogue, int]:
    """Return the end of sums that become stored bytes, and the factor of row sums."""
    graph, w = context.graph, context.constant(node.used[1])
    bias = context.constant(node.used[2]) if len(node.used) > 2 else None
    x, y = (graph.type(value).dtype for value in (node.used[0], node.outputs[0]))
    terms, factor = constant_terms(w, bias, params, x, dot)
    bounds = sum_bounds(w, bias, params, x)
    made = requantiser(context.isa, params, y, terms, bounds, lanes, context.recipes)
    return made, factor


def _dequantiser(
    context: Context, node: Node, params: Any, dot: Dot, lanes: Array
) -> tuple[Int8Epilogue, int]:
    """Return the end of sums that become float32, and the factor of row sums."""
    w, bias = (context.constant(value) for value in node.used[1:3])
    x = context.graph.type(node.used[0]).dtype
    terms, factor = constant_terms(w, None, params, x, dot)
    activation = str(node.attrs["activation"])
    return static_dequantiser(terms, params, bias, lanes, activation, mixed=False), factor


def lower_fully_connected(context: Context, node: Node) -> Sequence[Step]:
    """Return the steps of a quantised fully_connected."""
    graph = context.graph
    params = params_of(graph, node)
    x = graph.type(node.used[0]).dtype
    product, view, image = fully_connected_shape(graph, node)
    lines = Image(image, (0, 0, 0, 0), x, params.x_zero, dot_of(context.isa))
    return _steps(context, node, product, params, (lines, view))


def lower_conv(context: Context, node: Node) -> Sequence[Step]:
    """Return the steps of a quantised 2-D conv."""
    graph = context.graph
    if is_depthwise(graph, node):
        return lower_depthwise(context, node)
    params = params_of(graph, node)
    x = graph.type(node.used[0]).dtype
    product, view, image = conv_shape(graph, node)
    lines = Image(image, tuple(node.attrs["pads"]), x, params.x_zero, dot_of(context.isa))
    return _steps(context, node, product, params, (lines, view))


def conv_reason(graph: Graph, node: Node) -> str | None:
    """Say why a quantised conv has no kernel here."""
    if graph.values[node.used[1]].data is None:
        return "conv has no native kernel for weights that are not constant"
    if len(node.used) > 2 and graph.values[node.used[2]].data is None:
        return "conv has no native kernel for a bias that is not constant"
    if len(graph.type(node.used[0]).shape) != 4:
        return "quantised conv has native kernels for one or two spatial axes only"
    return stored_reason(graph, node, lambda: params_of(graph, node))


def fully_connected_reason(graph: Graph, node: Node) -> str | None:
    """Say why a quantised fully_connected has no kernel here."""
    if any(graph.values[v].data is None for v in node.used[1:]):
        return "fully_connected has no native kernel for weights that are not constant"
    return stored_reason(graph, node, lambda: params_of(graph, node))


TABLE.add("conv", for_lines(Rule(conv_reason, lower_conv)), STORED_8, "NHWC")
TABLE.add("fully_connected", Rule(fully_connected_reason, lower_fully_connected), STORED_8)
