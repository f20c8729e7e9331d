"""The tiles of the kernels that slide a window over each channel by itself.

An output row is cut into tiles of columns. Their accumulators stay in registers while a loop goes
over the channels, vector by vector. Each input column of a tile is loaded once a kernel row. The
generator knows which kernel columns fall into the padding. The code asks once a row which kernel
rows do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from trireme.devices.cpu.codegen.index import known
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.open_rows import emit_columns
from trireme.devices.cpu.kernels.f32.window_body import WindowBody, column_segments, tile_columns
from trireme.support.records import dataclass

_MOST_UNROLLED = 1500
"""Taps times columns that one tile's code spells out."""


class WindowEmitter:
    """Writes a window kernel: chunk of rows > row > tile of columns > channels.

    part: the first channel that is done and that after the last, where not all are: whole vectors
    """

    def __init__(
        self,
        fn: Function,
        window: ImageWindow,
        body: WindowBody,
        x: Value,
        y: Value,
        part: tuple[Value, Value] | None = None,
    ) -> None:
        self.fn, self.window, self.body, self.x, self.y = fn, window, body, x, y
        self.part = part
        self.lanes = fn.isa.lanes
        self.type = vector(self.lanes, "float")
        most = 14 if fn.isa.registers >= 32 else 8
        most = max(1, min(most, _MOST_UNROLLED // math.prod(window.kernel)))
        self.tile = tile_columns(window, most)

    def rows(self, first: Index, last: Index) -> None:
        """Emit output rows first..last, counted over the batch."""
        fn, window = self.fn, self.window
        for row in fn.range(first, last):
            n, oh = (fn.integer(op, row, window.out_height) for op in ("udiv", "urem"))
            top = fn.as_value("i64", oh) * window.strides[0] - window.pads[0]
            inside = [self._inside(top, kh) for kh in range(window.kernel[0])]
            line = fn.as_value("i64", n) * window.height + top
            width = window.width * window.channels
            x = fn.at(self.x, line * width)
            at = fn.as_value("i64", row) * (window.out_width * window.channels)
            self._columns(x, at, inside)

    def _inside(self, top: Value, kh: int) -> Value | bool:
        """Whether a kernel row lies in the image: known, or tested at run time."""
        window = self.window
        offset = kh * window.dilations[0]
        if not known(window.height):
            return self.fn.compare("ult", top + offset, window.height)
        reach = (window.out_height - 1) * window.strides[0] - window.pads[0] + offset
        if offset >= window.pads[0] and reach < window.height:
            return True
        return self.fn.compare("ult", top + offset, window.height)

    def _columns(self, x: Value, at: Value, inside: Sequence[Value | bool]) -> None:
        """Emit a row's tiles of columns."""
        if not known(self.window.width):
            emit_columns(self.fn, self.window, self.tile, partial(self._tile, x, at, inside))
            return
        for starts, taps in column_segments(self.window, self.tile):
            for start in self.fn.range(starts.start, starts.stop, starts.step):
                self._tile(x, at, inside, start, taps)

    def _tile(
        self,
        x: Value,
        at: Value,
        inside: Sequence[Value | bool],
        start: Index,
        taps: Sequence[Sequence[int]],
        met: Sequence[Value] | None = None,
    ) -> None:
        """Emit one tile of columns: its channels, whole vectors and then the rest.

        met: which kernel columns the only column meets, where that is asked at run time
        """
        fn, channels = self.fn, self.window.channels
        left = _scaled(start, self.window.strides[1], -self.window.pads[1])
        x = fn.at(x, _scaled(left, channels, 0))
        at = at + _scaled(start, channels, 0)
        whole = channels // self.lanes * self.lanes
        low, high = self.part or (0, channels)
        for channel in fn.range(low, fn.minimum(high, whole), self.lanes):
            self._vector(x, at, inside, taps, channel, self.lanes, met)
        if whole == channels:
            return
        has_rest = fn.compare("sgt", high, whole) if isinstance(high, Value) else None
        with nullcontext() if has_rest is None else fn.when(has_rest):
            self._vector(x, at, inside, taps, whole, channels - whole, met)

    def _vector(
        self,
        x: Value,
        at: Value,
        inside: Sequence[Value | bool],
        taps: Sequence[Sequence[int]],
        channel: Index,
        count: int,
        met: Sequence[Value] | None,
    ) -> None:
        """Emit one vector of channels; again with care where the careless body met NaN."""
        fn = self.fn
        part = _TilePart(fn.at(x, channel), at, inside, taps, channel, count, met)
        careless = self.body.careless()
        if careless is None:
            self._store(self.body, part, *self._accumulate(self.body, part, None))
            return
        odd = Var(fn, vector(self.lanes, "i1"), 0)
        made = self._accumulate(careless, part, odd)
        bits = fn.convert("bitcast", odd.get(), f"i{self.lanes}")
        for is_odd in fn.either(fn.compare("ne", bits, 0)):
            body = self.body if is_odd else careless
            self._store(body, part, *(self._accumulate(body, part, None) if is_odd else made))

    def _accumulate(
        self, body: WindowBody, part: _TilePart, odd: Var | None
    ) -> tuple[list[Var], Var]:
        """Emit a tile's accumulators, and the number of kernel rows that they met."""
        fn = self.fn
        totals = [Var(fn, self.type, body.start(part.channel, part.count)) for _ in part.taps]
        lines = Var(fn, "float", 0.0)
        for kh, is_inside in enumerate(part.inside):
            if isinstance(is_inside, Value):
                with fn.when(is_inside):
                    self._kernel_row(body, part, totals, kh, odd)
                    lines.set(lines.get() + 1.0)
            else:
                self._kernel_row(body, part, totals, kh, odd)
                lines.set(lines.get() + 1.0)
        return totals, lines

    def _store(self, body: WindowBody, part: _TilePart, totals: Sequence[Var], lines: Var) -> None:
        fn = self.fn
        for k, total in enumerate(totals):
            place = part.at + k * self.window.channels + part.channel
            met = lines.get() * self._taps(part, k)
            value = body.end(total.get(), place, part.count, met)
            fn.store_some(value, fn.at(self.y, place), part.count)

    def _taps(self, part: _TilePart, k: int) -> Value | float:
        """The number of kernel columns that a column meets, as a float."""
        if part.met is None:
            return float(len(part.taps[k]))
        found = self.fn.as_value("i32", 0)
        for one in part.met:
            found = found + self.fn.convert("zext", one, "i32")
        return self.fn.convert("sitofp", found, "float")

    def _kernel_row(
        self, body: WindowBody, part: _TilePart, totals: Sequence[Var], kh: int, odd: Var | None
    ) -> None:
        """Emit one kernel row: input columns from left to right, each loaded once."""
        fn, window = self.fn, self.window
        stride, dilation = window.strides[1], window.dilations[1]
        if part.met is not None:
            self._asked_row(body, part, totals[0], kh, odd)
            return
        meets: dict[int, list[tuple[int, int]]] = {}
        for k, mine in enumerate(part.taps):
            for kw in mine:
                meets.setdefault(k * stride + kw * dilation, []).append((k, kw))
        used = {kw for mine in part.taps for kw in mine}
        weights = {
            kw: body.weight(kh * window.kernel[1] + kw, part.channel, part.count)
            for kw in sorted(used)
        }
        line = kh * window.dilations[0] * window.width
        before: Value | None = None
        for column in sorted(meets):
            place = fn.at(part.x, (line + column) * window.channels)
            element = fn.load_some(self.type, place, part.count)
            for k, kw in meets[column]:
                totals[k].set(body.meet(totals[k].get(), element, weights[kw]))
            if odd is not None and (before is not None or column == max(meets)):
                _note_nan(fn, odd, element, element if before is None else before)
            before = element if before is None else None

    def _asked_row(
        self, body: WindowBody, part: _TilePart, total: Var, kh: int, odd: Var | None
    ) -> None:
        """Emit one kernel row of a single column that meets some of the kernel's columns."""
        fn, window = self.fn, self.window
        line = kh * window.dilations[0] * window.width
        for kw, is_met in enumerate(part.met or ()):
            with fn.when(is_met):
                weight = body.weight(kh * window.kernel[1] + kw, part.channel, part.count)
                place = fn.at(part.x, (line + kw * window.dilations[1]) * window.channels)
                element = fn.load_some(self.type, place, part.count)
                total.set(body.meet(total.get(), element, weight))
                if odd is not None:
                    _note_nan(fn, odd, element, element)


@dataclass(frozen=True)
class _TilePart:
    """A vector of channels of a tile: addresses, kernel rows inside, taps of each column."""

    x: Value
    at: Value
    inside: Sequence[Value | bool]
    taps: Sequence[Sequence[int]]
    channel: Index
    count: int
    met: Sequence[Value] | None


def _note_nan(fn: Function, odd: Var, a: Value, b: Value) -> None:
    """Emit odd |= a or b is NaN."""
    found = fn.integer("or", odd.get(), fn.compare("uno", a, b))
    assert isinstance(found, Value)
    odd.set(found)


def _scaled(index: Index, factor: int, plus: int) -> Index:
    return index * factor + plus
