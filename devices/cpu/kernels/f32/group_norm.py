"""Instance and group normalisation: moments of blocks, moments of groups, then every element.

A group of channels of an image has one mean and variance. Channels last, the image is rows of
pixels whose lanes are channels; channels first, a group is one row. Rows are cut into blocks, so
threads share an image. A block's sum of squares is taken around the block's own mean, and blocks
are joined exactly: a mean far from zero costs no digits.
Source: T. Chan, G. Golub, R. LeVeque, Updating Formulae and a Pairwise Algorithm for Computing
Sample Variances, 1979
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.rows import EmittedRow, Rows, across, each_row, keep
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Rule,
    Step,
    Temp,
    begin,
    deal,
    finish,
    float_reason,
)
from trireme.ir.graph import Graph, Node
from trireme.support.records import dataclass

_BLOCK_BYTES, _MOST_BLOCKS = 64 << 10, 64
MOMENTS_COST, NORMALISE_COST = 4, 3
"""Half cycles that a vector of elements takes."""


@dataclass(frozen=True)
class GroupedImages:
    """Images of some channels in groups; `area` pixels each, cut into blocks."""

    batch: int
    area: int
    channels: int
    groups: int
    is_last: bool
    blocks: int

    @property
    def rows(self) -> Rows:
        """The blocks as rows."""
        if self.is_last:
            return Rows(self.batch * self.blocks, self.area // self.blocks, self.channels)
        row = self.channels // self.groups * self.area
        return Rows(self.batch * self.groups * self.blocks, row // self.blocks, 1)

    @property
    def moments(self) -> Rows:
        """Moments of blocks: images, blocks whose moments lie apart, neighbours in a group."""
        if self.is_last:
            return Rows(self.batch, self.blocks, self.channels // self.groups)
        return Rows(self.batch, 1, self.blocks)

    @property
    def entries(self) -> int:
        """Moments of all blocks."""
        return self.rows.outer * self.rows.inner


def image_of(graph: Graph, node: Node) -> GroupedImages:
    """Return the image of a normalisation; one channel is one row in either layout."""
    dims = graph.type(node.used[0]).dims
    is_last = node.attrs["layout"] == "NHWC"
    channels = dims[-1] if is_last else dims[1]
    area = math.prod(dims[1:]) // channels
    groups = node.attrs.get("num_groups", channels)
    is_last = is_last and channels > 1
    row = area if is_last else channels // groups * area
    nbytes = 4 * row * (channels if is_last else 1)
    return GroupedImages(dims[0], area, channels, groups, is_last, _blocks(row, nbytes))


def _blocks(row: int, nbytes: int) -> int:
    """Return how many equal blocks to cut a row into: the fewest that are small, if there are."""
    wanted = min(-(-nbytes // _BLOCK_BYTES), _MOST_BLOCKS)
    exact = [n for n in range(1, 2 * _MOST_BLOCKS + 1) if row % n == 0]
    return min((n for n in exact if n >= wanted), default=exact[-1])


def moments_kernel(isa: Isa, rows: Rows) -> tuple[Code, int]:
    """Return the kernel of blocks' means and sums of squares around them, and its chunks.

    Operands: x, the means [entries] and behind them the sums of squares [entries]
    """
    fn, (x, y), chunk, _ = begin("group_norm_moments_f32", isa, 2)
    entries = rows.outer * rows.inner
    chunks, emit = each_row(fn, chunk, rows, MOMENTS_COST)

    def body(row: EmittedRow) -> None:
        mean = row.total(x, 0.0, lambda v: v, _add) / float(rows.count)
        spread = row.total(x, 0.0, lambda v: (v - mean) * (v - mean), _add)
        block = fn.integer("udiv", row.offset, rows.count * rows.inner)
        lane = fn.integer("urem", row.offset, rows.inner)
        width = row.width if rows.inner > 1 else 1
        at = fn.as_value("i64", block) * rows.inner + lane
        fn.store_some(mean, fn.at(y, at), width)
        fn.store_some(spread, fn.at(y, at + entries), width)

    emit(body)
    return finish(fn), chunks


def _add(a: Value, b: Value) -> Value:
    return a + b


def join_kernel(isa: Isa, image: GroupedImages, epsilon: float) -> tuple[Code, int, float]:
    """Return the kernel that joins blocks to groups, its chunks and seconds.

    Operands: what moments_kernel makes, scale [C], for each image and channel the mean and behind
    them the factors scale / sqrt(variance + epsilon)
    """
    fn, (moments, scale, y), chunk, _ = begin("group_norm_join_f32", isa, 3)
    seconds = image.batch * (image.entries // image.batch + image.channels) * 1e-9
    size, chunks = deal(image.batch, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    joiner = _Joiner(fn, image, epsilon, (moments, scale, y))
    for n in fn.range(first, fn.minimum(first + size, image.batch)):
        if image.moments.inner == 1 and image.is_last:
            joiner.channels(n)
        else:
            for group in fn.range(0, image.groups):
                joiner.group(n, group)
    return finish(fn), chunks, seconds


class _Joiner:
    """Writes the means and factors of an image from the moments of its blocks."""

    def __init__(
        self, fn: Function, image: GroupedImages, epsilon: float, places: tuple[Value, Value, Value]
    ) -> None:
        self.fn, self.image, self.epsilon = fn, image, epsilon
        self.moments, self.scale, self.y = places
        self.type = vector(fn.isa.lanes, "float")

    def channels(self, n: Index) -> None:
        """Emit an image whose channels are groups of their own: lanes are channels."""
        image, lanes = self.image, self.fn.isa.lanes
        whole = image.channels // lanes * lanes
        for channel in self.fn.range(0, whole, lanes):
            self._finish(n, channel, lanes, *self._joined(n, channel, lanes, 1))
        if whole < image.channels:
            rest = image.channels - whole
            self._finish(n, whole, rest, *self._joined(n, whole, rest, 1))

    def group(self, n: Index, group: Index) -> None:
        """Emit a group: its lanes are joined in the end."""
        fn, image, lanes = self.fn, self.image, self.fn.isa.lanes
        width = image.moments.inner
        found = self._joined(n, group * width, width, width)
        each = image.channels // image.groups
        for channel in fn.range(0, each // lanes * lanes, lanes):
            self._finish(n, group * each + channel, lanes, *found)
        if each % lanes:
            start = each // lanes * lanes
            self._finish(n, group * each + start, each % lanes, *found)

    def _joined(self, n: Index, at: Index, count: int, width: int) -> tuple[Value, Value]:
        """Return mean and 1 / sqrt(variance + epsilon), of `width` neighbours or of each lane."""
        image, number = self.image, float(self.image.moments.count * width)
        each = float(image.rows.count)
        mean = self._sum(n, at, count, width, lambda m, s: m) / number

        def square(m: Value, s: Value) -> Value:
            return (m - mean) * (m - mean) * each + s

        spread = self._sum(n, at, count, width, square)
        variance = spread / (each * number)
        return mean, 1.0 / self.fn.unary("sqrt", variance + self.epsilon)

    def _sum(
        self, n: Index, at: Index, count: int, width: int, term: Callable[[Value, Value], Value]
    ) -> Value:
        """Return term(mean, sum of squares) summed over blocks, and over lanes if width > 1."""
        fn, image, lanes = self.fn, self.image, self.fn.isa.lanes
        step = image.entries // image.batch // image.moments.count
        total = Var(fn, self.type, 0.0)
        for block in fn.range(0, image.moments.count):
            start = (fn.as_value("i64", n) * image.moments.count + block) * step + at
            for k in fn.range(0, count // lanes * lanes, lanes):
                total.set(total.get() + self._term(start + k, lanes, term))
            if count % lanes:
                rest = count % lanes
                value = self._term(start + (count - rest), rest, term)
                total.set(total.get() + keep(fn, value, rest, 0.0))
        joined = total.get()
        is_row = width > 1 or not image.is_last
        return across(fn, joined, _add) if is_row else joined

    def _term(self, at: Value, count: int, term: Callable[[Value, Value], Value]) -> Value:
        fn = self.fn
        mean = fn.load_some(self.type, fn.at(self.moments, at), count)
        square = fn.load_some(self.type, fn.at(self.moments, at + self.image.entries), count)
        return term(mean, square)

    def _finish(self, n: Index, channel: Index, count: int, mean: Value, inverse: Value) -> None:
        """Emit the store of some channels' means and factors."""
        fn, image = self.fn, self.image
        scale = fn.load_some(self.type, fn.at(self.scale, channel), count)
        at = fn.as_value("i64", n) * image.channels + channel
        fn.store_some(mean, fn.at(self.y, at), count)
        fn.store_some(scale * inverse, fn.at(self.y, at + image.batch * image.channels), count)


