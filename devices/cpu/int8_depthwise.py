"""Depthwise convolution on 8-bit integers: a few vectors of channels at a time, down a column.

    acc[c] = bias[c] + sum over the window of (x - x_zero) * (w[c] - w_zero)

The multipliers add up four bytes (or two 16-bit integers) in one lane, so they are given a
**column** of the window: the lines of a kernel column, interleaved so that the elements of one
channel lie beside each other. Interleaving a vector from each of four lines gives four such vectors
of channels, in just the order that narrowing their sums to bytes undoes (int8_requant.py). A column
stays in registers for all output columns that see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trireme.devices.cpu.int8 import QUADS, Dot, chunks_of, dot_of, emit_dot
from trireme.devices.cpu.int8_pack import sum_bounds
from trireme.devices.cpu.int8_prepare import Image, View
from trireme.devices.cpu.int8_requant import Requantiser, channel_order, requantiser
from trireme.devices.cpu.ir import Function, Index, Value, Var, lanes_of, vector
from trireme.devices.cpu.jit import Code
from trireme.devices.cpu.kernels import Context, Step, begin, finish
from trireme.devices.cpu.target import Isa
from trireme.dtypes import Array
from trireme.errors import InternalError
from trireme.graph import Graph, Node
from trireme.op import call_of
from trireme.quantize import LinearParams, conv_params


@dataclass(frozen=True)
class Window:
    """The geometry of a depthwise convolution; `row` is the elements of a line of the image."""

    row: int
    channels: int
    out: tuple[int, int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]

    @property
    def kept(self) -> int:
        """Columns of a window that the next window sees again."""
        return max(self.kernel[1] - self.strides[1], 0) if self.dilations[1] == 1 else 0


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
    """Whether a conv has one input and one output channel a group."""
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
    params = conv_params(call_of(graph, node))
    x_type, y_type = graph.type(node.used[0]), graph.type(node.outputs[0])
    n, height, width, channels = x_type.dims
    w, y = graph.type(node.used[1]).dims, y_type.dims
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
    strides, dilations = node.attrs["strides"], node.attrs["dilations"]
    window = Window(
        image.row, channels, (y[0], y[1], y[2]), (w[1], w[2]), tuple(strides), tuple(dilations)
    )
    data = graph.values[node.used[1]].data
    bias = graph.values[node.used[2]].data if len(node.used) > 2 else None
    if data is None:
        raise InternalError(f"{node.label}: weights are not constant")
    # 16-bit sums of two narrow to bytes in order up to 256 bits
    lanes = isa.lanes if dot is QUADS else min(isa.lanes, 8)
    blocks = blocks_of(channels, dot.taps, lanes)
    order = _order(isa, blocks, dot)
    requant = _requantiser(isa, params, (data, bias), (x_type.dtype, y_type.dtype), dot, order)
    weights = _weights(data, params, window, blocks, dot, order)
    view = View(y[1], 1, image.tall, strides[0], (w[1] - 1) * dilations[0] + 1)
    taps = w[1] * w[2]
    seconds = y_type.elements * (0.3 * taps + 2.5) / (isa.lanes * 3.5e9)
    kernel = _Kernel(
        isa, window, (image, view), blocks, requant, weights, chunks_of(context, seconds)
    )
    return [
        Step(
            kernel.code(), (context.operand(node.used[0]), weights, requant.data),
            (node.outputs[0],), kernel.chunks, kernel.local_bytes, seconds, (node.id,),
        )
    ]  # fmt: skip


def _order(isa: Isa, blocks: Sequence[Block], dot: Dot) -> Array:
    """Return the channel in each lane of all blocks; those beyond the last channel are padding."""
    parts = []
    for block in blocks:
        one = channel_order(isa, block.lanes, dot.taps).reshape(-1)
        inside = np.where(one < block.count, one, 1 << 30)
        parts += [block.start + inside + i * len(one) for i in range(block.repeat)]
    return np.concatenate(parts)


def _requantiser(
    isa: Isa, params: LinearParams, constants: tuple[Array, Array | None],
    dtypes: tuple[str, str], dot: Dot, order: Array,
) -> Requantiser:  # fmt: skip
    """Return how sums become bytes; with VNNI the zero point of x goes into the bias."""
    w, bias = constants
    terms = np.zeros(len(w), np.int64) if bias is None else bias.astype(np.int64)
    if dot is QUADS:
        x_zero = params.x_zero + (128 if dtypes[0] == "int8" else 0)
        terms = terms - x_zero * (w.reshape(len(w), -1).astype(np.int64) - params.w_zero).sum(1)
    bounds = sum_bounds(w, bias, params, dtypes[0])
    return requantiser(isa, params, dtypes[1], terms, bounds, order)


def _weights(
    w: Array, params: LinearParams, window: Window, blocks: Sequence[Block], dot: Dot, order: Array
) -> Array:
    """Return weights as [block, term, kernel column, group of lines, vector, lanes, taps].

    Where a weight less its zero point does not fit int8, a second term has the rest.
    """
    (kh, kw), taps = window.kernel, dot.taps
    wide = w.reshape(len(w), kh, kw).astype(np.int16) - params.w_zero
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


class _Kernel:
    """Emits the kernel: chunks of output lines > blocks of channels > output columns."""

    def __init__(
        self, isa: Isa, window: Window, source: tuple[Image, View], blocks: Sequence[Block],
        requantiser: Requantiser, weights: Array, chunks: int,
    ) -> None:  # fmt: skip
        self.isa, self.window, self.blocks, self.requantiser = isa, window, blocks, requantiser
        self.image, self.view = source
        self.dot = self.image.dot
        self.groups = -(-window.kernel[0] // self.dot.taps)
        per_term = window.kernel[1] * self.groups * self.dot.taps * requantiser.data.shape[1]
        self.terms = weights.size // per_term
        self.lines = window.out[0] * window.out[1]
        self.block = -(-self.lines // max(1, min(chunks, self.lines)))
        self.chunks = -(-self.lines // self.block)

    @property
    def local_bytes(self) -> int:
        """What the lines of the largest chunk take."""
        return self.image.local_bytes(self.view.most_lines(self.lines, self.block))

    def code(self) -> Code:
        """Operands: image, weights, table, output."""
        kh, kw = self.window.kernel
        name = f"depthwise_q8_{self.dot.name}_{kh}x{kw}"
        fn, (x, w, table, y), chunk, local = begin(name, self.isa, 4)
        first: Index = chunk * self.block if self.chunks > 1 else 0
        last = fn.minimum(first + self.block, self.lines)
        x = self.image.fetch(fn, x, local, *self.view.lines(fn, first, last))
        _, height, width = self.window.out
        for line in fn.range(first, last):
            n = fn.integer("udiv", line, height) if self.window.out[0] > 1 else 0
            at = fn.integer("urem", line, height) if self.window.out[0] > 1 else line
            top = at * self.view.stride + n * self.view.tall
            source = fn.at(x, top * self.window.row, self.dot.element)
            target = fn.at(y, line * (width * self.window.channels), "i8")
            lane = 0  # of the order of all blocks
            for block in self.blocks:
                size = block.lanes * self.dot.taps
                for i in fn.range(0, block.repeat):
                    self.line(fn, block, (source, w, table, target), (i * size, lane))
                lane += block.repeat * size
        return finish(fn)

    def line(
        self, fn: Function, block: Block, pointers: tuple[Value, Value, Value, Value],
        place: tuple[Index, int],
    ) -> None:  # fmt: skip
        """Emit one output line of one block; place: (its channel from block.start, its lane)."""
        x, w, table, y = pointers
        along, lane = place
        window = self.window
        kernel = self.terms * window.kernel[1] * self.groups * self.dot.taps
        weights = fn.at(fn.at(w, along * kernel, self.dot.element), lane * kernel, self.dot.element)
        source = fn.at(x, along + block.start, self.dot.element)
        target = fn.at(y, along + block.start, "i8")
        start = along + lane
        type = vector(block.lanes, "i32")
        kept = [
            [
                Var(fn, type, part)
                for part in self.column(
                    fn, block, fn.at(source, kx * window.channels, self.dot.element)
                )
            ]
            for kx in range(window.kept)
        ]
        exceptions = self.requantiser.has_exceptions(fn, table, start, block.lanes, self.dot.taps)
        step = window.strides[1] * window.channels
        for ox in fn.range(0, window.out[2]):
            at = fn.at(source, ox * step, self.dot.element)
            columns = [[var.get() for var in column] for column in kept]
            for kx in range(window.kept, window.kernel[1]):
                offset = kx * window.dilations[1] * window.channels
                columns.append(self.column(fn, block, fn.at(at, offset, self.dot.element)))
            sums = self.sums(fn, block, weights, columns, (table, start))
            numbers = self.requantiser.numbers(fn, sums, table, start, exceptions)
            place_of = fn.at(target, ox * window.channels, "i8")
            self.requantiser.store(fn, numbers, place_of, block.count)
            for column, again in zip(kept, columns[window.strides[1] :], strict=False):
                for var, part in zip(column, again, strict=True):
                    var.set(part)

    def column(self, fn: Function, block: Block, pointer: Value) -> list[Value]:
        """Return a kernel column: for each group of lines and vector of channels, their taps."""
        taps, element = self.dot.taps, self.dot.element
        type = vector(block.lanes * taps, element)
        zero = Value(fn, type, "zeroinitializer")
        step = self.window.dilations[0] * self.window.row
        found = []
        for first in range(0, self.groups * taps, taps):
            lines = [
                fn.load(type, fn.at(pointer, ky * step, element), 1)
                if ky < self.window.kernel[0] else zero
                for ky in range(first, first + taps)
            ]  # fmt: skip
            found += _interleaved(fn, lines)
        return found

    def sums(
        self, fn: Function, block: Block, weights: Value, columns: Sequence[Sequence[Value]],
        channels: tuple[Value, Index],
    ) -> list[Value]:  # fmt: skip
        """Return the sums of one output column, by vector of channels."""
        taps = self.dot.taps
        type = vector(block.lanes, "i32")
        table, start = channels
        sums = [
            self.requantiser.bias(fn, table, start + v * block.lanes, block.lanes)
            for v in range(taps)
        ]
        at = 0
        for _ in range(self.terms):
            for column in columns:
                for k, part in enumerate(column):
                    weight = fn.load(type, fn.at(weights, at * block.lanes, "i32"), 4)
                    sums[k % taps] = emit_dot(fn, self.dot, sums[k % taps], part, weight)
                    at += 1
        return sums


def _interleaved(fn: Function, lines: Sequence[Value]) -> list[Value]:
    """Return two or four vectors of lines as as many vectors of 32-bit groups, one a channel."""
    if len(lines) == 2:
        pairs = [_unpacked(fn, lines[0], lines[1], high) for high in (False, True)]
    else:
        pairs = []
        for high in (False, True):
            ab, cd = (_unpacked(fn, lines[i], lines[i + 1], high) for i in (0, 2))
            words = vector(lanes_of(ab.type) // 2, "i16")
            ab, cd = (fn.convert("bitcast", v, words) for v in (ab, cd))
            pairs += [_unpacked(fn, ab, cd, upper) for upper in (False, True)]
    lanes = vector(lanes_of(pairs[0].type) // 2, "i32")  # pairs of 16-bit integers by now
    return [fn.convert("bitcast", pair, lanes) for pair in pairs]


def _unpacked(fn: Function, a: Value, b: Value, high: bool) -> Value:
    """Interleave the elements of the lower (or upper) halves of every 128 bits of a and b."""
    lanes = lanes_of(a.type)
    per = 16 if a.type.endswith("i8>") else 8
    order = []
    for part in range(0, lanes, per):
        first = part + (per // 2 if high else 0)
        for i in range(first, first + per // 2):
            order += [i, lanes + i]
    return fn.shuffle(a, b, order)
