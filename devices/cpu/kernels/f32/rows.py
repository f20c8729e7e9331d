"""Rows of a tensor under construction, which kernels that join the elements of a row walk.

A tensor is seen as [outer, count, inner] with the rows along the middle axis. With inner == 1 the
lanes of a vector are neighbours in the row and are joined at the end; otherwise they are neighbour
rows and nothing has to be joined. Sums run in four accumulators, in an order that only the shape
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trireme.devices.cpu.codegen.index import known, minus, plus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.lowering import deal
from trireme.support.records import dataclass

Term = Callable[[Value], Value]
Join = Callable[[Value, Value], Value]


@dataclass(frozen=True)
class Rows:
    """A tensor as [outer, count, inner], rows along the middle."""

    outer: int
    count: int
    inner: int


@dataclass(frozen=True)
class EmittedRow:
    """A row under construction, or `width` neighbouring ones: vectors at known places."""

    fn: Function
    rows: Rows
    offset: Index
    """Of its first element in the tensor."""
    width: int
    """Lanes that hold rows, where lanes are rows."""

    @property
    def type(self) -> str:
        """The type of a vector."""
        return vector(self.fn.isa.lanes, "float")

    def steps(self) -> tuple[int, int]:
        """Return the number of vectors and the lanes of the last one."""
        if self.rows.inner > 1:
            return self.rows.count, self.width
        lanes = self.fn.isa.lanes
        whole, rest = divmod(self.rows.count, lanes)
        return whole + bool(rest), rest or lanes

    def _place(self, base: Value, step: Index) -> Value:
        stride = self.rows.inner if self.rows.inner > 1 else self.fn.isa.lanes
        return self.fn.at(self.fn.at(base, self.offset), step * stride)

    def load(self, base: Value, step: Index, count: Index) -> Value:
        """Load a vector of the row."""
        return self.fn.load_some(self.type, self._place(base, step), count)

    def store(self, value: Value, base: Value, step: Index, count: Index) -> None:
        """Store a vector of the row."""
        self.fn.store_some(value, self._place(base, step), count)

    def walk(self, unroll: int = 1) -> Iterator[tuple[Index, Index, int]]:
        """Yield (step, lanes, accumulator) around what is emitted for each vector of the row."""
        if not known(self.rows.count):
            yield from self._walk_unknown(unroll)
            return
        steps, last = self.steps()
        full = self.fn.isa.lanes if self.rows.inner == 1 else self.width
        whole = steps if last == full else steps - 1
        even = whole // unroll * unroll
        for i in self.fn.range(0, even, unroll):
            for u in range(unroll):
                yield i + u, full, u
        for i in range(even, whole):
            yield i, full, i - even
        if whole < steps:
            yield whole, last, whole - even if whole - even < unroll else 0

    def _walk_unknown(self, unroll: int) -> Iterator[tuple[Index, Index, int]]:
        """The same of a row whose length is read: vectors by accumulator, then the rest of them."""
        fn, count, lanes = self.fn, self.rows.count, self.fn.isa.lanes
        across_lanes = self.rows.inner != 1
        each = 1 if across_lanes else lanes
        full = self.width if across_lanes else lanes
        whole = fn.integer("udiv", count, each)
        even = minus(fn, whole, fn.integer("urem", whole, unroll))
        for i in fn.range(0, even, unroll):
            for u in range(unroll):
                yield i + u, full, u
        for u in range(unroll):
            step = plus(fn, even, u)
            left = fn.as_value("i64", minus(fn, count, times(fn, step, each)))
            with fn.when(fn.compare("sgt", left, 0)):
                yield step, full if across_lanes else fn.minimum(left, lanes), u

    def total(self, base: Value, start: float, term: Term, join: Join) -> Value:
        """Return term(x) joined over the row, in every lane."""
        return self.gather(base, start, lambda value, step, count: term(value), join)

    def gather(
        self, base: Value, start: float, term: Callable[[Value, Index, Index], Value], join: Join
    ) -> Value:
        """Return term(x, step, lanes) joined over the row, in every lane."""
        fn, lanes = self.fn, self.fn.isa.lanes
        totals = [Var(fn, self.type, start) for _ in range(4)]
        for step, count, which in self.walk(4):
            value = term(self.load(base, step, count), step, count)
            if self.rows.inner == 1 and not (isinstance(count, int) and count == lanes):
                value = keep(fn, value, count, start)
            totals[which].set(join(totals[which].get(), value))
        a, b, c, d = (total.get() for total in totals)
        value = join(join(a, b), join(c, d))
        return value if self.rows.inner > 1 else across(fn, value, join)


def keep(fn: Function, value: Value, count: Index, other: float) -> Value:
    """Return the first `count` lanes of a vector, `other` in the rest."""
    lanes = fn.isa.lanes
    if isinstance(count, Value):
        return fn.select(fn.mask(lanes, count), value, fn.as_value(value.type, other))
    order = [k if k < count else lanes for k in range(lanes)]
    return fn.shuffle(value, fn.as_value(value.type, other), order)


def across(fn: Function, value: Value, join: Join) -> Value:
    """Return all lanes joined, in every lane."""
    lanes = half = fn.isa.lanes
    while half > 1:
        half //= 2
        value = join(value, fn.shuffle(value, value, [k ^ half for k in range(lanes)]))
    return value


RowBody = Callable[[EmittedRow], None]


def row_items(rows: Rows, lanes: int) -> tuple[int, int]:
    """Return the rows, or vectors of neighbouring ones, and the elements of each."""
    if rows.inner == 1:
        return rows.outer, rows.count
    return rows.outer * -(-rows.inner // lanes), rows.count * min(lanes, rows.inner)


def rows_s(isa: Isa, items: int, each: int, cost: int) -> float:
    """Return about how many seconds rows take; cost: half cycles of a vector of elements."""
    return items * each * cost / (isa.lanes * 2e9)


def each_row(
    fn: Function, chunk: Value, rows: Rows, cost: int
) -> tuple[int, Callable[[RowBody], None]]:
    """Return the number of chunks, and a function that emits a chunk's rows by calling back.

    cost: half cycles that a vector of elements takes
    """
    items, each = row_items(rows, fn.isa.lanes)
    size, chunks = deal(items, rows_s(fn.isa, items, each, cost))
    first: Index = chunk * size if chunks > 1 else 0
    span = first, fn.minimum(first + size, items)
    return chunks, lambda body: emit_rows(fn, rows, span, body)


def emit_rows(fn: Function, rows: Rows, span: tuple[Index, Index], body: RowBody) -> None:
    """Emit some rows, or vectors of neighbouring ones, by calling back."""
    lanes = fn.isa.lanes
    across_lanes = rows.inner != 1
    vectors = -(-rows.inner // lanes) if across_lanes else 1
    for item in fn.range(*span):
        if not across_lanes:
            body(EmittedRow(fn, rows, item * rows.count, lanes))
            continue
        outer, v = (fn.integer(op, item, vectors) for op in ("udiv", "urem"))
        offset = plus(fn, times(fn, outer, rows.count * rows.inner), times(fn, v, lanes))
        rest = rows.inner % lanes
        if not rest or isinstance(v, int):
            body(EmittedRow(fn, rows, offset, rest if isinstance(v, int) and rest else lanes))
            continue
        for is_last in fn.either(fn.compare("eq", v, vectors - 1)):
            body(EmittedRow(fn, rows, offset, rest if is_last else lanes))
