"""The matrix product kernel: convolutions, fully connected layers and matmul all end here.

C[b, m, n] = activation(A[b, m, :] . B[b, :, n] + bias[b, n] + residual[b, m, n])

A is walked in place, or gathered row block by row block (im2row.py). B is packed at compile time in
panels [batch][panel][depth][width], or walked in place. A chunk is a block of rows by a group of
panels. Within it the depth goes slice by slice. So a slice of A's block stays in the L2 cache while
B streams by once, and a tile of C stays in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.devices.cpu.codegen.index import minus, plus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import lanes_of, vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.expressions import COSTS, activate
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow, emit_gather
from trireme.devices.cpu.kernels.f32.register_tile import Prefetch, multiply_tile, part_ahead
from trireme.devices.cpu.kernels.f32.tiling import Size, Tiling, choose_tiling, lanes_for
from trireme.devices.cpu.kernels.lowering import begin, finish
from trireme.support.records import dataclass


@dataclass(frozen=True)
class Strides:
    """Elements from a row of a matrix to the next, and from a matrix to that of the next batch.

    batch: 0 where all batches use one matrix
    """

    row: int
    batch: int = 0


PACKED, PACKED_EACH = Strides(0), Strides(0, 1)
"""A packed B: one for all batches, or one for each."""


@dataclass(frozen=True)
class MatmulShape:
    """Size and strides of a batch of products with their epilogue.

    bias_batch: elements from a batch's bias to the next
    window: how rows of A are gathered; None where A is walked in place
    """

    size: Size
    a: Strides
    b: Strides
    c: Strides
    bias_batch: int = 0
    bias: bool = False
    residual: bool = False
    activation: str = ""
    window: ImageWindow | None = None


@dataclass(frozen=True)
class Cut:
    """A tiling with what follows from it for one product."""

    tiling: Tiling
    width: int
    panels: int
    last_columns: int
    """Columns of the last panel; width when it is like the others."""
    tiles: int
    last_rows: int
    blocks: int
    groups: int
    stride: int
    """Elements between gathered rows."""

    @property
    def whole_panels(self) -> int:
        """Panels of full width."""
        return self.panels - (self.last_columns < self.width)

    @property
    def whole_tiles(self) -> int:
        """Tiles of full height."""
        return self.tiles - (self.last_rows < self.tiling.tile_rows)


def cut_product(isa: Isa, product: MatmulShape, threads: int) -> Cut:
    """Return how a product is cut into chunks, slices and tiles."""
    size, window = product.size, product.window
    unit = window.row if window else 8
    tiling = choose_tiling(
        isa,
        size,
        gathered=window is not None,
        unit=unit,
        threads=threads,
        a_row=0 if window else product.a.row,
    )
    width = tiling.vectors * isa.lanes
    panels, tiles = -(-size.columns // width), -(-size.rows // tiling.tile_rows)
    stride = -(-tiling.depth_slice // 16) * 16 + 16
    return Cut(
        tiling,
        width,
        panels,
        size.columns - (panels - 1) * width,
        tiles,
        size.rows - (tiles - 1) * tiling.tile_rows,
        -(-tiles // tiling.block_tiles),
        -(-panels // tiling.group_panels),
        stride,
    )


def product_kernel(isa: Isa, product: MatmulShape, cut: Cut, what: str) -> tuple[Code, int, int]:
    """Return the kernel of a product, its chunks and the bytes each thread needs of its own.

    Operands: A, B, bias and residual where there are any, C
    """
    tiling = cut.tiling
    name = f"{what}_f32_{tiling.tile_rows}x{tiling.vectors}"
    fn, operands, chunk, local = begin(name, isa, 3 + product.bias + product.residual)
    MatmulEmitter(fn, product, cut, operands, local).chunk(chunk)
    local_bytes = 0
    if product.window:
        local_bytes = 4 * (
            cut.stride * min(tiling.block_tiles * tiling.tile_rows, product.size.rows)
        )
    return finish(fn), product.size.batch * cut.blocks * cut.groups, local_bytes


class MatmulEmitter:
    """Writes one product kernel: chunk > slice > panel > tile."""

    def __init__(
        self, fn: Function, product: MatmulShape, cut: Cut, operands: list[Value], local: Value
    ) -> None:
        self.fn, self.product, self.cut, self.local = fn, product, cut, local
        self.a, self.b, *extra, self.c = operands
        self.bias = extra.pop(0) if product.bias else None
        self.residual = extra.pop(0) if product.residual else None
        self.lanes = fn.isa.lanes
        self.type = vector(self.lanes, "float")

    def chunk(self, chunk: Value) -> None:
        """Emit the work of a chunk: a batch, a block of rows, a group of panels."""
        fn, product, cut = self.fn, self.product, self.cut
        group = self._part(chunk, cut.groups)
        rest = fn.integer("udiv", chunk, cut.groups)
        block = self._part(rest, cut.blocks)
        batch = fn.integer("udiv", rest, cut.blocks) if product.size.batch > 1 else 0
        self._enter_batch(batch)
        tiling = cut.tiling
        self.first_tile = times(fn, block, tiling.block_tiles)
        self.end_tile = fn.minimum(plus(fn, self.first_tile, tiling.block_tiles), cut.whole_tiles)
        self.is_last_block = self._is_last(block, cut.blocks)
        self.first_panel = times(fn, group, tiling.group_panels)
        self.end_panel = fn.minimum(
            plus(fn, self.first_panel, tiling.group_panels), cut.whole_panels
        )
        self.is_last_group = self._is_last(group, cut.groups)
        for start in fn.range(0, product.size.depth, tiling.depth_slice):
            end = fn.minimum(plus(fn, start, tiling.depth_slice), product.size.depth)
            self._slice(start, end)

    def _part(self, index: Index, count: int) -> Index:
        return self.fn.integer("urem", index, count)

    def _is_last(self, index: Index, count: int) -> Value | bool:
        return True if isinstance(index, int) else self.fn.compare("eq", index, count - 1)

    def _enter_batch(self, batch: Index) -> None:
        fn, product, cut = self.fn, self.product, self.cut
        if isinstance(batch, int):
            return
        packed = cut.panels * cut.width * product.size.depth if product.b.batch else 0
        self.a = fn.at(self.a, batch * product.a.batch)
        self.b = fn.at(self.b, batch * (product.b.batch if product.b.row else packed))
        self.c = fn.at(self.c, batch * product.c.batch)
        if self.bias:
            self.bias = fn.at(self.bias, batch * product.bias_batch)
        if self.residual:
            self.residual = fn.at(self.residual, batch * product.c.batch)

    def _slice(self, start: Index, end: Index) -> None:
        """Emit one slice of depth: gather A's part of it, then all panels."""
        fn, product, cut = self.fn, self.product, self.cut
        self.start, self.count = start, minus(fn, end, start)
        self.is_first = True if isinstance(start, int) else fn.compare("eq", start, 0)
        self.is_final = True if isinstance(end, int) else fn.compare("eq", end, product.size.depth)
        window = product.window
        if window:
            rows = cut.tiling.tile_rows
            first = times(fn, self.first_tile, rows)
            last = fn.minimum(plus(fn, first, cut.tiling.block_tiles * rows), product.size.rows)
            kernel_rows = (
                fn.integer("udiv", start, window.row),
                fn.integer("udiv", end, window.row),
            )
            emit_gather(fn, window, self.a, self.local, cut.stride, (first, last), kernel_rows)
        for panel in fn.range(self.first_panel, self.end_panel):
            self._panel(panel, cut.width)
        if cut.whole_panels < cut.panels:
            self._only_if(self.is_last_group, lambda: self._panel(cut.panels - 1, cut.last_columns))

    def _only_if(self, condition: Value | bool, emit: Callable[[], None]) -> None:
        if isinstance(condition, Value):
            with self.fn.when(condition):
                emit()
        elif condition:
            emit()

    def _panel(self, panel: Index, columns: int) -> None:
        """Emit all tiles of rows against one panel of columns."""
        fn, cut, product = self.fn, self.cut, self.product
        if product.b.row:
            b = fn.at(
                self.b,
                plus(fn, times(fn, self.start, product.b.row), times(fn, panel, cut.width)),
            )
        else:
            depth_at = plus(fn, times(fn, panel, product.size.depth), self.start)
            b = fn.at(self.b, times(fn, depth_at, cut.width))
        column = times(fn, panel, cut.width)
        for tile in fn.range(self.first_tile, self.end_tile):
            self._tile(tile, cut.tiling.tile_rows, b, column, columns)
        if cut.whole_tiles < cut.tiles:
            self._only_if(
                self.is_last_block,
                lambda: self._tile(cut.tiles - 1, cut.last_rows, b, column, columns),
            )

    def _ahead(self, tile: Index, b: Value) -> Prefetch | None:
        """What a tile brings into the cache of the panel after the one at b, where B is packed."""
        fn, product, cut = self.fn, self.product, self.cut
        if product.b.row:
            return None
        following = fn.at(b, times(fn, product.size.depth, cut.width))
        turn = minus(fn, tile, self.first_tile), cut.tiling.block_tiles
        panel = self.count, cut.width
        return part_ahead(fn, following, cut.tiling.tile_rows, turn, panel, self._unroll)

    def _tile(self, tile: Index, rows: int, b: Value, column: Index, columns: int) -> None:
        """Emit one register tile."""
        fn, product, cut = self.fn, self.product, self.cut
        row = times(fn, tile, cut.tiling.tile_rows)
        c_at = plus(fn, times(fn, row, product.c.row), column)
        if product.window:
            a_row = cut.stride
            first = times(fn, self.first_tile, cut.tiling.tile_rows)
            a = fn.at(self.local, times(fn, minus(fn, row, first), a_row))
        else:
            a_row = product.a.row
            a = fn.at(self.a, plus(fn, times(fn, row, a_row), self.start))
        vectors = -(-columns // self.lanes)
        counts = [min(self.lanes, columns - v * self.lanes) for v in range(vectors)]
        is_whole = rows == cut.tiling.tile_rows and columns == cut.width
        lines = [(a, r * a_row) for r in range(rows)]
        places = [(c_at, r * product.c.row) for r in range(rows)]
        heavy = COSTS.get(product.activation, 2) > 4 and not is_whole
        self.register_tile(lines, places, b, column, counts, heavy, self._ahead(tile, b))

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
        fn, product, cut = self.fn, self.product, self.cut

        def panel(at: Value) -> list[Value]:
            return [self._b_vector(at, v, count) for v, count in enumerate(counts)]

        b_row = product.b.row or cut.width
        exact = isinstance(product.size.depth, int)
        multiply_tile(fn, acc, lines, (b, b_row), panel, self.count, self._unroll, exact, ahead)

    @property
    def _unroll(self) -> int:
        """Rows of B that a step multiplies; they need not fill a depth that is read."""
        depth = self.product.size.depth
        return _unroll(depth, self.cut.tiling.depth_slice) if isinstance(depth, int) else 4

    def _b_vector(self, at: Value, v: int, count: Index) -> Value:
        place, type = self.fn.at(at, v * self.lanes), self._type(count)
        if not self.product.b.row:
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
