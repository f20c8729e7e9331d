"""Products with weights of 2, 4 or 8 bits: codes stay packed in memory and become numbers here.

Weights lie in panels of a few vectors of columns, a column a lane. A 32-bit element of a panel
holds the next codes of its column. So a step of depth multiplies a splat of a by a vector of
weights, and nothing is added up across lanes. Each block has its own sum, which is scaled before it
is added.

A is float32; or, rounded to whole numbers, bytes where the instruction set multiplies these four at
a time (rows.py). With bytes the zero point times the block's sum of a is taken off the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import float_text, vector
from trireme.devices.cpu.codegen.scalars import bits as combine
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import QUADS, emit_dot, is_x86
from trireme.devices.cpu.kernels.lowering import begin, deal, finish, split_evenly
from trireme.support.records import dataclass

Zeros = Literal["middle", "bytes", "floats"]
_TABLE = "llvm.x86.avx512.permvar.sf.512"
_GROUPS_AT_ONCE = 4
_BYTES_PER_S = 1.2e10


@dataclass(frozen=True)
class NBitsShape:
    """A product of a [rows, depth] with packed weights [columns, blocks * block].

    zeros: "middle" where every zero point is 2^(bits - 1); else the dtype of the packed ones
    rounded: whether a is rounded to whole numbers; it then lies filled up to whole blocks
    """

    rows: int
    columns: int
    depth: int
    block: int
    bits: int
    zeros: Zeros
    bias: bool
    rounded: bool

    @property
    def blocks(self) -> int:
        """Blocks along the depth; the last may be a part."""
        return -(-self.depth // self.block)

    @property
    def codes(self) -> int:
        """Codes in 32 bits."""
        return 32 // self.bits

    @property
    def row(self) -> int:
        """Elements from a row of a to the next."""
        return self.blocks * self.block if self.rounded else self.depth


@dataclass(frozen=True)
class NBitsCut:
    """Rows and vectors of a register tile; a panel is `vectors` vectors of columns."""

    rows: int
    vectors: int
    panels: int


def has_byte_products(isa: Isa, shape: NBitsShape) -> bool:
    """Whether a product multiplies bytes."""
    return shape.rounded and isa.vnni


def cut_nbits(isa: Isa, shape: NBitsShape) -> NBitsCut:
    """Return the cut of a product: few rows have wide panels, for enough sums at work at once."""
    for vectors in (4, 2, 1):
        most = max((isa.registers - vectors - 3) // (2 * vectors), 1)
        rows, _ = split_evenly(shape.rows, most)
        if vectors == 1 or most >= min(shape.rows, 4):
            break
    return NBitsCut(rows, vectors, -(-shape.columns // (vectors * isa.lanes)))


def nbits_kernel(isa: Isa, shape: NBitsShape, cut: NBitsCut) -> tuple[Code, int, float]:
    """Return the kernel of a product, its chunks and seconds.

    Operands: a, weights, scales, [zeros], [steps, sums of a], [bias], y
    """
    count = 4 + (shape.zeros != "middle") + 2 * shape.rounded + shape.bias
    name = f"matmul_nbits{shape.bits}_{cut.rows}x{cut.vectors}"
    fn, operands, chunk, _ = begin(name, isa, count)
    seconds = _seconds(isa, shape)
    size, chunks = deal(cut.panels, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    _Product(fn, shape, cut, operands).panels(first, fn.minimum(first + size, cut.panels))
    return finish(fn), chunks, seconds


def _seconds(isa: Isa, shape: NBitsShape) -> float:
    weights = shape.columns * shape.blocks * shape.block
    nbytes = weights * shape.bits / 8 + 4 * shape.columns * shape.blocks
    width = isa.lanes * (4 if has_byte_products(isa, shape) else 1)
    cycles = weights / width * (2 + shape.rows) / 2
    return max(cycles / 3e9, nbytes / _BYTES_PER_S)


class _Product:
    def __init__(
        self, fn: Function, shape: NBitsShape, cut: NBitsCut, operands: Sequence[Value]
    ) -> None:
        self.fn, self.shape, self.cut = fn, shape, cut
        rest = list(operands)
        self.a, self.weights, self.scales = rest[:3]
        del rest[:3]
        self.zeros = rest.pop(0) if shape.zeros != "middle" else None
        self.steps = rest.pop(0) if shape.rounded else None
        self.sums = rest.pop(0) if shape.rounded else None
        self.bias = rest.pop(0) if shape.bias else None
        (self.y,) = rest
        self.lanes = fn.isa.lanes
        self.floats, self.ints = vector(self.lanes, "float"), vector(self.lanes, "i32")
        self.bytes = has_byte_products(fn.isa, shape)
        self.table = self._table()

    def panels(self, first: Index, last: Index) -> None:
        """Emit the product of some panels; only the last one may have fewer columns."""
        fn, cut, shape = self.fn, self.cut, self.shape
        width = cut.vectors * self.lanes
        whole = shape.columns // width
        for panel in fn.range(first, fn.minimum(last, whole) if whole else 0):
            self._panel(panel, [self.lanes] * cut.vectors)
        rest = shape.columns - whole * width
        if rest:
            counts = [min(max(rest - v * self.lanes, 0), self.lanes) for v in range(cut.vectors)]
            if isinstance(last, int):
                self._panel(whole, counts)
                return
            with fn.when(fn.compare("eq", last, cut.panels)):
                self._panel(whole, counts)

    def _panel(self, panel: Index, counts: list[int]) -> None:
        fn, shape, rows = self.fn, self.shape, self.cut.rows
        tiles = shape.rows // rows
        for tile in fn.range(0, tiles):
            self._tile(panel, tile * rows, rows, counts)
        if shape.rows % rows:
            self._tile(panel, tiles * rows, shape.rows % rows, counts)

    def _tile(self, panel: Index, row: Index, rows: int, counts: list[int]) -> None:
        """Emit a tile of y: rows of it by the columns of a panel."""
        fn, shape, vectors = self.fn, self.shape, self.cut.vectors
        start = panel * (vectors * self.lanes)
        acc = [[Var(fn, self.floats, 0.0) for _ in range(vectors)] for _ in range(rows)]
        whole = shape.blocks if self.bytes else shape.depth // shape.block
        for block in fn.range(0, whole):
            self._block(panel, row, block, acc, shape.block)
        if whole < shape.blocks:
            self._block(panel, row, whole, acc, shape.depth % shape.block)
        for v, count in enumerate(counts):
            if not count:
                continue
            column = start + v * self.lanes
            bias = self.bias and fn.load_some(self.floats, fn.at(self.bias, column), count)
            for r in range(rows):
                value = acc[r][v].get() + bias if bias else acc[r][v].get()
                place = fn.at(fn.at(self.y, (row + r) * shape.columns), column)
                fn.store_some(value, place, count)

    def _block(
        self, panel: Index, row: Index, block: Index, acc: list[list[Var]], depth: int
    ) -> None:
        """Emit the sums of a block of so much depth, and add them, scaled."""
        fn, shape, vectors = self.fn, self.shape, self.cut.vectors
        type, groups = self.ints if self.bytes else self.floats, shape.block // shape.codes
        part = [[Var(fn, type, 0) for _ in range(vectors)] for _ in acc]
        place = (panel * shape.blocks + block) * vectors
        zeros = self._zeros(place)
        start = fn.at(self.weights, place * groups * self.lanes, "i32")
        whole = depth // shape.codes
        unroll = _GROUPS_AT_ONCE if whole % _GROUPS_AT_ONCE == 0 else 1
        a = [
            fn.at(self.a, (row + r) * shape.row + block * shape.block, self._element)
            for r in range(len(acc))
        ]
        for group in fn.range(0, whole, unroll):
            for step in range(unroll):
                self._group(start, a, group + step, part, zeros, shape.codes)
        if depth % shape.codes:
            self._group(start, a, whole, part, zeros, depth % shape.codes)
        self._add(place, row, block, acc, part, zeros)

    @property
    def _element(self) -> str:
        return "i8" if self.bytes else "float"

    def _zeros(self, place: Index) -> list[Value] | None:
        """Return the zero points of a block as floats; None where they are in the middle."""
        fn = self.fn
        if self.zeros is None:
            return None
        found = []
        for v in range(self.cut.vectors):
            at = (place + v) * self.lanes
            if self.shape.zeros == "floats":
                found.append(fn.load(self.floats, fn.at(self.zeros, at)))
                continue
            raw = fn.load(vector(self.lanes, "i8"), fn.at(self.zeros, at, "i8"), 1)
            found.append(fn.convert("uitofp", raw, self.floats))
        return found

    def _group(
        self,
        start: Value,
        a: Sequence[Value],
        group: Index,
        part: list[list[Var]],
        zeros: list[Value] | None,
        count: int,
    ) -> None:
        """Emit the products of the codes in one 32-bit element of each column."""
        fn, shape, vectors = self.fn, self.shape, self.cut.vectors
        packed = [
            fn.load(self.ints, fn.at(start, (group * vectors + v) * self.lanes, "i32"), 4)
            for v in range(vectors)
        ]
        first = group * shape.codes
        if self.bytes:
            self._quads(packed, [fn.at(row, first, "i8") for row in a], part)
            return
        places = [fn.at(row, first) for row in a]
        for k in range(count):
            factors = [fn.splat(fn.load("float", fn.at(row, k)), self.lanes) for row in places]
            for v, codes in enumerate(packed):
                w = self._number(codes, k)
                w = w - zeros[v] if zeros else w
                for sums, factor in zip(part, factors, strict=True):
                    sums[v].set(fn.fma(factor, w, sums[v].get()))

    def _quads(self, packed: list[Value], a: list[Value], part: list[list[Var]]) -> None:
        fn, shape = self.fn, self.shape
        mask = (1 << shape.bits) - 1
        for step in range(8 // shape.bits):
            factors = [
                fn.splat(fn.load("i32", fn.at(row, 4 * step, "i8"), 1), self.lanes) for row in a
            ]
            for v, codes in enumerate(packed):
                w = combine(fn, "lshr", codes, shape.bits * step) if step else codes
                w = combine(fn, "and", w, mask * 0x01010101) if shape.bits < 8 else w
                for sums, factor in zip(part, factors, strict=True):
                    sums[v].set(emit_dot(fn, QUADS, sums[v].get(), w, factor))

    def _number(self, packed: Value, k: int) -> Value:
        """Return code k of each 32-bit element as a float, less the middle where that is zero."""
        fn, shape = self.fn, self.shape
        shift = 8 * (k % 4) + shape.bits * (k // 4)
        codes = combine(fn, "lshr", packed, shift) if shift else packed
        if self.table is not None:
            return fn.call(self.floats, _TABLE, self.table, codes)
        codes = combine(fn, "and", codes, (1 << shape.bits) - 1)
        if shape.zeros == "middle":
            codes = codes - (1 << (shape.bits - 1))
        return fn.convert("sitofp", codes, self.floats)

    def _table(self) -> Value | None:
        """Return the numbers of the sixteen codes, where a vector can be an index of another."""
        if self.shape.bits != 4 or self.lanes != 16 or not is_x86(self.fn.isa):
            return None
        middle = 8 if self.shape.zeros == "middle" else 0
        numbers = ", ".join(f"float {float_text(code - middle)}" for code in range(16))
        return Value(self.fn, self.floats, f"<{numbers}>")

    def _add(
        self,
        place: Index,
        row: Index,
        block: Index,
        acc: list[list[Var]],
        part: list[list[Var]],
        zeros: list[Value] | None,
    ) -> None:
        """Emit acc += part * scale, with the zero points taken off and a's step."""
        fn, shape = self.fn, self.shape
        for v in range(self.cut.vectors):
            scale = fn.load(self.floats, fn.at(self.scales, (place + v) * self.lanes))
            for r, sums in enumerate(acc):
                value, factor = part[r][v].get(), scale
                at = (row + r) * shape.blocks + block
                if self.bytes:
                    value = fn.convert("sitofp", value, self.floats)
                    total = self._splat(self.sums, at)
                    zero = zeros[v] if zeros else float(1 << (shape.bits - 1))
                    value = fn.fma(-total, zero, value)
                if self.steps is not None:
                    factor = scale * self._splat(self.steps, at)
                sums[v].set(fn.fma(value, factor, sums[v].get()))

    def _splat(self, pointer: Value | None, at: Index) -> Value:
        if pointer is None:
            return self.fn.as_value(self.floats, 0.0)
        return self.fn.splat(self.fn.load("float", self.fn.at(pointer, at)), self.lanes)
