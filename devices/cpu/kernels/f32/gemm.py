"""The matrix product kernel: convolutions, fully connected layers and matmul all end here.

C[b, m, n] = activation(A[b, m, :] . B[b, :, n] + bias[b, n] + residual[b, m, n])

A is walked in place, or gathered row block by row block (im2row.py). B is packed at compile time in
panels [batch][panel][depth][width], or walked in place. A chunk is a block of rows by a group of
panels. Within it the depth goes slice by slice. So a slice of A's block stays in the L2 cache while
B streams by once, and a tile of C stays in registers.

A block of rows is done in tiles of full height. Rows that are left are one tile where their number
is known. Else they are tiles of eight rows, of four, of two and of one. The last row of one of
eight or four may be beyond the end: it is the last row again, which is computed and stored twice
with the same result. Each element of C is a sum in order of the depth, whatever the tiles are, so
all products have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from trireme.devices.cpu.codegen.index import minus, plus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import lanes_of, vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.expressions import COSTS, activate
from trireme.devices.cpu.kernels.f32.im2row import emit_gather
from trireme.devices.cpu.kernels.f32.product_shape import Blocks, Cut, MatmulShape, rest_heights
from trireme.devices.cpu.kernels.f32.register_tile import (
    LEAST_ROWS,
    LINE,
    Prefetch,
    multiply_tile,
    part_ahead,
)
from trireme.devices.cpu.kernels.f32.tiling import lanes_for
from trireme.devices.cpu.kernels.lowering import begin, finish
from trireme.devices.cpu.kernels.spans import begin_sized

_BRINGING = 2
"""Tiles that bring the next panel of B into the cache, where the tiles of a block vary."""
_FAR = 4096
"""How many elements on tiles of few rows bring their panel where registers are few. With AVX2 and
weights of 9 MB 4 x 16 took 600 us, 300 with it; one row, and panels of AVX-512, 1.1 to 1.2 times as
long.
"""


def product_kernel(
    isa: Isa,
    product: MatmulShape,
    cut: Cut,
    blocks: Blocks,
    what: str,
    words: int = 0,
    more: int = 0,
) -> Code:
    """Return the kernel of a product; operands: A, B, bias and residual where there are any, C.

    words: how many sizes the kernel reads, as the Words of product and blocks; 0 for known sizes
    more: operands before C that another variant reads
    """
    name = f"{what}_f32_{cut.tile_rows}x{cut.vectors}"
    operands = 3 + product.bias + product.residual + more
    fn, pointers, chunk, local = (
        begin_sized(name, isa, operands, words) if words else begin(name, isa, operands)
    )
    emitter = MatmulEmitter(fn, fn.known(product), cut, pointers, local)
    emitter.chunk(chunk, Blocks(*fn.known(blocks)))
    return finish(fn)


class MatmulEmitter:
    """Writes one product kernel: chunk > slice > panel > tile."""

    first_row: Index
    end_row: Index
    rest_row: Index
    """The first row that no tile of full height has."""
    full_panels: Index
    last: Index
    """Columns of the panel that is not full; 0 when all are."""
    in_last_block: Value | bool
    in_last_group: Value | bool

    def __init__(
        self, fn: Function, product: MatmulShape, cut: Cut, operands: list[Value], local: Value
    ) -> None:
        self.fn, self.product, self.cut, self.local = fn, product, cut, local
        self.a, self.b, *extra, self.c = operands
        self.bias = extra.pop(0) if product.bias else None
        self.residual = extra.pop(0) if product.residual else None
        self.lanes = fn.isa.lanes
        self.type = vector(self.lanes, "float")
        self.width = cut.vectors * self.lanes

    def chunk(self, chunk: Value, blocks: Blocks) -> None:
        """Emit the work of a chunk: a batch, a block of rows, a group of panels."""
        fn, size, slice_ = self.fn, self.product.size, self.cut.slice
        self.blocks = blocks
        group = fn.integer("urem", chunk, blocks.groups)
        rest = fn.integer("udiv", chunk, blocks.groups)
        block = fn.integer("urem", rest, blocks.blocks)
        self.full_panels = fn.integer("udiv", size.columns, self.width)
        self.last = minus(fn, size.columns, times(fn, self.full_panels, self.width))
        if _is_read(size.batch) or size.batch > 1:
            self._enter_batch(fn.integer("udiv", rest, blocks.blocks))
        self.first_row = times(fn, block, blocks.block_rows)
        self.end_row = fn.minimum(plus(fn, self.first_row, blocks.block_rows), size.rows)
        count = minus(fn, self.end_row, self.first_row)
        self.rest_row = minus(fn, self.end_row, fn.integer("urem", count, self.cut.tile_rows))
        self.first_panel = times(fn, group, blocks.group_panels)
        end = plus(fn, self.first_panel, blocks.group_panels)
        self.end_panel = fn.minimum(end, self.full_panels)
        self.in_last_block = self._is_last(block, blocks.blocks)
        self.in_last_group = self._is_last(group, blocks.groups)
        if not slice_ or slice_ == size.depth:
            self._slice(0, size.depth, True)
            return
        for start in fn.range(0, size.depth, slice_):
            self._slice(start, fn.minimum(plus(fn, start, slice_), size.depth), False)

    def _is_last(self, index: Index, count: Index) -> Value | bool:
        if isinstance(index, int):
            return True
        return self.fn.compare("eq", index, minus(self.fn, count, 1))

    def _enter_batch(self, batch: Index) -> None:
        fn, product = self.fn, self.product
        panels = fn.integer("udiv", plus(fn, product.size.columns, self.width - 1), self.width)
        each = times(fn, times(fn, panels, self.width), product.size.depth)
        packed = 0 if _is_zero(product.b.batch) else each
        b_batch = packed if _is_zero(product.b.row) else product.b.batch
        self.a = fn.at(self.a, times(fn, batch, product.a.batch))
        self.b = fn.at(self.b, times(fn, batch, b_batch))
        self.c = fn.at(self.c, times(fn, batch, product.c.batch))
        if self.bias:
            self.bias = fn.at(self.bias, times(fn, batch, product.bias_batch))
        if self.residual:
            self.residual = fn.at(self.residual, times(fn, batch, product.c.batch))

    def _slice(self, start: Index, end: Index, is_sole: bool) -> None:
        """Emit one slice of depth: gather A's part of it, then all panels."""
        fn, window = self.fn, self.product.window
        self.start, self.count = start, minus(fn, end, start)
        self.is_first = True if is_sole else fn.compare("eq", fn.as_value("i64", start), 0)
        depth = self.product.size.depth
        self.is_final = True if is_sole else fn.compare("eq", fn.as_value("i64", end), depth)
        if window:
            lines = fn.integer("udiv", start, window.row), fn.integer("udiv", end, window.row)
            rows = self.first_row, self.end_row
            emit_gather(fn, window, self.a, self.local, self.cut.stride, rows, lines)
        for panel in fn.range(self.first_panel, self.end_panel):
            self._panel(panel, [self.lanes] * self.cut.vectors)
        if not _is_zero(self.last):
            self._only_if(self.in_last_group, self._last_panel)

    def _only_if(self, condition: Value | bool, emit: Callable[[], None]) -> None:
        if isinstance(condition, Value):
            with self.fn.when(condition):
                emit()
        elif condition:
            emit()

    def _last_panel(self) -> None:
        """Emit the last panel: where its width is read, for half of the vectors, then for all."""
        fn, last, counts = self.fn, self.last, self._last_counts()
        if isinstance(last, int):
            self._panel(self.full_panels, counts)
            return
        half = (self.cut.vectors + 1) // 2
        with fn.when(fn.compare("ne", last, 0)):
            if half == len(counts):
                self._panel(self.full_panels, counts)
                return
            for is_half in fn.either(fn.compare("sle", last, half * self.lanes)):
                self._panel(self.full_panels, counts[:half] if is_half else counts)

    def _last_counts(self) -> list[Index]:
        """The columns of each vector of the last panel."""
        fn, lanes, last = self.fn, self.lanes, self.last
        if isinstance(last, int):
            return [min(lanes, last - at) for at in range(0, last, lanes)]
        left = (fn.maximum(last - v * lanes, 0) for v in range(self.cut.vectors))
        return [fn.minimum(count, lanes) for count in left]

    def _panel(self, panel: Index, counts: Sequence[Index]) -> None:
        """Emit all tiles of rows against one panel of columns."""
        fn, product = self.fn, self.product
        column = times(fn, panel, self.width)
        if _is_zero(product.b.row):
            depth_at = plus(fn, times(fn, panel, product.size.depth), self.start)
            b = fn.at(self.b, times(fn, depth_at, self.width))
        else:
            b = fn.at(self.b, plus(fn, times(fn, self.start, product.b.row), column))
        rows = self.cut.tile_rows
        for row in fn.range(self.first_row, self.rest_row, rows):
            self._rows(row, rows, b, column, counts, False)
        if _is_read(self.blocks.block_rows) or _is_read(product.size.rows):
            self._rest(b, column, counts)
        else:
            self._known_rest(b, column, counts)

    def _known_rest(self, b: Value, column: Index, counts: Sequence[Index]) -> None:
        """Emit the rows that are left as one tile: in each block, or in the last."""
        count, each, all_rows = self.blocks.blocks, self.blocks.block_rows, self.product.size.rows
        left = (all_rows - (count - 1) * each) % self.cut.tile_rows
        if left:
            condition = self.in_last_block if each % self.cut.tile_rows != left else True
            emit = partial(self._rows, self.rest_row, left, b, column, counts, False)
            self._only_if(condition, emit)

    def _rest(self, b: Value, column: Index, counts: Sequence[Index]) -> None:
        """Emit the rows that are left: tiles of some rows, then two rows or one, as a token has."""
        fn, tile_rows = self.fn, self.cut.tile_rows
        row: Index = self.rest_row
        few = range(1, tile_rows)
        for rows in rest_heights(tile_rows):
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
            is_end = reaches and r == rows - 1
            of = plus(fn, row, r)
            if is_end:
                of = fn.minimum(of, minus(fn, self.end_row, 1))
            if not r or is_end or _is_read(a_row):
                lines.append((self._line(of, a_row), 0))
            else:
                lines.append((lines[0][0], r * a_row))
            if not r or is_end or _is_read(c_row):
                places.append((plus(fn, times(fn, of, c_row), column), 0))
            else:
                places.append((places[0][0], r * c_row))
        is_whole = rows == self.cut.tile_rows and len(counts) == self.cut.vectors
        heavy = COSTS.get(product.activation, 2) > 4 and not (is_whole or reaches)
        ahead = self._ahead(row, rows, b)
        self.register_tile(lines, places, b, column, counts, heavy, ahead)

    def _ahead(self, row: Index, rows: int, b: Value) -> Prefetch | None:
        """What a tile brings into the cache: the tiles of a block bring the next panel.

        Tiles of few rows wait for memory, and bring their own panel.
        """
        fn, block_rows = self.fn, self.blocks.block_rows
        if not _is_zero(self.product.b.row):
            return None
        if 1 < rows < LEAST_ROWS and fn.isa.registers < 32:
            return Prefetch(fn.at(b, _FAR), max(self._unroll * self.width // LINE, 1))
        tile = fn.integer("udiv", minus(fn, row, self.first_row), self.cut.tile_rows)
        if _is_read(block_rows):
            tile, tiles = fn.minimum(tile, _BRINGING - 1), _BRINGING
        else:
            tiles = -(-block_rows // self.cut.tile_rows)
        following = fn.at(b, times(fn, self.product.size.depth, self.width))
        panel = self.count, self.width
        return part_ahead(fn, following, rows, (tile, tiles), panel, self._unroll)

    def _line(self, row: Index, a_row: Index) -> Value:
        """Where a row of A begins at this slice of depth."""
        fn = self.fn
        if self.product.window:
            return fn.at(self.local, times(fn, minus(fn, row, self.first_row), a_row))
        return fn.at(self.a, plus(fn, times(fn, row, a_row), self.start))

    def register_tile(
        self,
        lines: Sequence[tuple[Value, int]],
        places: Sequence[tuple[Index, int]],
        b: Value,
        column: Index,
        counts: Sequence[Index],
        heavy: bool = False,
        ahead: Prefetch | None = None,
    ) -> None:
        """Emit one register tile: load or clear it, walk the depth, finish or store it.

        lines, places: where rows of A and of C begin; a known number is apart
        counts: columns of each vector
        heavy: whether the activation comes in a loop
        ahead: what comes into the cache meanwhile
        """
        fn = self.fn
        types = [self._type(count) for count in counts]
        acc = [[Var(fn, type, 0.0) for type in types] for _ in lines]
        if self.is_first is not True:
            with fn.when(fn.compare("ne", fn.as_value("i64", self.start), 0)):
                for row, place in zip(acc, places, strict=True):
                    for v, accumulator in enumerate(row):
                        at = self._place(place, v)
                        accumulator.set(fn.load_some(types[v], at, counts[v]))
        self._walk_depth(lines, b, acc, counts, ahead)
        if not isinstance(self.is_final, Value):
            self._finish(acc, places, column, counts, heavy)
            return
        for final in fn.either(self.is_final):
            if final:
                self._finish(acc, places, column, counts, heavy)
            else:
                for row, place in zip(acc, places, strict=True):
                    for v, accumulator in enumerate(row):
                        fn.store_some(accumulator.get(), self._place(place, v), counts[v])

    def _place(self, place: tuple[Index, int], v: int) -> Value:
        """The address of a vector of a row of C."""
        return self.fn.at(self.c, plus(self.fn, place[0], place[1] + v * self.lanes))

    def _type(self, count: Index) -> str:
        """The vector that holds `count` columns."""
        return (
            self.type
            if isinstance(count, Value)
            else vector(lanes_for(self.fn.isa, count), "float")
        )

    def _walk_depth(
        self,
        lines: Sequence[tuple[Value, int]],
        b: Value,
        acc: list[list[Var]],
        counts: Sequence[Index],
        ahead: Prefetch | None,
    ) -> None:
        fn, product = self.fn, self.product

        def panel(at: Value) -> list[Value]:
            return [self._b_vector(at, v, count) for v, count in enumerate(counts)]

        b_row = self.width if _is_zero(product.b.row) else product.b.row
        exact = isinstance(product.size.depth, int)
        multiply_tile(fn, acc, lines, (b, b_row), panel, self.count, self._unroll, exact, ahead)

    @property
    def _unroll(self) -> int:
        """Rows of B that a step multiplies; they need not fill a depth that is read."""
        depth = self.product.size.depth
        return _unroll(depth, self.cut.slice) if isinstance(depth, int) else 4

    def _b_vector(self, at: Value, v: int, count: Index) -> Value:
        place, type = self.fn.at(at, v * self.lanes), self._type(count)
        if _is_zero(self.product.b.row):
            return self.fn.load(type, place, 4 * lanes_of(type))
        return self.fn.load_some(type, place, count)

    def _finish(
        self,
        acc: list[list[Var]],
        places: Sequence[tuple[Index, int]],
        column: Index,
        counts: Sequence[Index],
        heavy: bool,
    ) -> None:
        """Emit bias, residual, activation and the store of a tile."""
        fn, product = self.fn, self.product
        types = [self._type(count) for count in counts]
        bias = (
            [
                fn.load_some(types[v], fn.at(self.bias, plus(fn, column, v * self.lanes)), count)
                for v, count in enumerate(counts)
            ]
            if self.bias
            else []
        )
        for row, place in zip(acc, places, strict=True):
            for v, accumulator in enumerate(row):
                at = plus(fn, place[0], place[1] + v * self.lanes)
                value = accumulator.get()
                if bias:
                    value = value + bias[v]
                if self.residual:
                    value = value + fn.load_some(types[v], fn.at(self.residual, at), counts[v])
                if not heavy:
                    value = activate(fn, product.activation, value)
                fn.store_some(value, fn.at(self.c, at), counts[v])
        if heavy:  # in a loop: spelt out for every kind of tile the code would grow too long
            for i in fn.range(0, len(acc)):
                for v, count in enumerate(counts):
                    offset = plus(fn, times(fn, i, product.c.row), v * self.lanes)
                    at = fn.at(fn.at(self.c, places[0][0]), offset)
                    value = fn.load_some(types[v], at, count)
                    fn.store_some(activate(fn, product.activation, value), at, count)


def _unroll(depth: int, slice_: int) -> int:
    return next(u for u in (4, 2, 1) if depth % u == 0 and slice_ % u == 0)


def _is_read(index: Index) -> bool:
    """Whether a number is read when the kernel runs."""
    return isinstance(index, Value)


def _is_zero(index: Index) -> bool:
    return isinstance(index, int) and index == 0
