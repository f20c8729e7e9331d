"""Rounding rows, block by block, to whole numbers of max |a| / 127.

Source: trireme.ops.block_quantized.rounded, in the same float32 arithmetic
"""

from __future__ import annotations

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.scalars import bits as combine
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.int8.arithmetic import store_stored
from trireme.devices.cpu.kernels.lowering import begin, deal, finish
from trireme.ops.block_quantized import LEAST
from trireme.support.records import dataclass


@dataclass(frozen=True)
class RowsShape:
    """Rows of so much depth, in blocks; `bytes` says whether numbers are stored as int8."""

    rows: int
    depth: int
    block: int
    bytes: bool

    @property
    def blocks(self) -> int:
        """Blocks of a row; the last may be a part, and is filled up with 0."""
        return -(-self.depth // self.block)


def rows_kernel(isa: Isa, shape: RowsShape) -> tuple[Code, int, float]:
    """Return the kernel, its chunks and seconds. Operands: a, numbers, steps, sums of numbers."""
    fn, operands, chunk, _ = begin("nbits_rows", isa, 4)
    seconds = shape.rows * shape.blocks * (shape.block * 6 / isa.lanes + 40) / 3e9
    size, chunks = deal(shape.rows, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    rounder = _Rounder(fn, shape, *operands)
    whole = shape.depth // shape.block
    for row in fn.range(first, fn.minimum(first + size, shape.rows)):
        for block in fn.range(0, whole):
            rounder.block(row, block, shape.block)
        if whole < shape.blocks:
            rounder.block(row, whole, shape.depth % shape.block)
    return finish(fn), chunks, seconds


class _Rounder:
    def __init__(
        self, fn: Function, shape: RowsShape, a: Value, numbers: Value, steps: Value, sums: Value
    ) -> None:
        self.fn, self.shape = fn, shape
        self.a, self.numbers, self.steps, self.sums = a, numbers, steps, sums
        self.lanes = fn.isa.lanes
        self.type = vector(self.lanes, "float")

    def block(self, row: Index, block: Index, depth: int) -> None:
        """Emit the rounding of a block whose first `depth` elements are a's."""
        fn, shape = self.fn, self.shape
        start = fn.at(self.a, row * shape.depth + block * shape.block)
        most = self._most(start, depth)
        # inf * 0 is NaN: a block that holds an infinity has no step
        step = most / 127.0 + most * 0.0
        bounded = fn.select(fn.compare("olt", most, float(LEAST)), float(LEAST), most)
        factor = fn.splat(fn.as_value("float", 127.0) / bounded, self.lanes)
        place = (row * shape.blocks + block) * shape.block
        total = self._round(start, place, factor, depth)
        at = row * shape.blocks + block
        fn.store(step, fn.at(self.steps, at))
        fn.store(total, fn.at(self.sums, at))

    def _pieces(self, depth: int) -> list[tuple[int, int]]:
        return [(at, min(depth - at, self.lanes)) for at in range(0, depth, self.lanes)]

    def _most(self, start: Value, depth: int) -> Value:
        """Return max |a|, NaN where there is one: as bits of integers it is the largest."""
        fn, ints = self.fn, vector(self.lanes, "i32")
        most = fn.as_value(ints, 0)
        for at, count in self._pieces(depth):
            x = fn.load_some(self.type, fn.at(start, at), count)
            size = combine(fn, "and", fn.convert("bitcast", x, ints), 0x7FFFFFFF)
            most = fn.select(fn.compare("sgt", size, most), size, most)
        name = f"llvm.vector.reduce.smax.v{self.lanes}i32"
        return fn.convert("bitcast", fn.call("i32", name, most), "float")

    def _round(self, start: Value, place: Index, factor: Value, depth: int) -> Value:
        """Store the numbers of a block, filled up with 0, and return their sum."""
        fn, ints = self.fn, vector(self.lanes, "i32")
        total = Var(fn, ints, 0)
        for at, width in self._pieces(self.shape.block):
            count = min(max(depth - at, 0), self.lanes)
            number = fn.as_value(self.type, 0.0)
            if count:
                x = fn.load_some(self.type, fn.at(start, at), count)
                number = fn.unary("roundeven", x * factor)
            whole = fn.convert("fptosi", number, ints)
            total.set(total.get() + whole)
            if not self.shape.bytes:
                fn.store_some(number, fn.at(self.numbers, place + at), width)
                continue
            store_stored(
                fn,
                fn.convert("trunc", whole, vector(self.lanes, "i8")),
                fn.at(self.numbers, place + at, "i8"),
                width,
            )
        name = f"llvm.vector.reduce.add.v{self.lanes}i32"
        return fn.convert("sitofp", fn.call("i32", name, total.get()), "float")
