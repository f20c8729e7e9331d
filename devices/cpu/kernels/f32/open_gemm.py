"""The matrix product kernel for every shape: rows, and what else varies, are words.

A block of rows is done in tiles of full height, and the rest in tiles of eight rows, of four, of
two and of one. The last row of one of eight or four may be beyond the end: it is the last row
again, which is computed and stored twice with the same result. Each element of C is a sum in order
of the depth, whatever the tiles are, so results have the bits of the kernel that is made for one
shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from trireme.devices.cpu.codegen.index import minus, plus, times
from trireme.devices.cpu.codegen.ir import Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.gemm import Cut, MatmulEmitter, MatmulShape
from trireme.devices.cpu.kernels.f32.im2row import emit_gather
from trireme.devices.cpu.kernels.f32.register_tile import (
    LEAST_ROWS,
    LINE,
    Prefetch,
    part_ahead,
)
from trireme.devices.cpu.kernels.f32.tiling import (
    Tiling,
    choose_register_tile,
    is_near,
    tile_cycles,
)
from trireme.devices.cpu.kernels.lowering import finish, varies
from trireme.devices.cpu.kernels.opaque import opaque
from trireme.devices.cpu.kernels.spans import begin_sized
from trireme.devices.cpu.runtime.product_blocks import block_words

_USUAL = 480
"""Rows (or columns) for which tiles are chosen where they vary."""
_MOST_LINES = 6
"""Rows of a tile whose distance in A varies: each has an address register of its own."""
_BRINGING = 2
"""Tiles of a block that bring the next panel of B into the cache."""
_FAR = 4096
"""How many elements on tiles of few rows bring their panel where registers are few. With AVX2 and
weights of 9 MB 4 x 16 took 600 us, 300 with it; one row, and panels of AVX-512, 1.1 to 1.2 times as
long.
"""
_BLOCK_ROWS = 96
"""Rows of a block that a slice of depth is cut for."""
CUT_WORDS = 4
"""block_rows, blocks, groups, group_panels: words that follow those of the product."""


@dataclass(frozen=True)
class SizedCut:
    """What is constant of the cut of a product for every shape.

    slice: elements of depth done before the next; 0 for all of a depth that varies
    """

    tile_rows: int
    vectors: int
    slice: int
    stride: int


def cut_for_all(isa: Isa, product: MatmulShape) -> SizedCut:
    """Return the tiles of a sample's product."""
    size, window = product.size, product.window
    columns = _USUAL if varies(size.columns) else size.columns
    a_row = 0 if window or varies(product.a.row) else product.a.row
    most = _MOST_LINES if not window and varies(product.a.row) else 16
    depth = 0 if varies(size.depth) else size.depth
    usual = None if is_near(isa, depth, columns) else _USUAL
    rows, vectors = choose_register_tile(isa, usual, columns, a_row, most, depth)
    unit = window.row if window else 8
    width = vectors * isa.lanes
    most = min(isa.l2_bytes // 2 // (4 * _BLOCK_ROWS), isa.l2_bytes // 4 // (4 * width))
    if varies(size.depth):
        return SizedCut(rows, vectors, 0, 0)
    slices = -(-size.depth // max(most, unit))
    depth = min(size.depth, -(-size.depth // slices // unit) * unit)
    return SizedCut(rows, vectors, depth, -(-depth // 16) * 16 + 16)


@dataclass(frozen=True)
class Blocks:
    """How a product of one shape is cut into chunks."""

    block_rows: int
    blocks: int
    groups: int
    group_panels: int

    @property
    def words(self) -> tuple[int, int, int, int]:
        """The words of the kernel."""
        return self.block_rows, self.blocks, self.groups, self.group_panels


def blocks_of(isa: Isa, product: MatmulShape, cut: SizedCut) -> Blocks:
    """Return the cut with the least modelled cycles on two threads."""
    tile_rows, vectors = cut.tile_rows, cut.vectors
    tiles = tile_rows, vectors, cut.slice, tuple(cycles_by_rows(isa, tile_rows, vectors))
    found = partial(block_words, isa.lanes, isa.l2_bytes, bool(product.window), *tiles)
    size = product.size
    return Blocks(*opaque(found, size.rows, size.columns, size.depth, size.batch))


def cycles_by_rows(isa: Isa, tile_rows: int, vectors: int) -> Iterator[float]:
    """Yield the cycles of one step of depth of 0 to all rows of a tile."""
    for rows in range(tile_rows):
        left, cycles = rows, 0.0
        for height in _rest_heights(tile_rows):
            tiles = (left + 1) // height
            left = max(left - tiles * height, 0)
            cycles += tiles * tile_cycles(isa, height, vectors)
        yield cycles + (tile_cycles(isa, left, vectors) if left else 0)
    yield tile_cycles(isa, tile_rows, vectors)


def _rest_heights(tile_rows: int) -> list[int]:
    """Return the heights of tiles at the end of a block, but for those of two rows or one.

    Four rows are enough to hide the latency of multiply-adds, eight read B half as often.
    """
    return [height for height in (8, 4) if height <= tile_rows]


def sized_product_kernel(
    isa: Isa, product: MatmulShape, cut: SizedCut, what: str, words: int, more: int = 0
) -> Code:
    """Return the kernel of a product for every shape; operands as in `product_kernel`.

    more: operands before C that another variant reads
    product: has Words where sizes vary; those of the cut follow them
    """
    name = f"{what}_f32_{cut.tile_rows}x{cut.vectors}"
    operands = 3 + product.bias + product.residual + more
    fn, pointers, chunk, local = begin_sized(name, isa, operands, words + CUT_WORDS)
    known = fn.known(product)
    columns, width = known.size.columns, cut.vectors * isa.lanes
    panels = fn.integer("udiv", plus(fn, columns, width - 1), width)
    whole = fn.integer("udiv", columns, width)
    emitter = _SizedMatmul(fn, known, _cut(cut, width), pointers, local)
    emitter.all_panels, emitter.full_panels = panels, whole
    emitter.last = minus(fn, columns, times(fn, whole, width))
    emitter.sized_chunk(chunk, fn.words[words:])
    return finish(fn)


def _cut(cut: SizedCut, width: int) -> Cut:
    """Return what the emitter of tiles reads of a cut."""
    tiling = Tiling(cut.tile_rows, cut.vectors, 0, 0, cut.slice)
    return Cut(tiling, width, 0, width, 0, cut.tile_rows, 0, 0, cut.stride)


class _SizedMatmul(MatmulEmitter):
    """Writes a product kernel whose sizes are values."""

    all_panels: Index
    full_panels: Index
    in_last_group: Value
    last: Index
    """Columns of the last panel; 0 when all are full."""

    def sized_chunk(self, chunk: Value, words: Sequence[Value]) -> None:
        """Emit the work of a chunk."""
        fn, size = self.fn, self.product.size
        block_rows, blocks, groups, group_panels = words
        group = fn.as_value("i64", fn.integer("urem", chunk, groups))
        rest = fn.integer("udiv", chunk, groups)
        block = fn.as_value("i64", fn.integer("urem", rest, blocks))
        if _is_read(size.batch) or size.batch > 1:
            self._enter_sized_batch(fn.integer("udiv", rest, blocks))
        self.first_row = block * block_rows
        self.end_row = fn.as_value("i64", fn.minimum(self.first_row + block_rows, size.rows))
        count = self.end_row - self.first_row
        rows = self.cut.tiling.tile_rows
        self.rest_row = self.end_row - fn.as_value("i64", fn.integer("urem", count, rows))
        self.first_panel = group * group_panels
        self.end_panel = fn.minimum(plus(fn, self.first_panel, group_panels), self.full_panels)
        self.in_last_group = fn.compare("eq", group, groups - 1)
        slice_ = self.cut.tiling.depth_slice
        if not slice_ or slice_ == size.depth:
            self._sized_slice(0, size.depth, True)
            return
        for start in fn.range(0, size.depth, slice_):
            end = fn.minimum(plus(fn, start, slice_), size.depth)
            self._sized_slice(start, end, False)

    def _enter_sized_batch(self, batch: Index) -> None:
        fn, product = self.fn, self.product
        each = times(fn, times(fn, self.all_panels, self.cut.width), product.size.depth)
        packed = 0 if _is_zero(product.b.batch) else each
        b_batch = packed if _is_zero(product.b.row) else product.b.batch
        self.a = fn.at(self.a, times(fn, batch, product.a.batch))
        self.b = fn.at(self.b, times(fn, batch, b_batch))
        self.c = fn.at(self.c, times(fn, batch, product.c.batch))
        if self.bias:
            self.bias = fn.at(self.bias, times(fn, batch, product.bias_batch))
        if self.residual:
            self.residual = fn.at(self.residual, times(fn, batch, product.c.batch))

    def _sized_slice(self, start: Index, end: Index, is_sole: bool) -> None:
        fn, product, cut = self.fn, self.product, self.cut
        self.start, self.count = start, minus(fn, end, start)
        self.is_first = True if is_sole else fn.compare("eq", fn.as_value("i64", start), 0)
        self.is_final = (
            True if is_sole else fn.compare("eq", fn.as_value("i64", end), product.size.depth)
        )
        window = product.window
        if window:
            lines = fn.integer("udiv", start, window.row), fn.integer("udiv", end, window.row)
            rows = self.first_row, self.end_row
            emit_gather(fn, window, self.a, self.local, cut.stride, rows, lines)
        for panel in fn.range(self.first_panel, self.end_panel):
            self._sized_panel(panel, [self.lanes] * cut.tiling.vectors)
        if isinstance(self.last, int) and not self.last:
            return
        with fn.when(self.in_last_group):
            self._maybe(self.last, self._last_panel)

    def _last_panel(self) -> None:
        """Emit the last panel: where its width is read, for half of the vectors, then for all."""
        counts, half = self._last_counts(), (self.cut.tiling.vectors + 1) // 2
        if isinstance(self.last, int) or half == len(counts):
            self._sized_panel(self.full_panels, counts)
            return
        fn = self.fn
        for is_half in fn.either(fn.compare("sle", self.last, half * self.lanes)):
            self._sized_panel(self.full_panels, counts[:half] if is_half else counts)

    def _maybe(self, count: Index, emit: Callable[[], None]) -> None:
        if isinstance(count, int):
            emit()
            return
        with self.fn.when(self.fn.compare("ne", count, 0)):
            emit()

    def _last_counts(self) -> list[Index]:
        """The columns of each vector of the last panel."""
        fn, lanes, last = self.fn, self.lanes, self.last
        if isinstance(last, int):
            return [min(lanes, last - at) for at in range(0, last, lanes)]
        left = (fn.maximum(last - v * lanes, 0) for v in range(self.cut.tiling.vectors))
        return [fn.minimum(count, lanes) for count in left]

    def _sized_panel(self, panel: Index, counts: Sequence[Index]) -> None:
        """Emit all tiles of rows against one panel of columns."""
        fn, cut, product = self.fn, self.cut, self.product
        column = times(fn, panel, cut.width)
        if _is_zero(product.b.row):
            depth_at = plus(fn, times(fn, panel, product.size.depth), self.start)
            b = fn.at(self.b, times(fn, depth_at, cut.width))
        else:
            b = fn.at(self.b, plus(fn, times(fn, self.start, product.b.row), column))
        rows = cut.tiling.tile_rows
        for row in fn.range(self.first_row, self.rest_row, rows):
            self._rows(row, rows, b, column, counts, False)
        self._rest(b, column, counts)

    def _rest(self, b: Value, column: Index, counts: Sequence[Index]) -> None:
        """Emit the rows that are left: tiles of some rows, then two rows or one, as a token has."""
        fn, tile_rows = self.fn, self.cut.tiling.tile_rows
        row: Index = self.rest_row
        few = range(1, tile_rows)
        for rows in _rest_heights(tile_rows):
            first, few = row, range(1, rows - 1)
            left = fn.as_value("i64", minus(fn, self.end_row, row)) + 1
            row = row + (left - fn.as_value("i64", fn.integer("urem", left, rows)))
            for start in fn.range(first, row, rows):
                self._rows(start, rows, b, column, counts, True)
        for rows in few:
            with fn.when(fn.compare("eq", fn.as_value("i64", minus(fn, self.end_row, row)), rows)):
                self._rows(row, rows, b, column, counts, False)

    def _rows(
        self,
        row: Index,
        rows: int,
        b: Value,
        column: Index,
        counts: Sequence[Index],
        reaches: bool,
    ) -> None:
        """Emit a tile; reaches: whether its last row may be beyond the block, and repeats then."""
        fn, product = self.fn, self.product
        a_row = self.cut.stride if product.window else product.a.row
        c_row = product.c.row
        lines: list[tuple[Value, int]] = []
        places: list[tuple[Index, int]] = []
        for r in range(rows):
            of, is_apart = plus(fn, row, r), not r
            if reaches and r == rows - 1:
                of, is_apart = fn.minimum(of, self.end_row - 1), True
            if is_apart or _is_read(a_row):
                lines.append((self._line(of, a_row), 0))
            else:
                lines.append((lines[0][0], r * a_row))
            if is_apart or _is_read(c_row):
                places.append((plus(fn, times(fn, of, c_row), column), 0))
            else:
                places.append((places[0][0], r * c_row))
        ahead = self._rows_ahead(row, rows, b)
        self.register_tile(lines, places, b, column, counts, ahead=ahead)

    def _rows_ahead(self, row: Index, rows: int, b: Value) -> Prefetch | None:
        """What a tile brings into the cache: the first tiles of a block bring the next panel.

        Tiles of few rows wait for memory, and bring their own panel.
        """
        fn, product, cut = self.fn, self.product, self.cut
        if not _is_zero(product.b.row):
            return None
        if 1 < rows < LEAST_ROWS and fn.isa.registers < 32:
            return Prefetch(fn.at(b, _FAR), max(self._unroll * cut.width // LINE, 1))
        tile = fn.integer("udiv", minus(fn, row, self.first_row), cut.tiling.tile_rows)
        following = fn.at(b, times(fn, product.size.depth, cut.width))
        turn = fn.minimum(tile, _BRINGING - 1), _BRINGING
        return part_ahead(fn, following, rows, turn, (self.count, cut.width), self._unroll)

    def _line(self, row: Index, a_row: Index) -> Value:
        """Where a row of A begins at this slice of depth."""
        fn = self.fn
        if self.product.window:
            return fn.at(self.local, times(fn, minus(fn, row, self.first_row), a_row))
        return fn.at(self.a, plus(fn, times(fn, row, a_row), self.start))


def _is_read(index: Index) -> bool:
    """Whether a number is read when the kernel runs."""
    return isinstance(index, Value)


def _is_zero(index: Index) -> bool:
    return isinstance(index, int) and index == 0
