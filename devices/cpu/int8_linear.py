"""Convolution and fully connected on 8-bit integers, as one product of matrices.

A row is an output position, a column an output channel. What a row multiplies lies in the prepared
image (int8_prepare.py) as a few spans of consecutive bytes, one a kernel row (or position), so
nothing is gathered: the microkernel broadcasts a few bytes of each row and multiplies them with a
vector of channels.

    acc[o] = bias[o] + sum (x - x_zero) * (w[o] - w_zero)

With VNNI the zero points go into the bias, and, where weights have one, the sum of a row's inputs
times it is subtracted in the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.int8 import (
    CYCLES_PER_S,
    Dot,
    dot_of,
    eight_bit_reason,
    emit_dot,
    load_bytes,
)
from trireme.devices.cpu.int8_depthwise import is_depthwise, lower_depthwise
from trireme.devices.cpu.int8_pack import (
    Product,
    Tile,
    choose_tile,
    constant_terms,
    kernel_order,
    pack_weights,
    sum_bounds,
    weight_zero,
)
from trireme.devices.cpu.int8_prepare import MOST_LOCAL_BYTES, Image, View
from trireme.devices.cpu.int8_requant import Requantiser, groups_of, requantiser
from trireme.devices.cpu.ir import Function, Index, Value, Var, vector
from trireme.devices.cpu.jit import Code
from trireme.devices.cpu.kernels import (
    QUANTISED_RULES,
    Context,
    Operand,
    Rule,
    Step,
    begin,
    deal,
    finish,
)
from trireme.devices.cpu.target import Isa
from trireme.errors import InternalError
from trireme.graph import Graph, Node
from trireme.op import call_of
from trireme.quantize import LinearParams, conv_params, fully_connected_params


class _Kernel:
    """Emits the kernel of one product: chunks > panels of channels > tiles of rows."""

    def __init__(
        self, isa: Isa, product: Product, source: tuple[Image, View], tile: Tile,
        requantiser: Requantiser, row_factor: int, seconds: float,
    ) -> None:  # fmt: skip
        self.isa, self.product = isa, product
        self.image, self.view = source
        dot = self.dot = self.image.dot
        self.tile, self.requantiser, self.row_factor = tile, requantiser, row_factor
        tiles = -(-product.rows // tile.rows)
        self.panels = -(-product.channels // (tile.vectors * isa.lanes))
        size, self.blocks = deal(tiles, seconds)
        while size > 1 and self._fetched(size) > MOST_LOCAL_BYTES:
            size = -(-size // 2)
            self.blocks = -(-tiles // size)
        self.part, self.parts = self.panels, 1  # panels of a chunk, where there are few rows
        if tiles < 4 and self.panels > 1:
            (size, self.blocks), (self.part, self.parts) = (tiles, 1), deal(self.panels, seconds)
        self.block = size * tile.rows  # rows of a chunk
        self.span_quads = [-(-length // dot.taps) for _, length in product.spans]
        self.vector_bytes = isa.lanes * 4
        self.lane_step = sum(self.span_quads) * self.vector_bytes  # bytes of one vector of channels
        self.padded = requantiser.data.shape[1] // product.groups

    @property
    def chunks(self) -> int:
        return self.product.groups * self.blocks * self.parts

    @property
    def local_bytes(self) -> int:
        """What the lines of the largest chunk take."""
        return self._fetched(self.block // self.tile.rows)

    def _fetched(self, tiles: int) -> int:
        """Return what the lines take that so many tiles of rows see."""
        block, least = tiles * self.tile.rows, self.tile.rows
        return self.image.local_bytes(self.view.most_lines(self.product.rows, block, least))

    @property
    def name(self) -> str:
        return f"gemm_q8_{self.dot.name}_{self.tile.rows}x{self.tile.vectors}"

    def code(self) -> Code:
        """Operands: image, weights, table, [row offsets], output."""
        with_offsets = self.product.offsets is not None
        fn, pointers, chunk, local = begin(self.name, self.isa, 5 if with_offsets else 4)
        part = fn.integer("urem", chunk, self.parts)
        rest = fn.integer("udiv", chunk, self.parts)
        block = fn.integer("urem", rest, self.blocks)
        group = fn.integer("udiv", rest, self.blocks) if self.product.groups > 1 else 0
        rows = self.product.rows
        first = fn.minimum(_times(block, self.block), rows - self.tile.rows)
        last = fn.minimum(first + self.block, rows)
        lines = self.view.lines(fn, first, last)
        x = self.image.fetch(fn, pointers[0], local, *lines)
        offsets = pointers[3] if with_offsets else None
        self.places = (x, pointers[1], pointers[2], offsets, pointers[-1])
        self.panel_loops(fn, _times(part, self.part), (first, last), group)
        return finish(fn)

    def panel_loops(
        self, fn: Function, first_panel: Index, rows: tuple[Index, Index], group: Index
    ) -> None:
        """Emit the panels of a chunk: those of full width, then the last one if it is narrower."""
        last_panel = fn.minimum(first_panel + self.part, self.panels)
        whole = self.product.channels // (self.tile.vectors * self.isa.lanes)
        for full in (True, False):
            low = first_panel if full else fn_maximum(fn, first_panel, whole)
            high = fn.minimum(last_panel, whole) if full else last_panel
            if full and not whole or not full and whole == self.panels:
                continue
            for panel in fn.range(low, high):
                for at in fn.range(*rows, self.tile.rows):
                    row = fn.minimum(at, self.product.rows - self.tile.rows)
                    self.emit_tile(fn, panel, row, group, full)

    def emit_tile(self, fn: Function, panel: Index, row: Index, group: Index, full: bool) -> None:
        """Emit the tile whose first row is `row`; the last one of all overlaps its neighbour."""
        x, w, table, offsets, y = self.places
        rows, lanes, product = self.tile.rows, self.isa.lanes, self.product
        left = product.channels - (self.panels - 1) * self.tile.vectors * lanes
        vectors = self.tile.vectors if full else -(-left // lanes)
        starts = [self.row_start(fn, x, offsets, row, r, group) for r in range(rows)]
        column = _times(panel, self.tile.vectors * lanes)
        block = _times(group, self.padded // lanes) + _times(panel, self.tile.vectors)
        weights = fn.at(w, _times(block, self.lane_step), "i8")
        at = _times(group, self.padded) + column
        sums = self.products(fn, starts, weights, vectors, at)
        if self.row_factor:
            sums = [
                [acc - correction for acc in row_sums]
                for row_sums, correction in zip(
                    sums, [self.row_sum(fn, start) for start in starts], strict=True
                )
            ]  # fmt: skip
        width = product.channels * product.groups
        target = fn.at(y, row * width + (_times(group, product.channels) + column), "i8")
        start = 0
        for size in groups_of(vectors):
            count = min(size * lanes, (product.channels if full else left) - start * lanes)
            first = at + start * lanes
            for r in range(rows):
                together = sums[r][start : start + size]
                numbers = self.requantiser.numbers(fn, together, table, first)
                place = fn.at(target, r * width + start * lanes, "i8")
                self.requantiser.store(fn, numbers, place, count)
            start += size

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
        self, fn: Function, starts: Sequence[Value], weights: Value, vectors: int, channel: Index
    ) -> list[list[Value]]:
        """Return the sums of products of a tile and the bias, by row and vector."""
        type, lanes = vector(self.isa.lanes, "i32"), self.isa.lanes
        table = self.places[2]
        bias = [
            self.requantiser.bias(fn, table, channel + v * lanes, lanes) for v in range(vectors)
        ]
        acc = [[Var(fn, type, first) for first in bias] for _ in starts]
        at = 0
        for (offset, _), quads in zip(self.product.spans, self.span_quads, strict=True):
            places = [fn.at(start, offset, self.dot.element) for start in starts]
            base = fn.at(weights, at * self.vector_bytes * vectors, "i8")
            unroll = 4 if len(starts) * vectors < 8 and quads % 4 == 0 else 1
            for k in fn.range(0, quads, unroll):
                for u in range(unroll):
                    self.rank_update(fn, acc, places, base, k + u)
            at += quads
        return [[var.get() for var in row] for row in acc]

    def rank_update(
        self, fn: Function, acc: Sequence[Sequence[Var]], places: Sequence[Value], base: Value,
        k: Index,
    ) -> None:  # fmt: skip
        type, step = vector(self.isa.lanes, "i32"), self.vector_bytes * len(acc[0])
        columns = [
            fn.load(
                type,
                fn.at(fn.at(base, k * step, "i8"), v * self.vector_bytes, "i8"),
                64 if self.isa.lanes == 16 else 16,
            )  # fmt: skip
            for v in range(len(acc[0]))
        ]
        for row, place in zip(acc, places, strict=True):
            few = fn.load("i32", fn.at(place, k * self.dot.taps, self.dot.element), 1)
            x = fn.splat(few, self.isa.lanes)
            for var, column in zip(row, columns, strict=True):
                var.set(emit_dot(fn, self.dot, var.get(), x, column))

    def row_sum(self, fn: Function, start: Value) -> Value:
        """Return the sum of a row's inputs times the weights' zero point, in every lane."""
        lanes = self.isa.lanes
        type = vector(lanes, "i32")
        ones = fn.convert("bitcast", fn.as_value(vector(lanes * 4, "i8"), 1), type)
        total = Var(fn, type, 0)
        for offset, length in self.product.spans:
            place = fn.at(start, offset, "i8")
            whole = length // (lanes * 4) * (lanes * 4)
            for k in fn.range(0, whole, lanes * 4):
                loaded = fn.load(vector(lanes * 4, "i8"), fn.at(place, k, "i8"), 1)
                x = fn.convert("bitcast", loaded, type)
                total.set(emit_dot(fn, self.dot, total.get(), x, ones))
            if whole < length:
                tail = load_bytes(fn, fn.at(place, whole, "i8"), lanes * 4, length - whole)
                x = fn.convert("bitcast", tail, type)
                total.set(emit_dot(fn, self.dot, total.get(), x, ones))
        name = f"llvm.vector.reduce.add.v{lanes}i32"
        scalar = fn.call("i32", name, total.get()) * self.row_factor
        return fn.splat(scalar, lanes)


def fn_maximum(fn: Function, left: Index, right: int) -> Index:
    """Return the larger of an index and a number."""
    if isinstance(left, int):
        return max(left, right)
    return fn.select(fn.compare("sgt", left, right), left, right)


def _times(index: Index, factor: int) -> Index:
    return index * factor


def _steps(
    context: Context, node: Node, product: Product, params: LinearParams,
    source: tuple[Image, View],
) -> list[Step]:  # fmt: skip
    graph, isa, dot = context.graph, context.isa, source[0].dot
    x_id, w_id, y_id = node.used[0], node.used[1], node.outputs[0]
    w = graph.values[w_id].data
    bias = graph.values[node.used[2]].data if len(node.used) > 2 else None
    if w is None:
        raise InternalError(f"{node.label}: weights are not constant")
    quads = sum(-(-length // dot.taps) for _, length in product.spans)
    tile, cycles = choose_tile(isa, product.rows, product.channels, quads)
    order = kernel_order(isa, tile, product.channels)
    x_dtype = graph.type(x_id).dtype
    terms, factor = constant_terms(w, bias, params, x_dtype, dot)
    bounds = sum_bounds(w, bias, params, x_dtype)
    every = np.concatenate([
        np.where(order < product.channels, order + group * product.channels, len(w))
        for group in range(product.groups)
    ])  # fmt: skip
    requant = requantiser(isa, params, graph.type(y_id).dtype, terms, bounds, every)
    packed = pack_weights(w, weight_zero(w, params, dot), product, dot, order, tile, isa.lanes)
    seconds = product.groups * cycles / CYCLES_PER_S
    kernel = _Kernel(
        isa, product, source, tile, requant, factor, seconds
    )  # fmt: skip
    reads: list[Operand] = [context.operand(x_id), packed, requant.data]
    if product.offsets is not None:
        reads.append(product.offsets)
    step = Step(
        kernel.code(), tuple(reads), (y_id,), kernel.chunks, kernel.local_bytes,
        seconds=seconds, nodes=(node.id,),
    )  # fmt: skip
    return [step]


def lower_fully_connected(context: Context, node: Node) -> Sequence[Step]:
    """Return the steps of a quantised fully_connected."""
    graph = context.graph
    params = fully_connected_params(call_of(graph, node))
    channels, depth = graph.type(node.used[1]).dims
    x = graph.type(node.used[0])
    rows = x.elements // depth
    product = Product(rows, channels, 1, None, depth, 0, ((0, depth),))
    source = _matrix(rows, depth, x.dtype, params.x_zero, dot_of(context.isa))
    return _steps(context, node, product, params, source)


def _matrix(rows: int, depth: int, dtype: str, zero: int, dot: Dot) -> tuple[Image, View]:
    """Return a matrix as an image of one column, with a line for each row."""
    return Image((1, rows, 1, depth), (0, 0, 0, 0), dtype, zero, dot), View(rows, 1, rows, 1, 1)


def lower_conv(context: Context, node: Node) -> Sequence[Step]:
    """Return the steps of a quantised 2-D conv."""
    graph = context.graph
    if is_depthwise(graph, node):
        return lower_depthwise(context, node)
    params = conv_params(call_of(graph, node))
    x, w, y = (graph.type(v).dims for v in (node.used[0], node.used[1], node.outputs[0]))
    pads = tuple(node.attrs["pads"])
    (top, left, bottom, right) = pads
    (sh, sw), (dh, dw), groups = (
        node.attrs["strides"],
        node.attrs["dilations"],
        node.attrs["groups"],
    )
    height, width, channels = x[1] + top + bottom, x[2] + left + right, x[3]
    kh, kw, depth = w[1:]
    dtype, dot = graph.type(node.used[0]).dtype, dot_of(context.isa)
    if (kh, kw, sh, sw) == (1, 1, 1, 1) and not any(pads):
        rows = x[0] * x[1] * x[2]
        product = Product(rows, w[0] // groups, groups, None, channels, depth, ((0, depth),))
        source = _matrix(rows, channels, dtype, params.x_zero, dot)
        return _steps(context, node, product, params, source)
    image = Image((x[0], x[1], x[2], x[3]), (top, left, bottom, right), dtype, params.x_zero, dot)
    if dw == 1 and groups == 1:
        spans = tuple((ky * dh * width * channels, kw * depth) for ky in range(kh))
    else:
        spans = tuple(
            ((ky * dh * width + kx * dw) * channels, depth)
            for ky in range(kh) for kx in range(kw)
        )  # fmt: skip
    n, oy, ox = np.meshgrid(*map(np.arange, y[:3]), indexing="ij")
    offsets = (((n * height + oy * sh) * width + ox * sw) * channels).astype(np.int32).reshape(-1)
    product = Product(len(offsets), w[0] // groups, groups, offsets, channels, depth, spans)
    view = View(y[1], y[2], height, sh, (kh - 1) * dh + 1)
    return _steps(context, node, product, params, (image, view))


def conv_reason(graph: Graph, node: Node) -> str | None:
    """Say why a quantised conv has no kernel here."""
    if graph.values[node.used[1]].data is None:
        return "conv has no native kernel for weights that are not constant"
    if len(node.used) > 2 and graph.values[node.used[2]].data is None:
        return "conv has no native kernel for a bias that is not constant"
    if len(graph.type(node.used[0]).shape) != 4 or node.attrs["layout"] != "NHWC":
        return "quantised conv has a native kernel for 2-D NHWC only"
    return eight_bit_reason(graph, node, lambda: conv_params(call_of(graph, node)))


def fully_connected_reason(graph: Graph, node: Node) -> str | None:
    """Say why a quantised fully_connected has no kernel here."""
    if any(graph.values[v].data is None for v in node.used[1:]):
        return "fully_connected has no native kernel for weights that are not constant"
    return eight_bit_reason(graph, node, lambda: fully_connected_params(call_of(graph, node)))


QUANTISED_RULES["conv"] = Rule(conv_reason, lower_conv)
QUANTISED_RULES["fully_connected"] = Rule(fully_connected_reason, lower_fully_connected)
