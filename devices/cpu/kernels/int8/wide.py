"""conv and fully_connected of int16 by int8 weights, summed in pairs and requantised in 64 bits.

A step multiplies pairs of neighbouring channels of a pixel with a vector of output channels.
A lane of 32 bits holds 255 steps of any data, or all of them where the weights are small enough.
Then it is added to 64 bits. A kernel of windows skips what lies outside the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import (
    CYCLES_PER_S,
    PAIRS,
    clamp_and_narrow,
    emit_dot,
    load_stored,
    store_stored,
)
from trireme.devices.cpu.kernels.lowering import begin, deal, finish
from trireme.support.records import dataclass

MOST_STEPS = 255
"""Steps of any pairs whose sum fits 32 bits: each is 2**23 at most."""
_VECTORS = 4
_PIXELS = 4
_BELOW_HALF = 0.49999999999999994
"""The greatest float64 below a half: adding it and cutting rounds halves away from zero."""


@dataclass(frozen=True)
class WideAxis:
    """A window's way over one axis: sizes of image and output, kernel, stride, dilation, pad."""

    size: int
    out: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    @property
    def leaves(self) -> bool:
        """Whether windows reach beyond the image."""
        last = (self.out - 1) * self.stride + (self.kernel - 1) * self.dilation - self.pad
        return self.pad > 0 or last >= self.size


