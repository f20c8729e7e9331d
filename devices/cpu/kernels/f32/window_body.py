"""The bodies of window kernels, and the cut of output rows into tiles."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.kernels.expressions import activate
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow


class WindowBody(ABC):
    """The work of a window kernel on the elements of a window."""

    name = ""
    reads = 1

    @abstractmethod
    def start(self, channel: Index, count: int) -> Value:
        """Return the accumulators' first value."""

    def weight(self, tap: int, channel: Index, count: int) -> Value | None:
        """Return the vector of weights of a kernel position, if there are weights."""
        return None

    @abstractmethod
    def meet(self, total: Value, x: Value, weight: Value | None) -> Value:
        """Return an accumulator after one more element."""

    def careless(self) -> WindowBody | None:
        """Return a body that does the same where no element is NaN, in less time; if there is."""
        return None

    @abstractmethod
    def end(self, total: Value, at: Index, count: int, taps: Value) -> Value:
        """Return the value to store at `at`; taps is the number of elements met, as a float."""


class DepthwiseBody(WindowBody):
    """Multiply by weights [KH*KW, C]; bias, residual and activation at the end."""

    def __init__(
        self,
        fn: Function,
        operands: Sequence[Value],
        channels: int,
        activation: str,
        bias: bool,
        residual: bool,
    ) -> None:
        self.fn, self.channels, self.activation = fn, channels, activation
        _, self.weights, *extra, _ = operands
        self.bias = extra.pop(0) if bias else None
        self.residual = extra.pop(0) if residual else None
        self.type = vector(fn.isa.lanes, "float")

    def start(self, channel: Index, count: int) -> Value:
        """Begin with the bias."""
        if self.bias is None:
            return self.fn.as_value(self.type, 0.0)
        return self.fn.load_some(self.type, self.fn.at(self.bias, channel), count)

    def weight(self, tap: int, channel: Index, count: int) -> Value:
        """Load a kernel position's weights."""
        place = self.fn.at(self.fn.at(self.weights, channel), tap * self.channels)
        return self.fn.load_some(self.type, place, count)

    def meet(self, total: Value, x: Value, weight: Value | None) -> Value:
        """Add x times its weight."""
        return total if weight is None else self.fn.fma(x, weight, total)

    def end(self, total: Value, at: Index, count: int, taps: Value) -> Value:
        """Add the residual, apply the activation."""
        if self.residual is not None:
            total = total + self.fn.load_some(self.type, self.fn.at(self.residual, at), count)
        return activate(self.fn, self.activation, total)


class MaxBody(WindowBody):
    """Keep the largest; NaN stays."""

    def __init__(self, fn: Function, activation: str) -> None:
        self.fn, self.activation = fn, activation

    def start(self, channel: Index, count: int) -> Value:
        """Begin with minus infinity."""
        return self.fn.as_value(vector(self.fn.isa.lanes, "float"), -math.inf)

    def meet(self, total: Value, x: Value, weight: Value | None) -> Value:
        """Take the larger."""
        return mathfn.maximum(self.fn, total, x)

    def careless(self) -> WindowBody | None:
        """The larger in one instruction, not three."""
        return NumberMaxBody(self.fn, self.activation)

    def end(self, total: Value, at: Index, count: int, taps: Value) -> Value:
        """Apply the activation."""
        return activate(self.fn, self.activation, total)


class NumberMaxBody(MaxBody):
    """Keep the largest of numbers."""

    def meet(self, total: Value, x: Value, weight: Value | None) -> Value:
        """Take the larger; either when one is NaN."""
        return self.fn.select(self.fn.compare("ogt", x, total), x, total)


class AverageBody(MaxBody):
    """Add up, divide by the number of elements met, or by a fixed number."""

    def __init__(self, fn: Function, activation: str, fixed: int | None) -> None:
        super().__init__(fn, activation)
        self.fixed = fixed

    def start(self, channel: Index, count: int) -> Value:
        """Begin with zero."""
        return self.fn.as_value(vector(self.fn.isa.lanes, "float"), 0.0)

    def careless(self) -> WindowBody | None:
        """A sum keeps NaN by itself."""
        return None

    def meet(self, total: Value, x: Value, weight: Value | None) -> Value:
        """Add."""
        return total + x

    def end(self, total: Value, at: Index, count: int, taps: Value) -> Value:
        """Divide and apply the activation."""
        if self.fixed is None:  # the mean of nothing is 0
            by = self.fn.select(self.fn.compare("ogt", taps, 1.0), taps, 1.0)
        else:
            by = self.fn.as_value("float", float(self.fixed))
        return activate(self.fn, self.activation, total / self.fn.splat(by, self.fn.isa.lanes))


