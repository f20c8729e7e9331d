"""The matrix product kernel: convolutions, fully connected layers and matmul all end here.

C[b, m, n] = activation(A[b, m, :] . B[b, :, n] + bias[b, n] + residual[b, m, n])

A is walked in place, or gathered row block by row block (im2row.py). B is packed at compile time in
panels [batch][panel][depth][width], or walked in place. A chunk is a block of rows by a group of
panels; within it the depth goes slice by slice, so that a slice of A's block stays in the L2 cache
while B streams by once, and a tile of C stays in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import lanes_of, vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.expressions import COSTS, activate
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow, emit_gather
from trireme.devices.cpu.kernels.f32.tiling import Size, Tiling, choose_tiling, lanes_for
from trireme.devices.cpu.kernels.lowering import begin, finish
from trireme.support.dtypes import Array


@dataclass(frozen=True)
class Strides:
    """Elements from a row of a matrix to the next, and from a matrix to that of the next batch.

    batch: 0 where all batches use one matrix
    """

    row: int
    batch: int = 0


PACKED, PACKED_EACH = Strides(0), Strides(0, 1)
"""Of a B that is packed and not walked in place: one for all batches, or one for each."""


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


def panel_bytes(batch: int, depth: int, columns: int, width: int) -> int:
    """Return the bytes of what `pack_panels` returns."""
    return 4 * batch * -(-columns // width) * depth * width


def pack_panels(b: Array, width: int) -> Array:
    """Return B [batch, depth, columns] as panels [batch, panel, depth, width], zero-padded."""
    batch, depth, columns = b.shape
    whole, rest = divmod(columns, width)
    room = aligned_bytes(panel_bytes(batch, depth, columns, width))
    packed = room.view(np.float32).reshape(batch, -1, depth, width)
    cut = b[:, :, : whole * width].reshape(batch, depth, whole, width)
    packed[:, :whole] = cut.transpose(0, 2, 1, 3)
    if rest:
        packed[:, whole, :, :rest] = b[:, :, whole * width :]
    return packed


def product_kernel(isa: Isa, product: MatmulShape, cut: Cut, what: str) -> tuple[Code, int, int]:
    """Return the kernel of a product, its chunks and the bytes each thread needs of its own.

    Operands: A, B, bias and residual where there are any, C
    """
    tiling = cut.tiling
    name = f"{what}_f32_{tiling.tile_rows}x{tiling.vectors}"
    fn, operands, chunk, local = begin(name, isa, 3 + product.bias + product.residual)
    _MatmulEmitter(fn, product, cut, operands, local).chunk(chunk)
    local_bytes = 0
    if product.window:
        local_bytes = 4 * (
            cut.stride * min(tiling.block_tiles * tiling.tile_rows, product.size.rows)
        )
    return finish(fn), product.size.batch * cut.blocks * cut.groups, local_bytes


class _MatmulEmitter:
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
        self.first_tile = _times(fn, block, tiling.block_tiles)
        self.end_tile = fn.minimum(_plus(fn, self.first_tile, tiling.block_tiles), cut.whole_tiles)
        self.is_last_block = self._is_last(block, cut.blocks)
        self.first_panel = _times(fn, group, tiling.group_panels)
        self.end_panel = fn.minimum(
            _plus(fn, self.first_panel, tiling.group_panels), cut.whole_panels
        )
        self.is_last_group = self._is_last(group, cut.groups)
        for start in fn.range(0, product.size.depth, tiling.depth_slice):
            end = fn.minimum(_plus(fn, start, tiling.depth_slice), product.size.depth)
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
        self.start, self.count = start, _minus(fn, end, start)
        self.is_first = True if isinstance(start, int) else fn.compare("eq", start, 0)
        self.is_final = True if isinstance(end, int) else fn.compare("eq", end, product.size.depth)
        window = product.window
        if window:
            rows = cut.tiling.tile_rows
            first = _times(fn, self.first_tile, rows)
            last = fn.minimum(_plus(fn, first, cut.tiling.block_tiles * rows), product.size.rows)
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
                _plus(fn, _times(fn, self.start, product.b.row), _times(fn, panel, cut.width)),
            )
        else:
            depth_at = _plus(fn, _times(fn, panel, product.size.depth), self.start)
            b = fn.at(self.b, _times(fn, depth_at, cut.width))
        column = _times(fn, panel, cut.width)
        for tile in fn.range(self.first_tile, self.end_tile):
            self._tile(tile, cut.tiling.tile_rows, b, column, columns)
        if cut.whole_tiles < cut.tiles:
            self._only_if(
                self.is_last_block,
                lambda: self._tile(cut.tiles - 1, cut.last_rows, b, column, columns),
            )

    def _tile(self, tile: Index, rows: int, b: Value, column: Index, columns: int) -> None:
        """Emit one register tile: load or clear it, walk the depth, finish or store it."""
        fn, product, cut = self.fn, self.product, self.cut
        vectors = -(-columns // self.lanes)
        counts = [min(self.lanes, columns - v * self.lanes) for v in range(vectors)]
        row = _times(fn, tile, cut.tiling.tile_rows)
        c_at = _plus(fn, _times(fn, row, product.c.row), column)
        types = [self._type(count) for count in counts]
        acc = [[Var(fn, type, 0.0) for type in types] for _ in range(rows)]
        if self.is_first is not True:
            with fn.when(fn.compare("ne", fn.as_value("i64", self.start), 0)):
                for r in range(rows):
                    for v in range(vectors):
                        at = fn.at(self.c, _plus(fn, c_at, r * product.c.row + v * self.lanes))
                        acc[r][v].set(fn.load_some(types[v], at, counts[v]))
        self._walk_depth(row, b, acc, counts)
        if not isinstance(self.is_final, Value):
            self._finish(acc, c_at, column, counts)
            return
        for final in fn.either(self.is_final):
            if final:
                self._finish(acc, c_at, column, counts)
            else:
                self._store(acc, c_at, counts)

    def _type(self, count: int) -> str:
        """The vector that holds `count` columns."""
        return vector(lanes_for(self.fn.isa, count), "float")

    def _walk_depth(self, row: Index, b: Value, acc: list[list[Var]], counts: list[int]) -> None:
        fn, product, cut = self.fn, self.product, self.cut
        if product.window:
            a_row = cut.stride
            first = _times(fn, self.first_tile, cut.tiling.tile_rows)
            a = fn.at(self.local, _times(fn, _minus(fn, row, first), a_row))
        else:
            a_row = product.a.row
            a = fn.at(self.a, _plus(fn, _times(fn, row, a_row), self.start))

        def panel(at: Value) -> list[Value]:
            return [self._b_vector(at, v, count) for v, count in enumerate(counts)]

        unroll = _unroll(product.size.depth, cut.tiling.depth_slice)
        multiply_tile(
            fn, acc, (a, a_row), (b, product.b.row or cut.width), panel, self.count, unroll
        )

    def _b_vector(self, at: Value, v: int, count: int) -> Value:
        place, type = self.fn.at(at, v * self.lanes), self._type(count)
        if not self.product.b.row:
            return self.fn.load(type, place, 4 * lanes_of(type))
        return self.fn.load_some(type, place, count)

    def _store(self, acc: list[list[Var]], c_at: Index, counts: list[int]) -> None:
        fn = self.fn
        for r, row in enumerate(acc):
            for v, accumulator in enumerate(row):
                offset = r * self.product.c.row + v * self.lanes
                fn.store_some(accumulator.get(), fn.at(self.c, _plus(fn, c_at, offset)), counts[v])

    def _finish(self, acc: list[list[Var]], c_at: Index, column: Index, counts: list[int]) -> None:
        """Emit bias, residual, activation and the store of a tile."""
        fn, product = self.fn, self.product
        is_whole = len(acc) == self.cut.tiling.tile_rows and sum(counts) == self.cut.width
        heavy = COSTS.get(product.activation, 2) > 4 and not is_whole
        types = [self._type(count) for count in counts]
        bias = (
            [
                fn.load_some(types[v], fn.at(self.bias, _plus(fn, column, v * self.lanes)), count)
                for v, count in enumerate(counts)
            ]
            if self.bias
            else []
        )
        for r, row in enumerate(acc):
            for v, accumulator in enumerate(row):
                at = _plus(fn, c_at, r * product.c.row + v * self.lanes)
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
                    offset = _plus(fn, _times(fn, i, product.c.row), v * self.lanes)
                    place = fn.at(fn.at(self.c, c_at), offset)
                    value = fn.load_some(types[v], place, count)
                    fn.store_some(activate(fn, product.activation, value), place, count)


def multiply_tile(
    fn: Function,
    acc: Sequence[Sequence[Var]],
    a: tuple[Value, int],
    b: tuple[Value, int],
    panel: Callable[[Value], list[Value]],
    depth: Index,
    unroll: int,
) -> None:
    """Emit a register tile's walk over the depth: acc[r][v] += A[r, k] * B[k, v].

    a, b: where A and B begin, and the elements between their rows
    panel: loads the vectors of one row of B
    unroll: divides the depth
    """
    for k in fn.range(0, depth, unroll):
        for step in range(unroll):
            columns = panel(fn.at(b[0], _times(fn, _plus(fn, k, step), b[1])))
            for r, accumulators in enumerate(acc):
                scalar = fn.load("float", fn.at(a[0], _plus(fn, k, step + r * a[1])))
                factors = {n: fn.splat(scalar, n) for n in {lanes_of(c.type) for c in columns}}
                for accumulator, column in zip(accumulators, columns, strict=True):
                    factor = factors[lanes_of(column.type)]
                    accumulator.set(fn.fma(factor, column, accumulator.get()))


def _unroll(depth: int, slice_: int) -> int:
    return next(u for u in (4, 2, 1) if depth % u == 0 and slice_ % u == 0)


def _times(fn: Function, index: Index, factor: int) -> Index:
    if isinstance(index, int) or factor == 0:
        return index * factor if isinstance(index, int) else 0
    return index * factor


def _plus(fn: Function, index: Index, other: Index) -> Index:
    if isinstance(index, int) and not isinstance(other, int):
        return other + index
    if isinstance(other, int) and other == 0:
        return index
    return index + other


def _minus(fn: Function, index: Index, other: Index) -> Index:
    if isinstance(other, int) and other == 0:
        return index
    if isinstance(index, int) and isinstance(other, Value):
        return fn.as_value("i64", index) - other
    return index - other