@dataclass(frozen=True)
class WidePlan:
    """A product: images, windows by axis, channels in and out, and the ends of results.

    flush: where sums of 32 bits are added to those of 64: "end", or after each "row", "tap" or
        "block" of a window
    is_scaled: whether a sum is multiplied by a float64, as fully_connected has it
    """

    images: int
    rows: WideAxis
    columns: WideAxis
    depth: int
    channels: int
    low: int
    high: int
    flush: str = "end"
    is_scaled: bool = False
    is_depthwise: bool = False

    @property
    def steps(self) -> int:
        """Pairs of channels of a pixel."""
        return -(-self.depth // 2)

    def vectors(self, lanes: int) -> int:
        """Return the vectors of channels that a kernel sums at once."""
        return min(_VECTORS, -(-self.channels // lanes))

    def seconds(self, lanes: int) -> float:
        """Return about the seconds of the product on one thread."""
        window = self.rows.kernel * self.columns.kernel * (1 if self.is_depthwise else self.steps)
        outputs = self.images * self.rows.out * self.columns.out * -(-self.channels // lanes)
        return outputs * (window * (2.0 if self.is_depthwise else 0.8) + 12) / CYCLES_PER_S


def wide_kernel(isa: Isa, plan: WidePlan) -> tuple[Code, int]:
    """Return the kernel, and its chunks.

    Operands: image, weights, bias, factors, whole shifts, result; the last two arrays of numbers
    a channel are 64 bits, padded to whole blocks of channels
    """
    fn, operands, chunk, _ = begin("wide_depthwise" if plan.is_depthwise else "wide", isa, 6)
    width = plan.vectors(isa.lanes) * isa.lanes
    blocks, lines = -(-plan.channels // width), plan.images * plan.rows.out
    size, chunks = deal(lines * blocks, plan.seconds(isa.lanes))
    first = chunk * size
    may_share = not plan.columns.leaves and plan.flush == "end" and not plan.is_depthwise
    most = _PIXELS if may_share and plan.vectors(isa.lanes) * _PIXELS <= isa.registers // 2 else 1
    for unit in fn.range(first, fn.minimum(first + size, lines * blocks)):
        line, block = fn.integer("udiv", unit, blocks), fn.integer("urem", unit, blocks)
        whole = plan.columns.out // most * most
        for column in fn.range(0, whole, most):
            _Tile(fn, plan, operands, block, most).emit(line, column)
        for column in fn.range(whole, plan.columns.out):
            _Tile(fn, plan, operands, block, 1).emit(line, column)
    return finish(fn), chunks


class _Tile:
    """Neighbouring output pixels by a block of channels, while it is emitted."""

    def __init__(
        self, fn: Function, plan: WidePlan, operands: Sequence[Value], block: Index, pixels: int
    ) -> None:
        self.fn, self.plan, self.block, self.pixels = fn, plan, block, pixels
        self.x, self.w, *self.numbers, self.y = operands
        self.lanes = fn.isa.lanes
        self.vectors = plan.vectors(self.lanes)
        narrow, wide = vector(self.lanes, "i32"), vector(self.lanes, "i64")
        places = range(pixels * self.vectors)
        self.sums = [Var(fn, narrow, 0) for _ in places]
        self.totals = [Var(fn, wide, 0) for _ in places] if plan.flush != "end" else []

    def emit(self, line: Index, column: Index) -> None:
        """Emit the sums of the tile at a line of all images, and store the results."""
        fn, plan = self.fn, self.plan
        image = fn.integer("udiv", line, plan.rows.out) if plan.images > 1 else 0
        row = fn.integer("urem", line, plan.rows.out) if plan.images > 1 else line
        top, left = (
            at * axis.stride - axis.pad for at, axis in ((row, plan.rows), (column, plan.columns))
        )
        for ky in fn.range(*self._bounds(top, plan.rows)):
            here = (image * plan.rows.size + top + ky * plan.rows.dilation) * plan.columns.size
            for kx in fn.range(*self._bounds(left, plan.columns)):
                pixel = (here + left + kx * plan.columns.dilation) * plan.depth
                self._tap(fn.at(self.x, pixel, "i16"), ky * plan.columns.kernel + kx)
                self._flush("tap")
            self._flush("row")
        self._store(line * plan.columns.out + column)

    def _bounds(self, origin: Index, axis: WideAxis) -> tuple[Index, Index]:
        """Return which taps of an axis lie inside the image."""
        if not axis.leaves:
            return 0, axis.kernel
        fn, step = self.fn, axis.dilation
        start = fn.as_value("i64", origin)
        before, after = start * -1 + (step - 1), start * -1 + (axis.size + step - 1)
        if step > 1:
            before, after = (fn.emit("i64", f"sdiv {one}, {step}") for one in (before, after))
        return fn.maximum(before, 0), fn.minimum(after, axis.kernel)

    def _tap(self, pixel: Value, tap: Index) -> None:
        fn, plan = self.fn, self.plan
        if plan.is_depthwise:
            self._depthwise_tap(pixel, tap)
            return
        taps = plan.rows.kernel * plan.columns.kernel
        base = (self.block * taps + tap) * plan.steps
        full = plan.depth // 2
        each = MOST_STEPS if plan.flush == "block" else max(full, 1)
        for start in range(0, full, each):
            for step in fn.range(start, min(start + each, full)):
                pairs = [
                    fn.load("i32", fn.at(pixel, step * 2 + self._beside(p), "i16"), 2)
                    for p in range(self.pixels)
                ]
                self._step(pairs, base + step)
            self._flush("block")
        if plan.depth % 2:
            ends = [
                fn.load("i16", fn.at(pixel, plan.depth - 1 + self._beside(p), "i16"), 2)
                for p in range(self.pixels)
            ]
            self._step([fn.convert("zext", end, "i32") for end in ends], base + full)

    def _beside(self, pixel: int) -> int:
        return pixel * self.plan.columns.stride * self.plan.depth

    def _step(self, pairs: Sequence[Value], at: Index) -> None:
        fn, lanes = self.fn, self.lanes
        ws = [
            fn.load(vector(lanes, "i32"), fn.at(self.w, (at * self.vectors + v) * lanes, "i32"))
            for v in range(self.vectors)
        ]
        for p, pair in enumerate(pairs):
            x = fn.splat(pair, lanes)
            for v, w in enumerate(ws):
                sum_ = self.sums[p * self.vectors + v]
                sum_.set(emit_dot(fn, PAIRS, sum_.get(), x, w))

    def _depthwise_tap(self, pixel: Value, tap: Index) -> None:
        fn, lanes = self.fn, self.lanes
        taps = self.plan.rows.kernel * self.plan.columns.kernel
        for counts in self._counts():
            for v, count in enumerate(counts):
                if not count:
                    continue
                channel = self.block * (self.vectors * lanes) + v * lanes
                stored = load_stored(fn, fn.at(pixel, channel, "i16"), lanes, count, "i16")
                at = ((self.block * taps + tap) * self.vectors + v) * lanes
                w = fn.load(vector(lanes, "i32"), fn.at(self.w, at, "i32"))
                product = fn.convert("sext", stored, w.type) * w
                self.sums[v].set(self.sums[v].get() + product)

    def _counts(self) -> Iterator[list[int]]:
        """Yield the channels of each vector: around code for the last block, and for the others."""
        width = self.vectors * self.lanes
        rest = self.plan.channels % width
        last = [min(max(rest - v * self.lanes, 0), self.lanes) for v in range(self.vectors)]
        full = [self.lanes] * self.vectors
        blocks = -(-self.plan.channels // width)
        if not rest or blocks == 1:
            yield last if rest else full
            return
        is_last = self.fn.compare("eq", self.fn.as_value("i64", self.block), blocks - 1)
        for branch in self.fn.either(is_last):
            yield last if branch else full

    def _flush(self, where: str) -> None:
        if where != self.plan.flush:
            return
        for sum_, total in zip(self.sums, self.totals, strict=True):
            total.set(total.get() + self.fn.convert("sext", sum_.get(), total.get().type))
            sum_.set(self.fn.as_value(vector(self.lanes, "i32"), 0))

    def _store(self, pixel: Index) -> None:
        fn, plan, lanes = self.fn, self.plan, self.lanes
        wide = vector(lanes, "i64")
        if self.totals:
            self._flush(plan.flush)
        made = []
        for p in range(self.pixels):
            for v in range(self.vectors):
                place = p * self.vectors + v
                total = (
                    self.totals[place].get()
                    if self.totals
                    else fn.convert("sext", self.sums[place].get(), wide)
                )
                made.append(self._requantised(total, v))
        for counts in self._counts():
            for place, value in enumerate(made):
                p, v = divmod(place, self.vectors)
                if counts[v]:
                    channel = self.block * (self.vectors * lanes) + v * lanes
                    at = (pixel + p) * plan.channels + channel
                    store_stored(fn, value, fn.at(self.y, at, "i16"), counts[v])

    def _requantised(self, total: Value, v: int) -> Value:
        """Return the stored results of sums: see WideParams and ScaledParams."""
        fn, plan, lanes = self.fn, self.plan, self.lanes
        wide, at = total.type, self.block * (self.vectors * lanes) + v * lanes
        bias, factor, shift = (fn.at(one, at, "i64") for one in self.numbers)
        total = total + fn.load(wide, bias)
        if plan.is_scaled:
            reals = vector(lanes, "double")
            real = fn.convert("sitofp", total, reals) * fn.load(reals, factor)
            real = fn.select(fn.compare("ogt", real, float(plan.low)), real, float(plan.low))
            real = fn.select(fn.compare("olt", real, float(plan.high)), real, float(plan.high))
            half = fn.select(
                fn.compare("olt", real, 0.0),
                fn.as_value(reals, -_BELOW_HALF),
                fn.as_value(reals, _BELOW_HALF),
            )
            whole = fn.convert("fptosi", real + half, vector(lanes, "i32"))
            return fn.convert("trunc", whole, vector(lanes, "i16"))
        by = fn.load(wide, shift)
        half = fn.emit(wide, f"shl {fn.as_value(wide, 1)}, {(by + -1).text}")
        moved = fn.emit(wide, f"ashr {total * fn.load(wide, factor) + half}, {by.text}")
        narrow = fn.convert("trunc", moved, vector(lanes, "i32"))
        return clamp_and_narrow(fn, narrow, 0, plan.low, plan.high, "i16")
