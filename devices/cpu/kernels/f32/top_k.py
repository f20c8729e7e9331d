"""top_k: the first k elements of a row by their order, and where they lie.

An element becomes an unsigned key whose order is the order asked for. The keys and places of the
first elements fill a list. Later elements are added if their key is below the k-th so far, a vector
at a time. A full list is cut to its k least. The bits of the k-th key are found one by one, each by
counting the keys below. The list stays in order of place, so of ties the first are kept. The rest
is merge-sorted by key and place.
"""

from __future__ import annotations

import math

from trireme.backend.arena import align_up
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import lanes_of, mangled, vector
from trireme.devices.cpu.codegen.scalars import SCALARS, bits, load
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.ranking import FORMS, Order, order_reason, rows_along
from trireme.devices.cpu.kernels.f32.rows import Rows
from trireme.devices.cpu.kernels.lowering import TABLE, Context, Rule, Step, begin, deal, finish
from trireme.ir.graph import Graph, Node
from trireme.support.records import dataclass


def key_of(fn: Function, order: Order, value: Value, width: int) -> Value:
    """Return elements as unsigned numbers of `width` bits in the order asked for."""
    kind, type = SCALARS[order.dtype].kind, vector(lanes_of(value.type), f"i{width}")
    if kind in ("single", "double"):
        raw = fn.convert("bitcast", value + 0.0, type)  # -0 is 0
        turned = bits(fn, "or", bits(fn, "ashr", raw, width - 1), -(1 << width - 1))
        key = fn.select(fn.compare("uno", value, value), -1, bits(fn, "xor", raw, turned))
    elif value.type == type:
        key = value
    else:
        key = fn.convert("sext" if kind == "signed" else "zext", value, type)
    if kind == "signed":
        key = bits(fn, "xor", key, -(1 << width - 1))
    return bits(fn, "xor", key, -1) if order.largest else key


@dataclass(frozen=True)
class TopKShape:
    """The list of a kernel: k are asked for, `room` find room, keys have `width` bits.

    lanes: keys looked at at once; as many find room behind the list, where they are undefined
    """

    k: int
    room: int
    width: int
    lanes: int

    @classmethod
    def of(cls, isa: Isa, order: Order, rows: Rows, k: int) -> TopKShape:
        """Return the list for some rows; it holds all of a short one."""
        width = 32 if SCALARS[order.dtype].nbytes <= 4 else 64
        lanes = isa.vector_bits // width if rows.inner == 1 else 1
        return cls(k, min(rows.count, align_up(4 * max(k, lanes), lanes)), width, lanes)

    @property
    def keys_bytes(self) -> int:
        """Bytes of the list's keys."""
        return (self.room + self.lanes) * self.width // 8

    @property
    def nbytes(self) -> int:
        """Bytes of keys, places (i64), and two lists of k numbers to sort, of a key and a place."""
        return (
            align_up(self.keys_bytes, 16) + 8 * (self.room + self.lanes) + self.k * self.width // 2
        )


