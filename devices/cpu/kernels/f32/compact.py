"""Products of one row by constant weights that lie in 28 bits each, without loss.

A row of A uses each weight once, so a product takes the time that memory takes to deliver them. Of
a panel of columns nearly all weights are 0 or have one of the 15 highest exponents. So a row of a
panel is stored as the sign and upper 15 bits of the mantissa (2 bytes), the lower 8 bits (1 byte)
and the place of the exponent in a table (4 bits). Rows with another exponent are stored as they
are. Weights get their 32 bits back in registers, and sums have the order of gemm.py, so results
have the same bits.

A panel has up to 128 columns. Its header holds the table, where its rows begin, and how many
compact rows come before each plain one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.devices.cpu.codegen.index import times
from trireme.devices.cpu.codegen.ir import Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.scalars import bits
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.gemm import MatmulEmitter
from trireme.devices.cpu.kernels.f32.product_shape import PACKED, Cut, MatmulShape, Strides
from trireme.devices.cpu.kernels.f32.register_tile import Prefetch
from trireme.devices.cpu.kernels.f32.tiling import Size
from trireme.devices.cpu.kernels.lowering import begin, deal, finish
from trireme.devices.cpu.kernels.spans import begin_sized
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

LANES = 16
WIDTH = 8 * LANES
"""Columns of a panel."""
_HEADER = 128
_ROWS, _PLAIN, _COUNTS, _BREAKS = 64, 72, 80, 88
"""Where the header has the offsets of compact rows, plain rows and counts, and the plain rows."""
_AHEAD = 7168
"""Bytes of prefetch: about 250 ns at 30 GB/s."""
_MOST_PLAIN = 1 / 8
_CODES = 16


def row_bytes(vectors: int) -> int:
    """Return the bytes of a compact row of so many vectors."""
    return 3 * LANES * vectors + (4 if vectors > 4 else 2) * LANES


@dataclass(frozen=True)
class _Panel:
    """A panel as it is stored: the table of exponents, its rows, and those that are plain."""

    table: Array
    rows: Array
    plain: Array
    breaks: Array

    @property
    def counts(self) -> Array:
        """Compact rows before each plain row, and behind the last."""
        ends = np.concatenate([[-1], np.flatnonzero(self.breaks), [len(self.breaks)]])
        return (np.diff(ends) - 1).astype(np.int64)


def compacted(b: Array) -> Array | None:
    """Return the bytes of B [depth, columns] of float32; None where too many rows are plain."""
    depth, columns = b.shape
    panels = [_panel(b[:, at : at + WIDTH]) for at in range(0, columns, WIDTH)]
    if sum(int(panel.breaks.sum()) for panel in panels) > _MOST_PLAIN * depth * len(panels):
        return None
    parts: list[tuple[int, Array]] = []
    at = _HEADER * len(panels)
    headers = np.zeros((len(panels), _HEADER), np.uint8)
    for header, panel in zip(headers, panels, strict=True):
        header[:_ROWS] = panel.table.view(np.uint8)
        offsets = []
        for array in (panel.rows, panel.plain, panel.counts):
            parts.append((at, array))
            offsets.append(at)
            at += -(-array.nbytes // 64) * 64
        numbers = np.array([*offsets, int(panel.breaks.sum())], np.int64)
        header[_ROWS : _BREAKS + 8] = numbers.view(np.uint8)
    room = aligned_bytes(at)
    room[: headers.size] = headers.reshape(-1)
    for start, array in parts:
        room[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    return room


def _panel(b: Array) -> _Panel:
    depth, columns = b.shape
    vectors = -(-columns // LANES)
    whole = np.zeros((depth, vectors * LANES), np.float32)
    whole[:, :columns] = b
    words = whole.view(np.uint32)
    exponents = (words >> 23 & 255).astype(np.int16)
    least = max(int(exponents.max(initial=0)) - _CODES + 1, 0)
    codes = np.maximum(exponents - least, 0).astype(np.uint32)
    breaks = ((exponents <= least) & (exponents != 0)).any(axis=1)
    table = np.arange(least, least + _CODES, dtype=np.uint32) << 23
    table[0] = 0  # of 0 and denormals
    kept = words[~breaks]
    upper = (kept >> 31 << 15 | kept >> 8 & 0x7FFF).astype(np.uint16)
    lower = (kept & 255).astype(np.uint8)
    kind = np.uint32 if vectors > 4 else np.uint16
    places = codes[~breaks].reshape(-1, vectors, LANES)
    joined = np.zeros((len(kept), LANES), np.uint32)
    for v in range(vectors):
        joined |= places[:, v] << (4 * v)
    parts = (upper, lower, joined.astype(kind))
    lines = [
        part.view(np.uint8).reshape(len(kept), part.itemsize * part.shape[1]) for part in parts
    ]
    rows = np.concatenate(lines, axis=1)
    return _Panel(table, np.ascontiguousarray(rows), whole[breaks], breaks)


@dataclass(frozen=True)
class CompactProduct:
    """What a kernel of one row is made for."""

    columns: int
    depth: int
    bias: bool
    residual: bool
    activation: str


def compact_product(product: MatmulShape) -> CompactProduct:
    """Return what the kernel of a product of one row is made for."""
    size = product.size
    parts = product.bias, product.residual, product.activation
    return CompactProduct(size.columns, size.depth, *parts)


def of_one_row(product: MatmulShape) -> MatmulShape:
    """Return a product with one row."""
    return replace(product, size=replace(product.size, rows=1))


def compact_chunks(product: CompactProduct, seconds: float) -> tuple[int, int]:
    """Return the panels of a chunk and the number of chunks."""
    return deal(-(-product.columns // WIDTH), seconds)


def compact_kernel(
    isa: Isa, product: CompactProduct, group: int, what: str, beside: bool = False
) -> Code:
    """Return the kernel; operands: A, the compact B, bias, residual, C.

    beside: whether a kernel of all rows has the same operands: words, A, B, bias, residual, the
        compact B, C
    """
    name, operands = f"{what}_f32_compact", 3 + product.bias + product.residual
    if beside:
        fn, (a, _, *extra, b, c), chunk, _ = begin_sized(name, isa, operands + 1, 0)
        pointers = [a, b, *extra, c]
    else:
        fn, pointers, chunk, _ = begin(name, isa, operands)
    shape = MatmulShape(
        Size(1, product.columns, product.depth),
        Strides(0),
        PACKED,
        Strides(0),
        bias=product.bias,
        residual=product.residual,
        activation=product.activation,
    )
    cut = Cut(1, WIDTH // LANES, 0, 0)
    _CompactRow(fn, shape, cut, pointers, chunk).compact_chunk(chunk, group)
    return finish(fn)


class _CompactRow(MatmulEmitter):
    """Writes the kernel of one row by compact weights."""

    def compact_chunk(self, chunk: Value, group: int) -> None:
        """Emit some panels."""
        fn, columns = self.fn, self.product.size.columns
        whole, rest = divmod(columns, WIDTH)
        first = times(fn, chunk, group)
        self.is_first = self.is_final = True
        for panel in fn.range(first, fn.minimum(first + group, whole)):
            self._compact_panel(panel, WIDTH)
        if rest:
            with fn.when(fn.compare("eq", chunk, whole // group)):
                self._compact_panel(whole, rest)

    def _compact_panel(self, panel: Index, columns: int) -> None:
        fn, column = self.fn, times(self.fn, panel, WIDTH)
        header = fn.at(self.b, times(fn, panel, _HEADER), "i8")
        counts = [min(LANES, columns - at) for at in range(0, columns, LANES)]
        self.register_tile([(self.a, 0)], [(column, 0)], header, column, counts)

    def _type(self, count: Index) -> str:
        return self.type

    def _walk_depth(
        self,
        lines: Sequence[tuple[Value, int]],
        b: Value,
        acc: list[list[Var]],
        counts: Sequence[Index],
        ahead: Prefetch | None,
    ) -> None:
        fn, (sums,) = self.fn, acc
        ((a, _),) = lines

        def number(at: int) -> Value:
            return fn.load("i64", fn.at(b, at, "i8"), 8)

        table = fn.load(f"<{LANES} x i32>", b, 64)
        rows, plain, breaks_at = (
            fn.at(self.b, number(at), "i8") for at in (_ROWS, _PLAIN, _COUNTS)
        )
        row, k = Var(fn, "i64", 0), Var(fn, "i64", 0)
        breaks, nbytes = number(_BREAKS), row_bytes(len(sums))
        for part in fn.range(0, breaks + 1):
            count = fn.load("i64", fn.at(breaks_at, part, "i64"), 8)
            for _ in fn.range(0, count):
                at = fn.at(rows, row.get(), "i8")
                self._add(sums, fn.at(a, k.get()), self._weights(at, table, len(sums)))
                row.set(row.get() + nbytes)
                k.set(k.get() + 1)
            with fn.when(fn.compare("slt", fn.as_value("i64", part), breaks)):
                at = fn.at(plain, times(fn, part, len(sums) * LANES))
                found = [fn.load(self.type, fn.at(at, v * LANES), 64) for v in range(len(sums))]
                self._add(sums, fn.at(a, k.get()), found)
                k.set(k.get() + 1)

    def _add(self, sums: Sequence[Var], a: Value, weights: Sequence[Value]) -> None:
        fn = self.fn
        factor = fn.splat(fn.load("float", a), LANES)
        for total, weight in zip(sums, weights, strict=True):
            total.set(fn.fma(factor, weight, total.get()))

    def _weights(self, row: Value, table: Value, vectors: int) -> list[Value]:
        """Load a compact row as float32."""
        fn, wide = self.fn, vector(LANES, "i32")
        for line in range(0, row_bytes(vectors), 64):
            fn.prefetch(fn.at(row, _AHEAD + line, "i8"), 1)
        place = fn.at(row, 3 * LANES * vectors, "i8")
        if vectors > 4:
            codes = fn.load(wide, place)
        else:
            codes = fn.convert("zext", fn.load(vector(LANES, "i16"), place, 2), wide)
        found = []
        for v in range(vectors):
            high = fn.load(vector(LANES, "i16"), fn.at(row, 2 * LANES * v, "i8"), 2)
            low = fn.load(vector(LANES, "i8"), fn.at(row, LANES * (2 * vectors + v), "i8"), 1)
            upper = bits(fn, "shl", fn.convert("sext", high, wide), 8)
            upper = bits(fn, "and", upper, ~0x7F8000FF)  # the sign stands in the exponent's place
            name = "llvm.x86.avx512.permvar.si.512"
            code = bits(fn, "lshr", codes, 4 * v) if v else codes
            exponent = fn.call(wide, name, table, code)
            word = bits(fn, "or", bits(fn, "or", upper, exponent), fn.convert("zext", low, wide))
            found.append(fn.convert("bitcast", word, self.type))
        return found


def has_compact(isa: Isa) -> bool:
    """Whether an instruction set has the lanes and the permutation of compact weights."""
    return isa.arch == "x86" and isa.lanes == LANES
