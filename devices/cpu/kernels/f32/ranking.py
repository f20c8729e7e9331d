"""arg_max and arg_min: places of elements along an axis, by their order.

A tensor is seen as [outer, count, inner] with rows along the middle. NaN is above every number, as
in the references. The best of each lane is kept, and the lanes are joined at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from trireme.backend.kernel_table import STORED_8, Form
from trireme.devices.cpu.codegen.index import minus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.scalars import SCALARS, bits, load
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.rows import Rows
from trireme.devices.cpu.kernels.lowering import TABLE, Context, Rule, Step, finish, varies
from trireme.devices.cpu.kernels.spans import SpanCut, SpanWork, Wiring, begin_span, span_step
from trireme.ir.graph import Graph, Node
from trireme.support.records import dataclass


def rows_along(shape: tuple[int, ...], axis: int) -> Rows:
    """Return a tensor as [outer, count, inner] with rows along an axis."""
    axis %= len(shape)
    return Rows(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


@dataclass(frozen=True)
class Order:
    """The wanted element of a dtype: the largest or the least; the last of ties."""

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


def arg_kernel(isa: Isa, rows: Rows, cut: SpanCut, order: Order) -> Code:
    """Return the kernel of an arg_max or arg_min. Operands: x, y (i64)."""
    name = f"arg_{'max' if order.largest else 'min'}_{SCALARS[order.dtype].short}"
    fn, operands, _, _, span = begin_span(name, isa, 2, cut)
    _emit_arg(fn, order, fn.known(rows), operands, span)
    return finish(fn)


def _arg_lanes(isa: Isa, order: Order) -> int:
    return isa.vector_bits // (8 * min(SCALARS[order.dtype].nbytes, 4))


def _arg_work(isa: Isa, order: Order, rows: Rows) -> SpanWork:
    """Return the blocks of neighbouring rows, and the seconds of all."""
    lanes = _arg_lanes(isa, order)
    items = rows.outer * -(-rows.inner // lanes)
    each = rows.count if rows.inner > 1 else rows.count / lanes + lanes
    return SpanWork(items, items * each * 3e-9)


def _emit_arg(
    fn: Function, order: Order, rows: Rows, operands: Sequence[Value], span: tuple[Index, Index]
) -> None:
    """Emit some of the blocks of rows; how many rows there are, and how long, may be read."""
    (x, y), memory, lanes = operands, SCALARS[order.dtype].memory, _arg_lanes(fn.isa, order)
    blocks = -(-rows.inner // lanes)
    for item in fn.range(*span):
        outer, block = fn.integer("udiv", item, blocks), fn.integer("urem", item, blocks)
        if rows.inner == 1:
            row = fn.at(x, times(fn, outer, rows.count), memory)
            fn.store(_along(fn, order, row, rows.count, lanes), fn.at(y, outer, "i64"))
            continue
        rest = rows.inner % lanes
        column = block * lanes
        at = fn.at(x, times(fn, outer, times(fn, rows.count, rows.inner)) + column, memory)
        to = fn.at(y, outer * rows.inner + column, "i64")
        if not rest or isinstance(block, int):
            _across(fn, order, rows, (at, to), lanes, rest or lanes)
            continue
        for is_last in fn.either(fn.compare("eq", block, blocks - 1)):
            _across(fn, order, rows, (at, to), lanes, rest if is_last else lanes)


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


def _along(fn: Function, order: Order, row: Value, count: Index, lanes: int) -> Value:
    """Emit the best of a row whose elements are neighbours: lane by lane, then of the lanes."""
    memory = SCALARS[order.dtype].memory
    place = Var(fn, "i64", 0)
    whole = minus(fn, count, fn.integer("urem", count, lanes))

    def rest(best: _Best, start: Index) -> None:
        for i in fn.range(start, count):
            best.see(load(fn, order.dtype, fn.at(row, i, memory), 1), fn.as_value("i64", i))
        place.set(best.place.get())

    def short() -> None:
        rest(_best(fn, order, load(fn, order.dtype, row, 1), fn.as_value("i64", 0)), 1)

    if isinstance(whole, Value):
        for is_long in fn.either(fn.compare("ne", whole, 0)):
            if is_long:
                rest(_of_lanes(fn, order, row, whole, lanes), whole)
            else:
                short()
    elif whole:
        rest(_of_lanes(fn, order, row, whole, lanes), whole)
    else:
        short()
    return place.get()


def _of_lanes(fn: Function, order: Order, row: Value, whole: Index, lanes: int) -> _Best:
    """Emit the best of whole vectors, at least one."""
    dtype, memory, index = order.dtype, SCALARS[order.dtype].memory, vector(lanes, "i64")
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
    return best


def order_reason(graph: Graph, node: Node) -> str | None:
    """Return why the elements of a node's input cannot be ordered natively, or None."""
    x = graph.type(node.used[0])
    if x.dtype not in SCALARS:
        return f"{node.op} has no native kernel for {x.dtype}"
    if not x.elements or not all(graph.type(value).elements for value in node.outputs):
        return f"{node.op} has no native kernel for empty tensors"
    if not x.dims:
        return f"{node.op} has no native kernel for a scalar"
    return None


def _arg_rows(graph: Graph, node: Node) -> Rows:
    return rows_along(graph.type(node.used[0]).dims, node.attrs["axis"])


def _arg_open_reason(graph: Graph, node: Node) -> str | None:
    if varies(_arg_rows(graph, node).inner):
        return f"{node.op} has no kernel for every shape where the axes behind its own vary"
    return None


def _arg_order(graph: Graph, node: Node) -> Order:
    """Return which elements an arg_max or arg_min wants."""
    last = bool(node.attrs["select_last_index"])
    return Order(graph.type(node.used[0]).dtype, node.op == "arg_max", last)


def _lower_arg(context: Context, node: Node) -> list[Step]:
    order = _arg_order(context.graph, node)
    wiring = Wiring((context.operand(node.used[0]),), node.outputs, (node.id,), "arg")
    plan_of, work = partial(_arg_rows, node=node), partial(_arg_work, context.isa, order)
    return [span_step(context, wiring, plan_of, work, arg_kernel, order)]


FORMS: tuple[str | Form, ...] = (*SCALARS, *STORED_8)
TABLE.add(("arg_max", "arg_min"), Rule(order_reason, _lower_arg, _arg_open_reason), FORMS)