class Candidates:
    """The list of a row: keys and places that may be among the first k, in order of place."""

    def __init__(self, fn: Function, shape: TopKShape, local: Value) -> None:
        self.fn, self.shape, self.keys = fn, shape, local
        self.key = f"i{shape.width}"
        self.places = fn.at(local, align_up(shape.keys_bytes, 16), "i8")
        self.numbers = fn.at(self.places, shape.room + shape.lanes, "i64")
        self.filled, self.limit = Var(fn, "i64", 0), Var(fn, self.key, 0)

    def fill(self, keys: Value, at: Index) -> None:
        """Put keys of neighbours at their places in the list."""
        fn, lanes = self.fn, self.shape.lanes
        fn.store(keys, fn.at(self.keys, at, self.key), self.shape.width // 8)
        fn.store(self._from(at), fn.at(self.places, at, "i64"), 8)
        self.filled.set(fn.as_value("i64", at) + lanes)

    def _from(self, at: Index) -> Value:
        fn, lanes = self.fn, self.shape.lanes
        steps = Value(fn, vector(lanes, "i64"), f"<{', '.join(f'i64 {i}' for i in range(lanes))}>")
        first = fn.splat(fn.as_value("i64", at), lanes)
        return first + steps if lanes > 1 else first

    def offer(self, keys: Value, at: Index, count: int) -> None:
        """Add those of the first `count` keys that are below the limit, and cut a full list."""
        fn, lanes = self.fn, self.shape.lanes
        below = fn.compare("ult", keys, fn.splat(self.limit.get(), lanes))
        if lanes == 1:
            with fn.when(below):
                self._add(keys, fn.as_value("i64", at))
            return
        mask = fn.convert("zext", fn.convert("bitcast", below, f"i{lanes}"), "i64")
        left = Var(fn, "i64", bits(fn, "and", mask, (1 << count) - 1))
        with fn.when(fn.compare("ne", left.get(), 0)):
            for _ in fn.range(0, fn.unary("ctpop", left.get())):
                lane = fn.call("i64", "llvm.cttz.i64", left.get(), extra="i1 true")
                left.set(bits(fn, "and", left.get(), left.get() - 1))
                self._add(fn.emit(self.key, f"extractelement {keys}, {lane}"), lane + at)

    def _add(self, key: Value, place: Value) -> None:
        fn, here = self.fn, self.filled.get()
        fn.store(key, fn.at(self.keys, here, self.key), self.shape.width // 8)
        fn.store(place, fn.at(self.places, here, "i64"), 8)
        self.filled.set(here + 1)
        with fn.when(fn.compare("eq", here + 1, self.shape.room)):
            self.cut()

    def cut(self) -> None:
        """Keep the k least, of ties the first; the limit is the k-th key."""
        fn, k = self.fn, self.shape.k
        count = self.filled.get()
        self._end(count)
        limit, less = self._limit(count)
        out, ties = Var(fn, "i64", 0), Var(fn, "i64", k - less)
        for i in fn.range(0, count):
            key = fn.load(self.key, fn.at(self.keys, i, self.key), self.shape.width // 8)
            place = fn.load("i64", fn.at(self.places, i, "i64"), 8)
            tie = bits(fn, "and", fn.compare("eq", key, limit), fn.compare("sgt", ties.get(), 0))
            kept = bits(fn, "or", tie, fn.compare("ult", key, limit))
            fn.store(key, fn.at(self.keys, out.get(), self.key), self.shape.width // 8)
            fn.store(place, fn.at(self.places, out.get(), "i64"), 8)
            out.set(out.get() + fn.convert("zext", kept, "i64"))
            ties.set(ties.get() - fn.convert("zext", tie, "i64"))
        self.filled.set(k)
        self.limit.set(limit)

    def _end(self, count: Value) -> None:
        """Put keys behind the list that are below no other."""
        ones = self.fn.as_value(vector(self.shape.lanes, self.key), -1)
        self.fn.store(ones, self.fn.at(self.keys, count, self.key), self.shape.width // 8)

    def _limit(self, count: Value) -> tuple[Value, Value]:
        """Return the k-th least key and how many are below it."""
        fn, width = self.fn, self.shape.width
        limit, less = Var(fn, self.key, 0), Var(fn, "i64", 0)
        for i in fn.range(0, width):
            shift = fn.as_value("i64", width - 1) - i
            narrow = shift if width == 64 else fn.convert("trunc", shift, self.key)
            wanted = bits(fn, "or", limit.get(), bits(fn, "shl", fn.as_value(self.key, 1), narrow))
            below = self._below(wanted, count)
            fits = fn.compare("slt", below, self.shape.k)
            limit.set(fn.select(fits, wanted, limit.get()))
            less.set(fn.select(fits, below, less.get()))
        return limit.get(), less.get()

    def _below(self, wanted: Value, count: Value) -> Value:
        fn, lanes, type = self.fn, self.shape.lanes, vector(self.shape.lanes, self.key)
        found = Var(fn, type, 0)
        for i in fn.range(0, count, lanes):
            keys = fn.load(type, fn.at(self.keys, i, self.key), self.shape.width // 8)
            is_below = fn.compare("ult", keys, fn.splat(wanted, lanes))
            found.set(found.get() + fn.convert("zext", is_below, type))
        total = found.get()
        if lanes > 1:
            total = fn.call(self.key, f"llvm.vector.reduce.add.{mangled(type)}", total)
        return total if self.shape.width == 64 else fn.convert("zext", total, "i64")

    def sorted(self) -> Value:
        """Return the list of the k numbers in order: a key, and the place in the lower half."""
        fn, number = self.fn, f"i{2 * self.shape.width}"
        for t in fn.range(0, self.shape.k):
            key = fn.load(self.key, fn.at(self.keys, t, self.key), self.shape.width // 8)
            place = fn.load("i64", fn.at(self.places, t, "i64"), 8)
            low = place if number == "i64" else fn.convert("zext", place, number)
            high = bits(fn, "shl", fn.convert("zext", key, number), self.shape.width)
            fn.store(bits(fn, "or", high, low), fn.at(self.numbers, t, number), 8)
        return _merge_sort(fn, number, self.numbers, self.shape.k)


def _merge_sort(fn: Function, number: str, numbers: Value, count: int) -> Value:
    """Emit a merge sort from runs of one on; return the list that holds the result.

    That is the numbers' own, or the one behind it.
    """
    source, target, width = numbers, fn.at(numbers, count, number), 1
    while width < count:
        for start in fn.range(0, count, 2 * width):
            _merge(fn, number, (source, target), (start, width), count)
        source, target, width = target, source, 2 * width
    return source


def _merge(
    fn: Function, number: str, lists: tuple[Value, Value], run: tuple[Index, int], count: int
) -> None:
    """Emit the merge of two runs of `width` that begin at `start`, cut off at the end."""
    (source, target), (start, width) = lists, run
    begin = fn.as_value("i64", start)
    middle, end = fn.minimum(begin + width, count), fn.minimum(begin + 2 * width, count)
    left, right = Var(fn, "i64", start), Var(fn, "i64", middle)
    for t in fn.range(start, end):
        i, j = left.get(), right.get()
        a = fn.load(number, fn.at(source, fn.minimum(i, count - 1), number), 8)
        b = fn.load(number, fn.at(source, fn.minimum(j, count - 1), number), 8)
        first = bits(fn, "or", fn.compare("ult", a, b), fn.compare("sge", j, end))
        first = bits(fn, "and", first, fn.compare("slt", i, middle))
        fn.store(fn.select(first, a, b), fn.at(target, t, number), 8)
        step = fn.convert("zext", first, "i64")
        left.set(i + step)
        right.set(j + (1 - step))


def top_k_kernel(
    isa: Isa, order: Order, rows: Rows, k: int, with_places: bool
) -> tuple[Code, int, float, int]:
    """Return the kernel of a top_k, its chunks, seconds and bytes of local memory.

    Operands: x, y [outer, k, inner], and the places (i64), where they are asked for
    """
    scalar, shape = SCALARS[order.dtype], TopKShape.of(isa, order, rows, k)
    fn, (x, y, *places), chunk, local = begin(f"top_k_{scalar.short}", isa, 2 + with_places)
    seconds = rows.outer * rows.inner * _row_s(rows.count, shape)
    size, chunks = deal(rows.outer * rows.inner, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    for item in fn.range(first, fn.minimum(first + size, rows.outer * rows.inner)):
        outer, inner = fn.integer("udiv", item, rows.inner), fn.integer("urem", item, rows.inner)
        row = fn.at(x, outer * (rows.count * rows.inner) + inner, scalar.memory)
        found = _kept(fn, order, rows, shape, row, local).sorted()
        for t in fn.range(0, k):
            place = _place(fn, shape, found, t)
            to = outer * (k * rows.inner) + inner + t * rows.inner
            source = fn.at(row, place * rows.inner, scalar.memory)
            raw = fn.load(scalar.memory, source, min(scalar.nbytes, 4))
            fn.store(raw, fn.at(y, to, scalar.memory), min(scalar.nbytes, 4))
            if with_places:
                fn.store(place, fn.at(places[0], to, "i64"))
    return finish(fn), chunks, seconds, shape.nbytes


def _kept(
    fn: Function, order: Order, rows: Rows, shape: TopKShape, row: Value, local: Value
) -> Candidates:
    """Emit the pass over a row; return the list, cut to k."""
    kept, lanes = Candidates(fn, shape, local), shape.lanes

    def keys(at: Index, count: int = lanes) -> Value:
        source = fn.at(row, at * rows.inner, SCALARS[order.dtype].memory)
        return key_of(fn, order, load(fn, order.dtype, source, lanes, count), shape.width)

    whole = shape.room // lanes * lanes
    for j in fn.range(0, whole, lanes):
        kept.fill(keys(j), j)
    if whole < shape.room:
        kept.fill(keys(whole, shape.room - whole), whole)
    kept.filled.set(shape.room)
    if shape.room > shape.k:
        kept.cut()
    if shape.room < rows.count:
        whole = shape.room + (rows.count - shape.room) // lanes * lanes
        for j in fn.range(shape.room, whole, lanes):
            kept.offer(keys(j), j, lanes)
        if whole < rows.count:
            kept.offer(keys(whole, rows.count - whole), whole, rows.count - whole)
        with fn.when(fn.compare("sgt", kept.filled.get(), shape.k)):
            kept.cut()
    return kept


def _place(fn: Function, shape: TopKShape, numbers: Value, t: Index) -> Value:
    """Return the place in a number of a list."""
    number = f"i{2 * shape.width}"
    found = fn.load(number, fn.at(numbers, t, number), 8)
    if shape.width == 64:
        return fn.convert("trunc", found, "i64")
    return bits(fn, "and", found, (1 << 32) - 1)


def _row_s(count: int, shape: TopKShape) -> float:
    """Return about the seconds of a row: the pass, the cuts, the kept elements, and the sort."""
    k, room = shape.k, shape.room
    cuts = (room > k) + (math.log(count / room) * k / (room - k) if room < count else 0)
    cut = room * (1 + 0.3 * shape.width / shape.lanes)
    return (count / shape.lanes + cuts * cut + 3 * k * math.log2(max(k, 2))) * 1e-9


def _reason(graph: Graph, node: Node) -> str | None:
    x = graph.type(node.used[0])
    if x.dims and x.dims[node.attrs["axis"]] >= 1 << 31:
        return "top_k has no native kernel for axes of 2^31 elements"
    return order_reason(graph, node)


def _lower(context: Context, node: Node) -> list[Step]:
    type, axis = context.type(node.used[0]), node.attrs["axis"]
    k = context.type(node.outputs[0]).dims[axis]
    order, rows = Order(type.dtype, bool(node.attrs["largest"])), rows_along(type.dims, axis)
    code, chunks, seconds, room = context.kernel(
        top_k_kernel, order, rows, k, len(node.outputs) > 1
    )
    reads = (context.operand(node.used[0]),)
    return [
        Step(
            code,
            reads,
            node.outputs,
            chunks,
            local_bytes=room,
            seconds=seconds,
            nodes=(node.id,),
            family="top_k",
        )
    ]


TABLE.add("top_k", Rule(_reason, _lower), FORMS)
