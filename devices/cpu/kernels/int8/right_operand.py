"""The right operand of a product of two activations, packed at run time as weights are.

    packed [item, panel, step, vector, lane, tap]      terms [item, lane]

A panel holds the columns of one tile of the product (linear.py), in the order of the kernel's lanes
(requant.channel_order). Where bytes are multiplied they become signed, and each column gets the
number that its sums begin with. The zero points and the sign bits are in that number:

    sum (a - a_zero) (b - b_zero) = sum a' b' - b_zero' sum a' + term
    term = depth * a_zero' * b_zero' - a_zero' * sum b'

a' is unsigned and b' signed. Else elements become 16-bit and their zero point is subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import transpose_registers
from trireme.devices.cpu.kernels.int8.arithmetic import (
    CYCLES_PER_S,
    QUADS,
    Dot,
    emit_dot,
    load_stored,
    widen,
)
from trireme.devices.cpu.kernels.int8.matmul_layout import BatchWalk
from trireme.devices.cpu.kernels.int8.requant import channel_order, groups_of
from trireme.devices.cpu.kernels.lowering import begin, deal, finish
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

_VECTOR_CYCLES = 5.0
"""About the cycles to interleave and store a vector of 512 bits."""


@dataclass(frozen=True)
class RightOperand:
    """A right operand [items, depth, columns] as it lies in memory, in elements.

    row, column: strides; one of them is 1
    zero: subtracted from 16-bit elements
    """

    items: int
    depth: int
    columns: int
    row: int
    column: int
    walk: BatchWalk
    dtype: str
    zero: int


@dataclass(frozen=True)
class Panels:
    """The layout of a packed operand: vectors of a panel, and of all columns; steps of depth."""

    dot: Dot
    lanes: int
    vectors: int
    wanted: int
    steps: int

    @property
    def count(self) -> int:
        """Panels of an item."""
        return -(-self.wanted // self.vectors)

    @property
    def item_bytes(self) -> int:
        """Bytes of a packed item."""
        return self.wanted * self.steps * self.lanes * 4

    def groups(self, isa: Isa, vectors: int) -> Iterator[tuple[int, Array]]:
        """Yield the first vector of each group of a panel, and its channels [vector, lane]."""
        start = 0
        for size in groups_of(vectors):
            yield start, channel_order(isa, self.lanes, size)
            start += size


def terms_numbers(depth: int, a_zero: int, b_zero: int) -> Array:
    """Return the factor of a column's sum and the addend, which make its term."""
    return np.array([-a_zero, depth * a_zero * b_zero], np.int32)


