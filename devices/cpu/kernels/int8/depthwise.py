"""Depthwise convolution on 8-bit integers: a few vectors of channels at a time, down a column.

    acc[c] = bias[c] + sum over the window of (x - x_zero) * (w[c] - w_zero)

The multipliers add up four bytes (or two 16-bit integers) in one lane, so they get a **column** of
the window: the lines of a kernel column, interleaved so that the elements of one channel lie side
by side. Interleaving a vector from each of four lines gives four such vectors of channels, in just
the order that narrowing their sums to bytes undoes (requant.py). A column stays in registers for
all output columns that see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code, form_of
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import CYCLES_PER_S, QUADS, Dot, dot_of, emit_dot
from trireme.devices.cpu.kernels.int8.columns import DepthwiseWindow, Source, source_of
from trireme.devices.cpu.kernels.int8.dequant import static_dequantiser
from trireme.devices.cpu.kernels.int8.epilogue import Int8Epilogue, element_kind
from trireme.devices.cpu.kernels.int8.pack import sum_bounds
from trireme.devices.cpu.kernels.int8.params import ProductParams, params_of
from trireme.devices.cpu.kernels.int8.prepare import MOST_LOCAL_BYTES, Image
from trireme.devices.cpu.kernels.int8.requant import channel_order, requantiser
from trireme.devices.cpu.kernels.lowering import Context, Operand, Step, begin, deal, finish
from trireme.ir.graph import Graph, Node
from trireme.ops.integer import FloatSumParams
from trireme.support.dtypes import Array
from trireme.support.records import dataclass


@dataclass(frozen=True)
class Block:
    """Neighbouring channels computed together, in `taps` vectors of `lanes` sums each.

    count: the channels that are stored; a block of fewer than it has room for reads on
    repeat: how many blocks of this form follow one another
    """

    start: int
    lanes: int
    count: int
    repeat: int = 1


def is_depthwise(graph: Graph, node: Node) -> bool:
    """Whether each group of a conv has one input and one output channel."""
    x, w = graph.type(node.used[0]).dims, graph.type(node.used[1]).dims
    return len(x) == 4 and node.attrs["groups"] == x[3] == w[0] and x[3] > 1


def blocks_of(channels: int, taps: int, lanes: int) -> list[Block]:
    """Cut channels into blocks of vectors of `lanes`, and of narrower vectors for the rest.

    The last block begins earlier where it would reach beyond the channels, if there are enough.
    """
    blocks, start = [], 0
    whole = channels // (taps * lanes)
    if whole:
        blocks.append(Block(0, lanes, taps * lanes, whole))
        start = whole * taps * lanes
    while start < channels:
        rest, narrow = channels - start, 4
        while narrow < lanes and taps * narrow < rest and taps * narrow * 2 <= channels:
            narrow *= 2
        size = taps * narrow
        if size > rest and size <= channels:
            start = channels - size
        elif size < rest or size > channels:
            size = min(size, rest)
        blocks.append(Block(start, narrow, size))
        start += size
    return blocks


def lower_depthwise(context: Context, node: Node) -> Sequence[Step]:
    """Return the step of a quantised depthwise conv."""
    graph, isa = context.graph, context.isa
    params = params_of(graph, node)
    x_type = graph.type(node.used[0])
    n, height, width, channels = x_type.dims
    top, left, bottom, right = node.attrs["pads"]
    dot = dot_of(isa)
    image = Image(
        (n, height, width, channels),
        (top, left, bottom, right),
        x_type.dtype,
        params.x_zero,
        dot,
        reads=4 * dot.taps,
    )
    window = window_of(graph, node)
    source = source_of(image, window)
    blocks = cut_channels(channels, dot, isa)
    order = lane_channels(isa, blocks, dot)
    epilogue = _epilogue(context, node, params, source, order)
    data = context.constant(node.used[1])
    weights = pack_weights(data, params.w_zero, window, blocks, dot, order)
    operands = (context.operand(node.used[0]), weights, node.outputs[0])
    return [depthwise_step(context, source, blocks, epilogue, operands)]


def cut_channels(channels: int, dot: Dot, isa: Isa) -> list[Block]:
    """Return the blocks of channels of a kernel."""
    # 16-bit sums of two narrow to bytes in order up to 256 bits
    return blocks_of(channels, dot.taps, isa.lanes if dot is QUADS else min(isa.lanes, 8))


def window_of(graph: Graph, node: Node) -> DepthwiseWindow:
    """Return the geometry of a depthwise conv."""
    y = graph.type(node.outputs[0]).dims
    _, kh, kw, _ = graph.type(node.used[1]).dims
    return DepthwiseWindow(
        y[3],
        (y[0], y[1], y[2]),
        (kh, kw),
        tuple(node.attrs["strides"]),
        tuple(node.attrs["dilations"]),
    )


def depthwise_code(
    isa: Isa,
    source: Source,
    blocks: Sequence[Block],
    epilogue: Int8Epilogue,
    weights: Array,
    seconds: float,
) -> tuple[Code, int, int]:
    """Return the kernel of a depthwise conv, its chunks and the bytes each thread needs of its own.

    Only the forms of arrays count.
    """
    kernel = _DepthwiseKernel(isa, source, blocks, epilogue, weights, seconds)
    return kernel.code(), kernel.chunks, kernel.local_bytes


def depthwise_step(
    context: Context,
    source: Source,
    blocks: Sequence[Block],
    epilogue: Int8Epilogue,
    operands: tuple[Operand, Array, int],
) -> Step:
    """Return the step of a depthwise conv; operands: image, weights, the value that is made."""
    x, weights, y = operands
    seconds = _cycles(context.isa, source.window, blocks, source.image.dot) / CYCLES_PER_S
    code, chunks, local_bytes = context.kernel(
        depthwise_code, source, tuple(blocks), epilogue.form, form_of(weights), seconds
    )
    reads = (x, weights, epilogue.data, *source.constants(), *epilogue.operands)
    return Step(code, reads, (y,), chunks, local_bytes, seconds, family="depthwise_q8")


def _cycles(isa: Isa, window: DepthwiseWindow, blocks: Sequence[Block], dot: Dot) -> float:
    """Return about what all output lines take: columns, products, the way to bytes."""
    (kh, kw), taps = window.kernel, dot.taps
    groups = -(-kh // taps)
    columns = (kw - window.kept) * groups * 2 * taps
    one = columns + kw * groups * taps + 4 * taps
    share = sum(b.repeat * {16: 1.0, 8: 0.7, 4: 0.5}[b.lanes] for b in blocks)
    scale = 1.0 if isa.lanes == 16 else 1.5
    return math.prod(window.out) * one * share * scale


def lane_channels(isa: Isa, blocks: Sequence[Block], dot: Dot) -> Array:
    """Return the channel in each lane of all blocks; those beyond the last channel are padding."""
    parts = []
    for block in blocks:
        one = channel_order(isa, block.lanes, dot.taps).reshape(-1)
        inside = np.where(one < block.count, one, 1 << 30)
        parts += [block.start + inside + i * len(one) for i in range(block.repeat)]
    return np.concatenate(parts)


def _epilogue(
    context: Context, node: Node, params: ProductParams, source: Source, order: Array
) -> Int8Epilogue:
    """Return how sums end; the zero point that columns still have goes into their start."""
    w = context.constant(node.used[1])
    bias = context.constant(node.used[2]) if len(node.used) > 2 else None
    wide = w.reshape(len(w), -1).astype(np.int64) - params.w_zero
    terms = -source.zero * wide.sum(1)
    if isinstance(params, FloatSumParams):
        activation = str(node.attrs["activation"])
        return static_dequantiser(terms, params, np.asarray(bias), order, activation, mixed=True)
    if bias is not None:
        terms = terms + bias.astype(np.int64)
    x, y = (context.type(value).dtype for value in (node.used[0], node.outputs[0]))
    bounds = sum_bounds(w, bias, params, x)
    return requantiser(context.isa, params, y, terms, bounds, order, context.recipes)


def pack_weights(
    w: Array, zero: int, window: DepthwiseWindow, blocks: Sequence[Block], dot: Dot, order: Array
) -> Array:
    """Return weights as [block, term, kernel column, group of lines, vector, lanes, taps].

    The zero point is subtracted. Where a difference does not fit int8, a second term has the rest.
    """
    (kh, kw), taps = window.kernel, dot.taps
    wide = w.reshape(len(w), kh, kw).astype(np.int16) - zero
    terms = [wide]
    if dot is QUADS:
        first = np.clip(wide, -128, 127)
        terms = [first, wide - first] if (first != wide).any() else [first]
    groups = -(-kh // taps)
    grid = np.zeros((len(order), len(terms), kw, groups * taps), np.int16)
    inside = order < len(w)
    grid[inside, :, :, :kh] = np.stack(terms, 1).transpose(0, 1, 3, 2)[order[inside]]
    parts, start = [], 0
    for block in blocks:
        size = block.repeat * block.lanes * taps
        part = grid[start : start + size].reshape(
            block.repeat, taps, block.lanes, len(terms), kw, groups, taps
        )
        parts.append(part.transpose(0, 3, 4, 5, 1, 2, 6).reshape(-1))
        start += size
    return np.concatenate(parts).astype(np.int8 if dot is QUADS else np.int16)


class _DepthwiseKernel:
    """Emits the kernel: chunks of output lines > blocks of channels > output columns."""

    def __init__(
        self,
        isa: Isa,
        source: Source,
        blocks: Sequence[Block],
        epilogue: Int8Epilogue,
        weights: Array,
        seconds: float,
    ) -> None:
        self.isa, self.source, self.blocks, self.epilogue = isa, source, blocks, epilogue
        self.window, self.dot = source.window, source.image.dot
        window = source.window
        self.groups = -(-window.kernel[0] // self.dot.taps)
        per_term = window.kernel[1] * self.groups * self.dot.taps * epilogue.data.shape[1]
        self.terms = weights.size // per_term
        self.lines = window.out[0] * window.out[1]
        self.block, self.chunks = deal(self.lines, seconds)
        while self.block > 2 and self.local_bytes > MOST_LOCAL_BYTES:
            self.block = -(-self.block // 2)
            self.chunks = -(-self.lines // self.block)

    @property
    def local_bytes(self) -> int:
        """The bytes of the largest chunk's lines."""
        return self.source.local_bytes(self.lines, self.block)

    def code(self) -> Code:
        """Operands: image, weights, table, [line of zero points], the epilogue's, output."""
        kh, kw = self.window.kernel
        kind, in_place = element_kind(self.epilogue), self.source.in_place
        name = f"depthwise_{kind}_{self.dot.name}_{kh}x{kw}"
        count = 4 + in_place + len(self.epilogue.operands)
        fn, pointers, chunk, local = begin(name, self.isa, count)
        x, w, table = pointers[:3]
        spare = pointers[3] if in_place else None
        self.extra = pointers[3 + in_place : -1]
        first: Index = chunk * self.block if self.chunks > 1 else 0
        last = fn.minimum(first + self.block, self.lines)
        if spare is None:
            needed = self.source.view.lines(fn, first, last)
            x = self.source.image.fetch(fn, x, local, *needed)
        for line in fn.range(first, last):
            rows = self.source.lines(fn, x, spare, line)
            whole = self.window.out[2] * self.window.channels
            target = fn.at(pointers[-1], line * whole, self.epilogue.element)
            lane = 0  # of the order of all blocks
            for block in self.blocks:
                size = block.lanes * self.dot.taps
                for i in fn.range(0, block.repeat):
                    self.line(fn, block, (rows, w, table, target), (line, i * size, lane))
                lane += block.repeat * size
        return finish(fn)

    def line(
        self,
        fn: Function,
        block: Block,
        pointers: tuple[Sequence[Value], Value, Value, Value],
        place: tuple[Index, Index, int],
    ) -> None:
        """Emit one output line of one block: its number, channel from block.start and lane."""
        rows, w, table, y = pointers
        number, along, lane = place
        window, element = self.window, self.dot.element
        kernel = self.terms * window.kernel[1] * self.groups * self.dot.taps
        weights = fn.at(fn.at(w, along * kernel, element), lane * kernel, element)
        rows = [fn.at(row, along + block.start, self.source.element) for row in rows]
        target = fn.at(y, along + block.start, self.epilogue.element)
        start = along + lane
        channels = (table, start, block.lanes, self.dot.taps)
        mark = self.epilogue.enter(fn, self.extra, number, channels)
        type = vector(block.lanes, "i32")
        kept = [
            [Var(fn, type, part) for part in self.source.column(fn, rows, block.lanes, 0, kx)]
            for kx in range(window.kept)
        ]

        def one(ox: Index) -> None:
            columns = [[var.get() for var in column] for column in kept]
            for kx in range(window.kept, window.kernel[1]):
                columns.append(self.source.column(fn, rows, block.lanes, ox, kx))
            sums = self.sums(
                fn, block, weights, columns, list(self.epilogue.start(fn, channels, mark))
            )
            place_of = fn.at(target, ox * window.channels, self.epilogue.element)
            self.epilogue.finish(fn, sums, channels, mark, place_of, block.count)
            for column, again in zip(kept, columns[window.strides[1] :], strict=False):
                for var, part in zip(column, again, strict=True):
                    var.set(part)

        low, high = self.source.inner()
        for edge in range(low):
            one(edge)
        for ox in fn.range(low, high):
            one(ox)
        for edge in range(high, window.out[2]):
            one(edge)

    def sums(
        self,
        fn: Function,
        block: Block,
        weights: Value,
        columns: Sequence[Sequence[Value]],
        sums: list[Value],
    ) -> list[Value]:
        """Return the sums of one output column by vector of channels; `sums` they begin with."""
        type = vector(block.lanes, "i32")
        at = 0
        for _ in range(self.terms):
            for column in columns:
                for k, part in enumerate(column):
                    weight = fn.load(type, fn.at(weights, at * block.lanes, "i32"), 4)
                    v = k % self.dot.taps
                    sums[v] = emit_dot(fn, self.dot, sums[v], part, weight)
                    at += 1
        return sums
