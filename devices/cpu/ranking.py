"""arg_max, arg_min and top_k: places of elements along an axis, by their order.

A tensor is seen as [outer, count, inner] with rows along the middle. NaN is above every number, as
in the references. arg_max keeps the best of each lane and joins the lanes at the end. top_k turns
an element and its place into one unsigned number whose order is the order asked for, ties included:
few are kept in a sorted list, many are collected and merge-sorted in the thread's own memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.scalars import SCALARS, bits, load
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels import TABLE, Context, Rule, Step, begin, deal, finish
from trireme.devices.cpu.recipes import Code
from trireme.devices.cpu.rows import Rows
from trireme.graph import Graph, Node
from trireme.kernel_table import STORED_8

_FEW = 32
"""Most elements that top_k keeps in a sorted list."""


def rows_along(shape: tuple[int, ...], axis: int) -> Rows:
    """Return a tensor as [outer, count, inner] with rows along an axis."""
    axis %= len(shape)
    return Rows(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


@dataclass(frozen=True)
class Order:
    """What is looked for among elements of a dtype: the largest or the least; the last of ties."""

    dtype: str
    largest: bool
    last: bool = False

    def above(self, fn: Function, new: Value, old: Value) -> Value:
        """Whether one element comes before another, whatever their places."""
        side = "gt" if self.largest else "lt"
        kind = SCALARS[self.dtype].kind
        if kind in ("single", "double"):
            larger = fn.compare(f"u{side}", new, old)
            return bits(fn, "and", larger, fn.compare("ord", old, old))
        return fn.compare(f"{'s' if kind == 'signed' else 'u'}{side}", new, old)

    def later_wins(self, fn: Function, new: Value, old: Value) -> Value:
        """Whether an element replaces one that lies before it."""
        if not self.last:
            return self.above(fn, new, old)
        return bits(fn, "xor", self.above(fn, old, new), 1)


@dataclass(frozen=True)
class _Best:
    """The best elements so far, one for each lane, and their places."""

    fn: Function
    order: Order
    value: Var
    place: Var

    def see(self, value: Value, place: Value) -> None:
        """Look at elements that lie behind all those seen before."""
        self.take(self.order.later_wins(self.fn, value, self.value.get()), value, place)

    def join(self, value: Value, place: Value) -> None:
        """Look at an element that may lie anywhere."""
        fn, old = self.fn, self.value.get()
        tie = bits(fn, "xor", self.order.above(fn, old, value), 1)
        nearer = fn.compare("sgt" if self.order.last else "slt", place, self.place.get())
        wins = self.order.above(fn, value, old)
        self.take(bits(fn, "or", wins, bits(fn, "and", tie, nearer)), value, place)

    def take(self, wins: Value, value: Value, place: Value) -> None:
        """Replace what loses."""
        self.value.set(self.fn.select(wins, value, self.value.get()))
        self.place.set(self.fn.select(wins, place, self.place.get()))


def arg_kernel(isa: Isa, order: Order, rows: Rows) -> tuple[Code, int, float]:
    """Return the kernel of an arg_max or arg_min, its chunks and seconds. Operands: x, y (i64)."""
    scalar = SCALARS[order.dtype]
    name = f"arg_{'max' if order.largest else 'min'}_{scalar.short}"
    fn, (x, y), chunk, _ = begin(name, isa, 2)
    lanes = isa.vector_bits // (8 * min(scalar.nbytes, 4))
    blocks = -(-rows.inner // lanes)
    items = rows.outer * blocks
    vectors = items * (rows.count if rows.inner > 1 else rows.count / lanes + lanes)
    seconds = vectors * 3e-9
    size, chunks = deal(items, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    for item in fn.range(first, fn.minimum(first + size, items)):
        outer, block = fn.integer("udiv", item, blocks), fn.integer("urem", item, blocks)
        if rows.inner == 1:
            row = fn.at(x, outer * rows.count, scalar.memory)
            fn.store(_along(fn, order, row, rows.count, lanes), fn.at(y, outer, "i64"))
            continue
        rest = rows.inner % lanes
        column = block * lanes
        at = fn.at(x, outer * (rows.count * rows.inner) + column, scalar.memory)
        to = fn.at(y, outer * rows.inner + column, "i64")
        if not rest or isinstance(block, int):
            _across(fn, order, rows, (at, to), lanes, rest or lanes)
            continue
        for is_last in fn.either(fn.compare("eq", block, blocks - 1)):
            _across(fn, order, rows, (at, to), lanes, rest if is_last else lanes)
    return finish(fn), chunks, seconds


def _best(fn: Function, order: Order, value: Value, place: Value) -> _Best:
    return _Best(fn, order, Var(fn, value.type, value), Var(fn, place.type, place))


def _across(
    fn: Function, order: Order, rows: Rows, places: tuple[Value, Value], lanes: int, count: int
) -> None:
    """Emit the best of `count` neighbouring rows, whose elements lie `inner` apart."""
    (x, y), memory = places, SCALARS[order.dtype].memory
    index = vector(lanes, "i64")
    best = _best(fn, order, load(fn, order.dtype, x, lanes, count), fn.as_value(index, 0))
    for j in fn.range(1, rows.count):
        value = load(fn, order.dtype, fn.at(x, j * rows.inner, memory), lanes, count)
        best.see(value, fn.splat(fn.as_value("i64", j), lanes))
    fn.store_some(best.place.get(), y, count)


def _along(fn: Function, order: Order, row: Value, count: int, lanes: int) -> Value:
    """Emit the best of a row whose elements are neighbours: lane by lane, then of the lanes."""
    dtype, memory = order.dtype, SCALARS[order.dtype].memory
    whole = count // lanes * lanes
    if whole:
        index = vector(lanes, "i64")
        steps = ", ".join(f"i64 {lane}" for lane in range(lanes))
        place = Value(fn, index, f"<{steps}>")
        many = _best(fn, order, load(fn, dtype, row, lanes), place)
        for i in fn.range(lanes, whole, lanes):
            here = place + fn.splat(fn.as_value("i64", i), lanes)
            many.see(load(fn, dtype, fn.at(row, i, memory), lanes), here)
        values, found = many.value.get(), many.place.get()
        best = _best(fn, order, fn.extract(values, 0), fn.extract(found, 0))
        for lane in range(1, lanes):
            best.join(fn.extract(values, lane), fn.extract(found, lane))
    else:
        best = _best(fn, order, load(fn, dtype, row, 1), fn.as_value("i64", 0))
    for i in fn.range(whole or 1, count):
        best.see(load(fn, dtype, fn.at(row, i, memory), 1), fn.as_value("i64", i))
    return best.place.get()


@dataclass(frozen=True)
class _Ranks:
    """Elements of a row as unsigned numbers: the order asked for above, the place below."""

    fn: Function
    order: Order

    @property
    def half(self) -> int:
        """Bits of the order, and as many of the place."""
        return 32 if SCALARS[self.order.dtype].nbytes <= 4 else 64

    @property
    def type(self) -> str:
        """The type of a number."""
        return f"i{2 * self.half}"

    @property
    def nbytes(self) -> int:
        """The bytes of a number."""
        return self.half // 4

    def of(self, value: Value, place: Value) -> Value:
        """Return the number of an element at a place (i64)."""
        fn = self.fn
        key = fn.convert("zext", self._key(value), self.type)
        low = place if self.half == 32 else fn.convert("zext", place, self.type)
        return bits(fn, "or", bits(fn, "shl", key, self.half), low)

    def _key(self, value: Value) -> Value:
        """Return an element as an unsigned number of `half` bits in the order asked for."""
        fn, half = self.fn, self.half
        kind, type = SCALARS[self.order.dtype].kind, f"i{half}"
        if kind in ("single", "double"):
            raw = fn.convert("bitcast", value + 0.0, type)  # -0 is 0
            turned = bits(fn, "or", bits(fn, "ashr", raw, half - 1), -(1 << half - 1))
            key = fn.select(fn.compare("uno", value, value), -1, bits(fn, "xor", raw, turned))
        elif value.type == type:
            key = value
        else:
            key = fn.convert("sext" if kind == "signed" else "zext", value, type)
        if kind == "signed":
            key = bits(fn, "xor", key, -(1 << half - 1))
        return bits(fn, "xor", key, -1) if self.order.largest else key

    def place(self, number: Value) -> Value:
        """Return the place of a number, as i64."""
        if self.half == 64:
            return self.fn.convert("trunc", number, "i64")
        return bits(self.fn, "and", number, (1 << 32) - 1)

    def load(self, pointer: Value, index: Index) -> Value:
        """Load a number from a list."""
        return self.fn.load(self.type, self.fn.at(pointer, index, self.type), 8)

    def store(self, number: Value, pointer: Value, index: Index) -> None:
        """Store a number into a list."""
        self.fn.store(number, self.fn.at(pointer, index, self.type), 8)


def top_k_kernel(
    isa: Isa, order: Order, rows: Rows, k: int, with_places: bool
) -> tuple[Code, int, float, int]:
    """Return the kernel of a top_k, its chunks, seconds and bytes of local memory.

    Operands: x, y [outer, k, inner], and the places (i64), where they are asked for
    """
    scalar = SCALARS[order.dtype]
    fn, (x, y, *places), chunk, local = begin(f"top_k_{scalar.short}", isa, 2 + with_places)
    ranks = _Ranks(fn, order)
    seconds = rows.outer * rows.inner * _row_s(rows.count, k)
    size, chunks = deal(rows.outer * rows.inner, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    for item in fn.range(first, fn.minimum(first + size, rows.outer * rows.inner)):
        outer, inner = fn.integer("udiv", item, rows.inner), fn.integer("urem", item, rows.inner)
        row = fn.at(x, outer * (rows.count * rows.inner) + inner, scalar.memory)

        def number(j: Index, row: Value = row) -> Value:
            value = load(fn, order.dtype, fn.at(row, j * rows.inner, scalar.memory), 1)
            return ranks.of(value, fn.as_value("i64", j))

        keep = _list if k <= _FEW else _sort
        found = keep(ranks, number, rows.count, k, local)
        for t in fn.range(0, k):
            place = ranks.place(ranks.load(found, t))
            to = outer * (k * rows.inner) + inner + t * rows.inner
            source = fn.at(row, place * rows.inner, scalar.memory)
            raw = fn.load(scalar.memory, source, min(scalar.nbytes, 4))
            fn.store(raw, fn.at(y, to, scalar.memory), min(scalar.nbytes, 4))
            if with_places:
                fn.store(place, fn.at(places[0], to, "i64"))
    room = (k if k <= _FEW else 2 * _candidates(rows.count, k)) * ranks.nbytes
    return finish(fn), chunks, seconds, room


def _row_s(count: int, k: int) -> float:
    if k <= _FEW:
        return count * 1e-9 + k * k * math.log(1 + count / k) * 1e-9
    room = _candidates(count, k)
    sorts = 1 + k * math.log(count / room) / (room - k) if room > k else 1
    return count * 1e-9 + sorts * room * math.log2(room) * 5e-9


Number = Callable[[Index], Value]


def _list(ranks: _Ranks, number: Number, count: int, k: int, local: Value) -> Value:
    """Emit a pass that keeps the first k in a sorted list; return the list."""
    fn = ranks.fn
    for t in fn.range(0, k):
        ranks.store(fn.as_value(ranks.type, -1), local, t)
    for j in fn.range(0, count):
        new = number(j)
        with fn.when(fn.compare("ult", new, ranks.load(local, k - 1))):
            moving = Var(fn, ranks.type, new)
            for t in fn.range(0, k):
                here, mine = ranks.load(local, t), moving.get()
                is_less = fn.compare("ult", mine, here)
                ranks.store(fn.select(is_less, mine, here), local, t)
                moving.set(fn.select(is_less, here, mine))
    return local


def _candidates(count: int, k: int) -> int:
    """Return how many numbers are collected before they are sorted and the first k kept."""
    return min(count, 4 * k)


def _sort(ranks: _Ranks, number: Number, count: int, k: int, local: Value) -> Value:
    """Emit a pass that collects what may be among the first k, sorted whenever there is no room.

    Returns the list that holds the result
    """
    fn, room = ranks.fn, _candidates(count, k)
    filled, worst = Var(fn, "i64", 0), Var(fn, ranks.type, -1)
    for j in fn.range(0, count):
        new = number(j)
        with fn.when(fn.compare("ult", new, worst.get())):
            ranks.store(new, local, filled.get())
            filled.set(filled.get() + 1)
            if room < count:
                with fn.when(fn.compare("eq", filled.get(), room)):
                    made = _merge_sort(ranks, local, room, filled.get())
                    for t in fn.range(0, k):
                        ranks.store(ranks.load(made, t), local, t)
                    filled.set(k)
                    worst.set(ranks.load(local, k - 1))
    return _merge_sort(ranks, local, room, filled.get())


def _merge_sort(ranks: _Ranks, local: Value, most: int, count: Value) -> Value:
    """Emit a merge sort of `count` numbers, at most `most`, from runs of one on.

    Returns the list that holds the result: the numbers' own, or that behind it
    """
    fn, width = ranks.fn, 1
    source, target = local, fn.at(local, most, ranks.type)
    while width < most:
        for start in fn.range(0, count, 2 * width):
            _merge(ranks, source, target, (start, width), count)
        source, target, width = target, source, 2 * width
    return source


def _merge(
    ranks: _Ranks, source: Value, target: Value, run: tuple[Index, int], count: Value
) -> None:
    """Emit the merge of two runs of `width` that begin at `start`, cut off at the end."""
    fn, (start, width) = ranks.fn, run
    begin = fn.as_value("i64", start)
    middle, end = fn.minimum(begin + width, count), fn.minimum(begin + 2 * width, count)
    left, right = Var(fn, "i64", start), Var(fn, "i64", middle)
    for t in fn.range(start, end):
        i, j = left.get(), right.get()
        a = ranks.load(source, fn.minimum(i, count - 1))
        b = ranks.load(source, fn.minimum(j, count - 1))
        first = bits(fn, "or", fn.compare("ult", a, b), fn.compare("sge", j, end))
        first = bits(fn, "and", first, fn.compare("slt", i, middle))
        ranks.store(fn.select(first, a, b), target, t)
        step = fn.convert("zext", first, "i64")
        left.set(i + step)
        right.set(j + (1 - step))


def _reason(graph: Graph, node: Node) -> str | None:
    x = graph.type(node.used[0])
    if x.dtype not in SCALARS:
        return f"{node.op} has no native kernel for {x.dtype}"
    if not x.elements or not all(graph.type(value).elements for value in node.outputs):
        return f"{node.op} has no native kernel for empty tensors"
    if not x.dims:
        return f"{node.op} has no native kernel for a scalar"
    if node.op == "top_k" and x.dims[node.attrs["axis"]] >= 1 << 31:
        return "top_k has no native kernel for axes of 2^31 elements"
    return None


def _lower_arg(context: Context, node: Node) -> list[Step]:
    type = context.type(node.used[0])
    order = Order(type.dtype, node.op == "arg_max", bool(node.attrs["select_last_index"]))
    rows = rows_along(type.dims, node.attrs["axis"])
    code, chunks, seconds = context.kernel(arg_kernel, order, rows)
    reads = (context.operand(node.used[0]),)
    return [Step(code, reads, node.outputs, chunks, seconds=seconds, nodes=(node.id,))]


def _lower_top_k(context: Context, node: Node) -> list[Step]:
    type, axis = context.type(node.used[0]), node.attrs["axis"]
    k = context.type(node.outputs[0]).dims[axis]
    order, rows = Order(type.dtype, bool(node.attrs["largest"])), rows_along(type.dims, axis)
    code, chunks, seconds, room = context.kernel(
        top_k_kernel, order, rows, k, len(node.outputs) > 1
    )
    reads = (context.operand(node.used[0]),)
    return [
        Step(code, reads, node.outputs, chunks, local_bytes=room, seconds=seconds, nodes=(node.id,))
    ]


_FORMS = (*SCALARS, *STORED_8)
TABLE.add(("arg_max", "arg_min"), Rule(_reason, _lower_arg), _FORMS)
TABLE.add("top_k", Rule(_reason, _lower_top_k), _FORMS)