class PackKernel:
    """Emits the kernel: chunks of panels of items."""

    def __init__(self, isa: Isa, right: RightOperand, panels: Panels) -> None:
        self.isa, self.right, self.panels = isa, right, panels
        self.dot = panels.dot
        self.sums = self.dot is QUADS
        self.type = vector(panels.lanes, "i32")

    def emit(self, fn: Function, operands: Sequence[Value], units: tuple[Index, Index]) -> None:
        """Emit some panels, counted over the items."""
        panels = self.panels
        last = panels.wanted - (panels.count - 1) * panels.vectors
        for unit in fn.range(*units):
            item = fn.integer("udiv", unit, panels.count)
            panel = fn.integer("urem", unit, panels.count)
            if panels.count == 1:
                self._panel(fn, operands, (item, 0), last, True)
                continue
            is_last = fn.compare("eq", fn.as_value("i64", panel), panels.count - 1)
            for narrow in fn.either(is_last):
                vectors = last if narrow else panels.vectors
                self._panel(fn, operands, (item, panel), vectors, narrow)

    def _panel(
        self,
        fn: Function,
        operands: Sequence[Value],
        place: tuple[Index, Index],
        vectors: int,
        is_last: bool,
    ) -> None:
        """Emit a panel of so many vectors; place: its item and its number."""
        panels, right, lanes = self.panels, self.right, self.panels.lanes
        item, first = place[0], place[1] * panels.vectors
        b, packed = operands[:2]
        b = fn.at(b, right.walk.at(fn, item) + first * (lanes * right.column), "i8")
        packed = fn.at(packed, item * panels.item_bytes, "i8")
        packed = fn.at(packed, first * (panels.steps * lanes * 4), "i8")
        left = right.columns - (panels.count - 1) * panels.vectors * lanes
        emit_group = self._by_rows if right.column == 1 else self._by_columns
        for start, order in panels.groups(self.isa, vectors):
            count = min(order.size, left - start * lanes) if is_last else order.size
            source = fn.at(b, start * lanes * right.column, "i8")
            target = fn.at(packed, start * lanes * 4, "i8")
            sums = emit_group(fn, source, target, (order, count), vectors)
            if self.sums:
                line = fn.at(operands[3], item * (panels.wanted * lanes), "i32")
                self._terms(fn, sums, operands[2], fn.at(line, (first + start) * lanes, "i32"))

    def _terms(self, fn: Function, sums: Sequence[Var], numbers: Value, line: Value) -> None:
        factor, addend = (
            fn.splat(fn.load("i32", fn.at(numbers, k, "i32"), 4), self.panels.lanes)
            for k in range(2)
        )
        for v, total in enumerate(sums):
            fn.store(total.get() * factor + addend, fn.at(line, v * self.panels.lanes, "i32"), 4)

    def _by_rows(
        self, fn: Function, b: Value, target: Value, group: tuple[Array, int], vectors: int
    ) -> list[Var]:
        """Emit a group of vectors of an operand whose rows lie together.

        group: the channels [vector, lane], and how many of them there are
        """
        (order, count), taps, row = group, self.dot.taps, self.right.row
        sums = [Var(fn, self.type, 0) for _ in order]
        whole, rest = divmod(self.right.depth, taps)

        def emit_step(step: Index, given: int) -> None:
            source = fn.at(b, step * (taps * row), "i8")
            rows = [
                self._elements(fn, fn.at(source, t * row, "i8"), order.size, count)
                for t in range(given)
            ]
            rows += [fn.as_value(rows[0].type, 0)] * (taps - given)
            self._store(fn, self._interleaved(fn, rows, order), sums, (target, step, vectors))

        for step in fn.range(0, whole):
            emit_step(step, taps)
        if rest:
            emit_step(whole, rest)
        return sums

    def _by_columns(
        self, fn: Function, b: Value, target: Value, group: tuple[Array, int], vectors: int
    ) -> list[Var]:
        """Emit a group of vectors of an operand whose columns lie together: squares are turned."""
        lanes, taps, depth = self.panels.lanes, self.dot.taps, self.right.depth
        sums = [Var(fn, self.type, 0) for _ in group[0]]
        block = lanes * taps
        whole = depth // block * block

        def emit_square(v: int, at: Index, length: int) -> None:
            place = fn.at(target, v * lanes * 4, "i8")
            lines = self._square(fn, fn.at(b, at, "i8"), group[0][v], group[1], length)
            first, steps = fn.integer("udiv", at, taps), -(-length // taps)
            for j, line in enumerate(transpose_registers(fn, lines)[:steps]):
                self._store(fn, [line], [sums[v]], (place, first + j, vectors))

        for v in range(len(sums)):
            for at in fn.range(0, whole, block):
                emit_square(v, at, block)
            if whole < depth:
                emit_square(v, whole, depth - whole)
        return sums

    def _square(
        self, fn: Function, b: Value, channels: Array, count: int, length: int
    ) -> list[Value]:
        """Return a vector of 32-bit lanes for each channel: some taps of it in each lane."""
        block = self.panels.lanes * self.dot.taps
        lines = []
        for channel in channels.tolist():
            if channel < count:
                x = self._elements(fn, fn.at(b, channel * self.right.column, "i8"), block, length)
            else:
                x = fn.as_value(vector(block, self.dot.element), 0)
            lines.append(fn.convert("bitcast", x, self.type))
        return lines

    def _elements(self, fn: Function, pointer: Value, lanes: int, count: int) -> Value:
        """Return the first `count` elements as the multiplier wants them; 0 in other lanes."""
        x = load_stored(fn, pointer, lanes, count)
        if self.dot.width == 2:
            x = widen(fn, x, self.right.dtype, "i16")
            x = x - self.right.zero if self.right.zero else x
        elif self.right.dtype == "uint8":
            x = fn.emit(x.type, f"xor {x}, {x.text_of(-128)}")
        if count == lanes:
            return x
        return fn.select(fn.mask(lanes, count), x, fn.as_value(x.type, 0))

    def _interleaved(self, fn: Function, rows: Sequence[Value], order: Array) -> list[Value]:
        """Return vectors of 32-bit lanes with the taps of each channel, from rows of channels."""
        lanes, size = order.shape[1], order.size
        made = []
        for channels in order.tolist():
            parts = [
                fn.shuffle(a, b, [k for c in channels for k in (c, size + c)])
                for a, b in zip(rows[::2], rows[1::2], strict=True)
            ]
            wide = vector(lanes, f"i{16 * self.dot.width}")
            words = [fn.convert("bitcast", part, wide) for part in parts]
            if len(words) == 2:
                both = [k for lane in range(lanes) for k in (lane, lanes + lane)]
                words = [fn.shuffle(words[0], words[1], both)]
            made.append(fn.convert("bitcast", words[0], self.type))
        return made

    def _store(
        self,
        fn: Function,
        made: Sequence[Value],
        sums: Sequence[Var],
        place: tuple[Value, Index, int],
    ) -> None:
        """Store vectors of one step, and add their elements to the sums of their columns.

        place: where step 0 begins, the step, and the vectors of a step
        """
        nbytes = self.panels.lanes * 4
        target = fn.at(place[0], place[1] * (place[2] * nbytes), "i8")
        ones = fn.as_value(vector(nbytes, "i8"), 1)
        for v, (x, total) in enumerate(zip(made, sums, strict=True)):
            fn.store(x, fn.at(target, v * nbytes, "i8"), nbytes)
            if self.sums:
                x_ones = fn.convert("bitcast", ones, self.type)
                total.set(emit_dot(fn, QUADS, total.get(), x_ones, x))


def pack_s(right: RightOperand, panels: Panels) -> float:
    """Estimate the packing for one thread."""
    cycles = _VECTOR_CYCLES * max(panels.lanes / 16, 0.5)
    return right.items * panels.wanted * panels.steps * cycles / CYCLES_PER_S


def pack_kernel(isa: Isa, right: RightOperand, panels: Panels) -> tuple[Code, int]:
    """Return the kernel that packs a right operand, and its chunks.

    Operands: the operand, [numbers of the terms], packed, [terms].
    """
    count = 4 if panels.dot is QUADS else 2
    fn, pointers, chunk, _ = begin(f"pack_b_{panels.dot.name}", isa, count)
    b, *numbers, packed = pointers[: 3 if count == 4 else 2]
    operands = (b, packed, *numbers, *pointers[3:])
    total = right.items * panels.count
    size, chunks = deal(total, pack_s(right, panels))
    first: Index = chunk * size if chunks > 1 else 0
    kernel = PackKernel(isa, right, panels)
    kernel.emit(fn, operands, (first, fn.minimum(first + size, total)))
    return finish(fn), chunks
