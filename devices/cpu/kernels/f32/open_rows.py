"""The cut of output rows whose length is read when the kernel runs into tiles of columns.

A row has a tile at its beginning, whose windows may reach before the image, one at its end, and
tiles of columns whose windows lie in the image between them. Each of the three has several sizes to
choose from, so that few columns are done twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow

_FEW = (4, 2, 1)
"""Columns of the tiles at either end of a row, and of what is left between them."""
_MOST_EDGE_TAPS = 1500
"""Taps times columns that the tiles at the end of a row spell out."""
Tile = Callable[[Index, Sequence[Sequence[int]], Sequence[Value] | None], None]
"""Emits a tile: its first column, the kernel columns that each of its columns meets, and which of
them the only column meets where that is asked at run time.
"""


def emit_columns(fn: Function, window: ImageWindow, tile: int, emit: Tile) -> None:
    """Emit an output row whose length is read.

    Where the tiles at its ends do not fit, their columns follow one after the other.
    """
    row = _OpenRow(fn, window)
    ends = [_RowEnds(row, size) for size in _FEW if size <= tile]
    first, last = _ends_of(row, ends)
    is_tiled = fn.compare("sge", fn.as_value("i64", fn.minimum(first, last)), 0)
    begin = fn.select(is_tiled, first, row.low)
    row.between(begin, fn.select(is_tiled, row.out - last, row.high), tile, emit)
    for tiled in fn.either(is_tiled):
        if not tiled:
            row.one_by_one(emit)
            continue
        for end in ends:
            if end.may_begin:
                with fn.when(fn.compare("eq", first, end.columns)):
                    emit(0, end.first, None)
            with fn.when(fn.compare("eq", last, end.columns)):
                for k in range(1, end.most_beyond + 1):
                    with fn.when(fn.compare("eq", row.beyond, k)):
                        emit(row.out - end.columns, end.last(k), None)


def _ends_of(row: _OpenRow, ends: Sequence[_RowEnds]) -> tuple[Value, Value]:
    """Return the columns of the tiles at both ends: none where no window reaches beyond the image
    there, negative where no tile fits.
    """
    fn = row.fn
    first = fn.as_value("i64", -1 if row.window.pads[1] else 0)
    for end in reversed(ends):
        if end.may_begin:
            first = fn.select(end.is_first(), end.columns, first)
    last = fn.as_value("i64", -1)
    for end in reversed(ends):
        last = fn.select(end.is_last(first), end.columns, last)
    return first, fn.select(fn.compare("sgt", row.beyond, 0), last, 0)


class _OpenRow:
    """An output row whose length is read.

    low, high: the first column whose window lies in the image, and that after the last
    beyond: how many columns beyond the image the last window reaches
    """

    def __init__(self, fn: Function, window: ImageWindow) -> None:
        self.fn, self.window = fn, window
        stride, before = window.strides[1], window.pads[1]
        self._width, self.out = (fn.as_value("i64", n) for n in (window.width, window.out_width))
        self.reach = (window.kernel[1] - 1) * window.dilations[1]
        low = fn.minimum(-(-before // stride), self.out)
        room = fn.maximum(self._width + (before - self.reach - 1 + stride), 0)
        high = fn.maximum(fn.minimum(fn.integer("udiv", room, stride), self.out), low)
        self.low, self.high = (fn.as_value("i64", column) for column in (low, high))
        self.beyond = (self.out - 1) * stride - self._width + (self.reach + 1 - before)

    def between(self, begin: Value, end: Value, tile: int, emit: Tile) -> None:
        """Emit columns whose windows lie in the image: whole tiles, tiles of four, two, and one.

        Three that are left are done by a tile of four, which repeats one, where there is room.
        """
        fn, every = self.fn, list(range(self.window.kernel[1]))
        few = min(tile, _FEW[0])
        start = begin
        if tile > few:
            start = end - fn.integer("urem", fn.maximum(end - begin, 0), tile)
            for column in fn.range(begin, start, tile):
                emit(column, [every] * tile, None)
        has_room = fn.compare("sge", self.high - self.low, few)
        left = fn.maximum(end - start, 0) + (1 if few == _FEW[0] else 0)
        fours = fn.select(has_room, left - fn.integer("urem", left, few), fn.as_value("i64", 0))
        for column in fn.range(start, start + fours, few):
            emit(fn.minimum(column, self.high - few), [every] * few, None)
        start = start + fours
        for size in _FEW[1:]:
            if size < few:
                left = fn.maximum(end - start, 0)
                stop = end - fn.integer("urem", left, size)
                for column in fn.range(start, stop, size):
                    emit(column, [every] * size, None)
                start = stop

    def one_by_one(self, emit: Tile) -> None:
        """Emit the columns whose windows reach beyond the image, asking each what it meets."""
        fn, window = self.fn, self.window
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
    """The tiles of `columns` columns at the ends of a row.

    may_begin: whether windows reach before the image, in no more columns than such a tile has
    most_beyond: how many columns beyond the image the last window may reach for the row to have
        such a tile at its end; as many are spelt out
    """

    def __init__(self, row: _OpenRow, columns: int) -> None:
        self._row, self.columns = row, columns
        window = row.window
        self.may_begin = 0 < window.pads[1] <= columns * window.strides[1]
        most = min(row.reach // 2, columns * window.strides[1])
        is_short = columns * math.prod(window.kernel) * most <= _MOST_EDGE_TAPS
        self.most_beyond = most if is_short else 0

    def is_first(self) -> Value:
        """Whether the row begins with such a tile: none of its windows reaches beyond the image."""
        return self._row.fn.compare("sge", self._row.high, self.columns)

    def is_last(self, first: Value) -> Value:
        """Whether the row ends with such a tile: all windows that reach beyond the image, and none
        that reaches before it. One of four may repeat a column of the first tile.
        """
        row, fn = self._row, self._row.fn
        repeats = 1 if self.columns == _FEW[0] else 0
        found = fn.compare("sle", row.beyond, self.most_beyond)
        for column, least in (
            (row.out - self.columns, row.low),
            (row.out - first, self.columns - repeats),
        ):
            both = fn.integer("and", found, fn.compare("sge", column, least))
            assert isinstance(both, Value)
            found = both
        return found

    @property
    def first(self) -> list[list[int]]:
        """The kernel columns that each of the first columns meets."""
        row = self._row
        return self._taps(row.window.pads[1], row.reach + self.columns * row.window.strides[1])

    def last(self, beyond: int) -> list[list[int]]:
        """Return the kernel columns that each of the last columns meets.

        beyond: columns beyond the image that the last window reaches
        """
        row = self._row
        return self._taps(0, row.reach + (self.columns - 1) * row.window.strides[1] - beyond)

    def _taps(self, least: int, most: int) -> list[list[int]]:
        """Return the kernel columns that meet image columns `least` to `most` of a tile."""
        window = self._row.window
        stride, dilation = window.strides[1], window.dilations[1]
        columns, kernel = range(self.columns), range(window.kernel[1])
        return [[w for w in kernel if least <= k * stride + w * dilation <= most] for k in columns]