def taps_of(window: ImageWindow, ow: int) -> list[int]:
    """Return the kernel columns of an output column that lie in the image."""
    left = ow * window.strides[1] - window.pads[1]
    return [
        kw for kw in range(window.kernel[1]) if 0 <= left + kw * window.dilations[1] < window.width
    ]


def column_segments(window: ImageWindow, tile: int) -> list[tuple[range, list[list[int]]]]:
    """Cut an output row into tiles of columns: the starts of neighbouring tiles that share code,
    having the same taps, and the taps of each column of such a tile.
    """
    segments: list[tuple[range, list[list[int]]]] = []
    start = 0
    while start < window.out_width:
        stop = min(start + tile, window.out_width)
        taps = [taps_of(window, ow) for ow in range(start, stop)]
        whole = stop - start == tile
        if whole and segments and segments[-1][1] == taps:
            segments[-1] = (range(segments[-1][0].start, stop, tile), taps)
        else:
            segments.append((range(start, stop, tile), taps))
        tiles = (_alike_until(window, start) - start) // tile
        if tiles > 1:
            stop = start + tiles * tile
            segments[-1] = (range(segments[-1][0].start, stop, tile), taps)
        start = stop
    return segments


def _alike_until(window: ImageWindow, ow: int) -> int:
    """Return a column up to which all have the taps of column ow: all of them, or none."""
    stride, before, width = window.strides[1], window.pads[1], window.width
    reach = (window.kernel[1] - 1) * window.dilations[1]
    left = ow * stride - before
    if left >= width:
        return window.out_width
    if left + reach < 0:
        return min(-((reach - before) // stride), window.out_width)
    if left >= 0 and left + reach < width:
        return min((width - 1 - reach + before) // stride + 1, window.out_width)
    return ow + 1


REST_COLUMNS = 4
"""Columns of a tile at the end of a row whose length varies."""
SHORT_ROW = 2
"""Columns of a tile at either end of a row that is too short for these."""
_MOST_EDGE_TAPS = 1500
"""Taps times columns that the tiles at the ends of a row spell out."""
Tile = Callable[[Index, Sequence[Sequence[int]], Sequence[Value] | None], None]
"""Emits a tile: its first column, the kernel columns that each of its columns meets, and which of
them the only column meets where that is asked at run time.
"""


def emit_columns(fn: Function, window: ImageWindow, tile: int, emit: Tile) -> None:
    """Emit an output row whose length is read: columns whose windows lie in the image in tiles,
    the last of which may repeat columns, a tile of its own at either end, and one column after the
    other in rows that are too short for these.
    """
    row = _OpenRow(fn, window)
    every = list(range(window.kernel[1]))
    few = min(tile, REST_COLUMNS)
    ends = [_RowEnds(window, columns) for columns in dict.fromkeys((few, min(tile, SHORT_ROW)))]
    begin, end = row.low, row.high
    for one in reversed(ends):
        is_tiled = row.is_tiled(one)
        begin = fn.select(is_tiled, one.columns if window.pads[1] else 0, begin)
        last = fn.select(fn.compare("sgt", row.beyond, 0), row.out - one.columns, row.out)
        end = fn.select(is_tiled, last, end)
    start = begin
    if tile > REST_COLUMNS:
        start = end - fn.integer("urem", fn.maximum(end - begin, 0), tile)
        for column in fn.range(begin, start, tile):
            emit(column, [every] * tile, None)
    for is_few in fn.either(fn.compare("sge", row.high - row.low, few)):
        for column in fn.range(start, end, few if is_few else 1):
            at = fn.minimum(column, row.high - few) if is_few else column
            emit(at, [every] * (few if is_few else 1), None)
    row.ends(ends, emit)


class _OpenRow:
    """An output row whose length is read.

    low, high: the first column whose window lies in the image, and that after the last
    beyond: how many columns beyond the image the last window reaches
    """

    def __init__(self, fn: Function, window: ImageWindow) -> None:
        self._fn, self._window = fn, window
        stride, before = window.strides[1], window.pads[1]
        self._width, self.out = (fn.as_value("i64", n) for n in (window.width, window.out_width))
        reach = (window.kernel[1] - 1) * window.dilations[1]
        low = fn.minimum(-(-before // stride), self.out)
        room = fn.maximum(self._width + (before - reach - 1 + stride), 0)
        high = fn.maximum(fn.minimum(fn.integer("udiv", room, stride), self.out), low)
        self.low, self.high = (fn.as_value("i64", column) for column in (low, high))
        self.beyond = (self.out - 1) * stride - self._width + (reach + 1 - before)

    def is_tiled(self, ends: _RowEnds) -> Value:
        """Whether such tiles do the columns whose windows reach beyond the image."""
        fn = self._fn
        found = fn.compare("sle", self.beyond, ends.most_beyond)
        for column, least in ((self.high, ends.columns), (self.out - ends.columns, self.low)):
            both = fn.integer("and", found, fn.compare("sge", column, least))
            assert isinstance(both, Value)
            found = both
        return found

    def ends(self, ends: Sequence[_RowEnds], emit: Tile) -> None:
        """Emit the first of these ends that there is room for, else one column after another."""
        fn = self._fn
        if not ends:
            self._one_by_one(emit)
            return
        for is_tiled in fn.either(self.is_tiled(ends[0])):
            if not is_tiled:
                self.ends(ends[1:], emit)
                continue
            if self._window.pads[1]:
                emit(0, ends[0].first, None)
            for k in range(1, ends[0].most_beyond + 1):
                with fn.when(fn.compare("eq", self.beyond, k)):
                    emit(self.out - ends[0].columns, ends[0].last(k), None)

    def _one_by_one(self, emit: Tile) -> None:
        """Emit the columns whose windows reach beyond the image, asking each what it meets."""
        fn, window = self._fn, self._window
        within = self.high - self.low
        for at in fn.range(0, self.out - within):
            is_before = fn.compare("slt", fn.as_value("i64", at), self.low)
            column = fn.select(is_before, at, fn.as_value("i64", at + within))
            left = fn.as_value("i64", column) * window.strides[1] - window.pads[1]
            places = [left + kw * window.dilations[1] for kw in range(window.kernel[1])]
            emit(
                column, [[*range(len(places))]], [fn.compare("ult", p, self._width) for p in places]
            )


class _RowEnds:
    """The tiles at the ends of a row, each of `columns` columns.

    most_beyond: how many columns beyond the image the last window may reach for the row to have
        tiles at its ends; as many tiles for its end are spelt out
    """

    def __init__(self, window: ImageWindow, columns: int) -> None:
        self._window, self.columns = window, columns
        self._reach = (window.kernel[1] - 1) * window.dilations[1]
        most = min(self._reach // 2, columns * window.strides[1])
        taps = columns * math.prod(window.kernel) * most
        self.most_beyond = most if taps <= _MOST_EDGE_TAPS else 0
        if window.pads[1] > columns * window.strides[1]:  # more columns than a tile has
            self.most_beyond = -self._reach - window.strides[1]

    @property
    def first(self) -> list[list[int]]:
        """The kernel columns that each of the first columns meets."""
        window = self._window
        return self._taps(window.pads[1], self._reach + self.columns * window.strides[1])

    def last(self, beyond: int) -> list[list[int]]:
        """Return the kernel columns that each of the last columns meets.

        beyond: columns beyond the image that the last window reaches
        """
        most = self._reach + (self.columns - 1) * self._window.strides[1] - beyond
        return self._taps(0, most)

    def _taps(self, least: int, most: int) -> list[list[int]]:
        """Return the kernel columns that meet image columns `least` to `most` of a tile."""
        stride, dilation = self._window.strides[1], self._window.dilations[1]
        columns, kernel = range(self.columns), range(self._window.kernel[1])
        return [[w for w in kernel if least <= k * stride + w * dilation <= most] for k in columns]