def normalise_kernel(isa: Isa, image: GroupedImages) -> tuple[Code, int]:
    """Return the kernel (x - mean) * factor + bias, and its chunks.

    Operands: x, what join_kernel makes, bias [C], y
    """
    fn, (x, joined, bias, y), chunk, _ = begin("group_norm_apply_f32", isa, 4)
    number = image.batch * image.channels
    if image.is_last:
        rows = Rows(image.batch * image.area, image.channels, 1)
    else:
        rows = Rows(number, image.area, 1)
    chunks, emit = each_row(fn, chunk, rows, NORMALISE_COST)

    def body(row: EmittedRow) -> None:
        line = fn.integer("udiv", row.offset, rows.count)
        if image.is_last:
            channel: Index = 0
            place = fn.as_value("i64", fn.integer("udiv", line, image.area)) * image.channels
        else:
            channel, place = fn.integer("urem", line, image.channels), fn.as_value("i64", line)
        places = (fn.at(joined, place), fn.at(joined, place + number), fn.at(bias, channel))
        same = [] if image.is_last else [fn.splat(fn.load("float", p), isa.lanes) for p in places]
        for step, count, _ in row.walk(2):
            mean, factor, offset = same or (
                fn.load_some(row.type, fn.at(p, step * isa.lanes), count) for p in places
            )
            row.store(fn.fma(row.load(x, step, count) - mean, factor, offset), y, step, count)

    emit(body)
    return finish(fn), chunks


def _lower(context: Context, node: Node) -> list[Step]:
    image = image_of(context.graph, node)
    x, scale, bias = (context.operand(i) for i in node.used)
    moments = Temp(f"%{node.outputs[0]} moments", 8 * image.entries)
    joined = Temp(f"%{node.outputs[0]} factors", 8 * image.batch * image.channels)
    second = context.type(node.used[0]).elements / (context.isa.lanes * 2e9)
    made, chunks = context.kernel(moments_kernel, image.rows)
    first = Step(made, (x,), (moments,), chunks, seconds=MOMENTS_COST * second, family="group_norm")
    code, parts, join_s = context.kernel(join_kernel, image, node.attrs["epsilon"])
    join = Step(code, (moments, scale), (joined,), parts, seconds=join_s, family="group_norm")
    code, pieces = context.kernel(normalise_kernel, replace(image, groups=1, blocks=1))
    reads = (x, joined, bias)
    last = Step(
        code, reads, node.outputs, pieces, seconds=NORMALISE_COST * second, family="group_norm"
    )
    return [first, join, last]


def _reason(graph: Graph, node: Node) -> str | None:
    return float_reason(graph, node)


TABLE.add(("instance_normalization", "group_normalization"), Rule(_reason, _lower), ["float32"])
