"""Convolution and fully connected on 8-bit integers, as one product of matrices.

A row is an output position, a column an output channel. What a row multiplies lies in the prepared
input as a few spans of consecutive bytes, one a kernel row (or position), so nothing is gathered:
the microkernel broadcasts a few bytes of each row and multiplies them with a vector of channels.

    acc[o] = bias[o] + sum (x - x_zero) * (w[o] - w_zero)

With VNNI the zero points go into the bias, and, where weights have one, the sum of a row's inputs
times it is subtracted in the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.int8 import (
    ChannelTable,
    Dot,
    clamp_and_narrow,
    dot_of,
    eight_bit_reason,
    emit_dot,
    load_bytes,
    requantise,
    store_bytes,
)
from trireme.devices.cpu.int8_depthwise import is_depthwise, lower_depthwise
from trireme.devices.cpu.int8_pack import (
    Product,
    choose_tile,
    constant_terms,
    grouped_table,
    pack_weights,
)
from trireme.devices.cpu.int8_prepare import Prepared, prepare
from trireme.devices.cpu.ir import Function, Index, Value, Var, vector
from trireme.devices.cpu.jit import Code
from trireme.devices.cpu.kernels import (
    QUANTISED_RULES,
    Context,
    Operand,
    Rule,
    Step,
    begin,
    finish,
)
from trireme.devices.cpu.target import Isa
from trireme.errors import InternalError
from trireme.graph import Graph, Node
from trireme.op import call_of
from trireme.quantize import LinearParams, conv_params, fully_connected_params

CHUNK_PRODUCTS = 1 << 20
"""Multiplications that one chunk does: some microseconds."""


class _Kernel:
    """Emits the kernel of one product."""

    def __init__(
        self, isa: Isa, dot: Dot, product: Product, table: ChannelTable, params: LinearParams,
        row_factor: int,
    ) -> None:  # fmt: skip
        self.isa, self.dot, self.product, self.table = isa, dot, product, table
        self.params, self.row_factor = params, row_factor
        self.tile = choose_tile(isa, product.rows, product.channels)
        self.tiles = -(-product.rows // self.tile.rows)
        self.panels = -(-product.channels // (self.tile.vectors * isa.lanes))
        work = self.tile.rows * product.channels * product.depth
        self.block = max(1, min(self.tiles, CHUNK_PRODUCTS // max(work, 1)))
        self.blocks = -(-self.tiles // self.block)
        self.split = 1  # parts that the panels are cut into, where there are few rows
        if self.blocks * product.groups < 4:
            self.split = min(self.panels, max(1, work * self.tiles // (CHUNK_PRODUCTS // 8)))
        self.panel_part = -(-self.panels // self.split)
        self.split = -(-self.panels // self.panel_part)
        self.span_quads = [-(-length // dot.taps) for _, length in product.spans]
        self.vector_bytes = isa.lanes * 4
        self.lane_step = sum(self.span_quads) * self.vector_bytes  # bytes of one vector of channels

    @property
    def chunks(self) -> int:
        return self.product.groups * self.blocks * self.split

    @property
    def name(self) -> str:
        return f"gemm_q8_{self.dot.name}_{self.tile.rows}x{self.tile.vectors}"

    def code(self) -> Code:
        """Operands: prepared input, weights, channel table, [row offsets], output."""
        with_offsets = self.product.offsets is not None
        fn, pointers, chunk, _ = begin(self.name, self.isa, 5 if with_offsets else 4)
        x, w, table, y = pointers[0], pointers[1], pointers[2], pointers[-1]
        offsets = pointers[3] if with_offsets else None
        part = fn.integer("urem", chunk, self.split)
        rest = fn.integer("udiv", chunk, self.split)
        block = fn.integer("urem", rest, self.blocks)
        group = fn.integer("udiv", rest, self.blocks) if self.product.groups > 1 else 0
        self.emit(fn, (x, w, table, offsets, y), (part, block, group))
        return finish(fn)

    def emit(
        self, fn: Function, pointers: tuple[Value, Value, Value, Value | None, Value],
        place: tuple[Index, Index, Index],
    ) -> None:  # fmt: skip
        x, w, table, offsets, y = pointers
        part, block, group = place
        first_panel = part * self.panel_part
        last_panel = fn.minimum(first_panel + self.panel_part, self.panels)
        first = block * self.block
        last = fn.minimum(first + self.block, self.tiles)
        whole = self.product.channels // (self.tile.vectors * self.isa.lanes)
        for full in (True, False):
            low = first_panel if full else fn_maximum(fn, first_panel, whole)
            high = fn.minimum(last_panel, whole) if full else last_panel
            if full and not whole or not full and whole == self.panels:
                continue
            for panel in fn.range(low, high):
                for tile in fn.range(first, last):
                    self.emit_tile(fn, (x, w, table, offsets, y), (panel, tile, group), full)

    def emit_tile(
        self, fn: Function, pointers: tuple[Value, Value, Value, Value | None, Value],
        place: tuple[Index, Index, Index], full: bool,
    ) -> None:  # fmt: skip
        x, w, table, offsets, y = pointers
        panel, tile, group = place
        rows, lanes = self.tile.rows, self.isa.lanes
        left = self.product.channels - (self.panels - 1) * self.tile.vectors * lanes
        vectors = self.tile.vectors if full else -(-left // lanes)
        row = fn.minimum(tile * rows, self.product.rows - rows)  # the last tile overlaps
        starts = [self.row_start(fn, x, offsets, row, r, group) for r in range(rows)]
        padded = self.table.data.shape[1]
        column = panel * (self.tile.vectors * lanes)
        stride = self.lane_step * (-(-self.product.channels // lanes))
        weights = fn.at(fn.at(w, group * stride, "i8"), panel * (self.tile.vectors
                        * self.lane_step), "i8")  # fmt: skip
        sums = self.products(fn, starts, weights, vectors)
        corrections = [self.row_sum(fn, start) for start in starts] if self.row_factor else None
        at = group * (padded // self.product.groups) + column
        for v in range(vectors):
            bias, scale = self.table.load(fn, table, at + v * lanes)
            count = lanes if full else min(lanes, left - v * lanes)
            for r in range(rows):
                acc = sums[r][v] + bias
                if corrections is not None:
                    acc = acc - corrections[r]
                out = clamp_and_narrow(fn, requantise(fn, acc, scale), self.params.y_zero,
                                       self.params.low, self.params.high)  # fmt: skip
                width = self.product.channels * self.product.groups
                place_of = (row + r) * width + (group * self.product.channels + column)
                store_bytes(fn, out, fn.at(fn.at(y, place_of, "i8"), v * lanes, "i8"), count)

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
        self, fn: Function, starts: Sequence[Value], weights: Value, vectors: int
    ) -> list[list[Value]]:
        """Return the sums of products of a tile, by row and vector."""
        type = vector(self.isa.lanes, "i32")
        acc = [[Var(fn, type, 0) for _ in range(vectors)] for _ in starts]
        at = 0
        for (offset, _), quads in zip(self.product.spans, self.span_quads, strict=True):
            places = [fn.at(start, offset, self.dot.element) for start in starts]
            base = fn.at(weights, at * self.vector_bytes, "i8")
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
        type = vector(self.isa.lanes, "i32")
        columns = [
            fn.load(
                type,
                fn.at(fn.at(base, v * self.lane_step, "i8"), k * self.vector_bytes, "i8"),
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


def _steps(
    context: Context, node: Node, product: Product, params: LinearParams, prepared: Prepared
) -> list[Step]:
    graph, isa = context.graph, context.isa
    dot = dot_of(isa)
    x_id, w_id = node.used[0], node.used[1]
    w = graph.values[w_id].data
    bias = graph.values[node.used[2]].data if len(node.used) > 2 else None
    if w is None:
        raise InternalError(f"{node.label}: weights are not constant")
    terms, factor = constant_terms(w, bias, params, graph.type(x_id).dtype, dot)
    most = product.depth * 255 * 255 + int(np.abs(terms).max(initial=0))
    table = grouped_table(params, terms, product, isa.lanes, most)
    packed = pack_weights(w, params.w_zero, product, dot, isa.lanes)
    kernel = _Kernel(isa, dot, product, table, params, factor)
    reads: list[Operand] = [prepared.operand, packed, table.data]
    if product.offsets is not None:
        reads.append(product.offsets)
    work = product.rows * product.channels * product.groups * product.depth
    main = Step(
        kernel.code(), tuple(reads), (node.outputs[0],), kernel.chunks,
        seconds=work / (isa.lanes * 8e9), nodes=(node.id,),
    )  # fmt: skip
    return [*prepared.steps, main]


def lower_fully_connected(context: Context, node: Node) -> Sequence[Step]:
    """Return the steps of a quantised fully_connected."""
    graph = context.graph
    params = fully_connected_params(call_of(graph, node))
    channels, depth = graph.type(node.used[1]).dims
    rows = graph.type(node.used[0]).elements // depth
    prepared = prepare(context, node, (rows, 1, 1, depth), (0, 0, 0, 0), params.x_zero,
                       dot_of(context.isa))  # fmt: skip
    product = Product(rows, channels, 1, None, depth, 0, ((0, depth),))
    return _steps(context, node, product, params, prepared)


def lower_conv(context: Context, node: Node) -> Sequence[Step]:
    """Return the steps of a quantised 2-D conv."""
    graph = context.graph
    if is_depthwise(graph, node):
        return lower_depthwise(context, node)
    params = conv_params(call_of(graph, node))
    x, w, y = (graph.type(v).dims for v in (node.used[0], node.used[1], node.outputs[0]))
    (top, left, bottom, right) = node.attrs["pads"]
    (sh, sw), (dh, dw), groups = (
        node.attrs["strides"],
        node.attrs["dilations"],
        node.attrs["groups"],
    )
    prepared = prepare(context, node, x, (top, left, bottom, right), params.x_zero,
                       dot_of(context.isa))  # fmt: skip
    height, width, channels = x[1] + top + bottom, x[2] + left + right, x[3]
    kh, kw, depth = w[1:]
    if dw == 1 and groups == 1:
        spans = tuple((ky * dh * width * channels, kw * depth) for ky in range(kh))
    else:
        spans = tuple(
            ((ky * dh * width + kx * dw) * channels, depth)
            for ky in range(kh) for kx in range(kw)
        )  # fmt: skip
    n, oy, ox = np.meshgrid(*map(np.arange, y[:3]), indexing="ij")
    offsets = (((n * height + oy * sh) * width + ox * sw) * channels).astype(np.int32).reshape(-1)
    rows = len(offsets)
    plain = bool((offsets == np.arange(rows) * channels).all())
    if plain and len(spans) > 1 and all(s[0] == i * depth for i, s in enumerate(spans)):
        spans = ((0, len(spans) * depth),)
    product = Product(
        rows, w[0] // groups, groups, None if plain else offsets, channels, depth, spans
    )
    return _steps(context, node, product, params, prepared)


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
