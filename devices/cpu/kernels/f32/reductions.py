"""Kernels that look at a whole row for each result: reductions, softmax, layer normalisation.

A tensor is seen as [outer, count, inner] with the rows along the middle axis. With inner == 1 the
lanes of a vector are neighbours in the row and are joined at the end; otherwise they are neighbour
rows and nothing has to be joined. Sums run in four accumulators, in an order that only the shape
decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.lowering import (
    ELEMENTWISE,
    TABLE,
    Context,
    Rule,
    Step,
    begin,
    deal,
    finish,
    float_reason,
)
from trireme.ir.graph import Graph, Node
from trireme.support.errors import InternalError

Term = Callable[[Value], Value]
Join = Callable[[Value, Value], Value]
REDUCE_COST, SOFTMAX_COST, NORM_COST = 2, 20, 6
"""Half cycles that a vector of elements takes, as measured."""


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

    def load(self, base: Value, step: Index, count: int) -> Value:
        """Load a vector of the row."""
        return self.fn.load_some(self.type, self._place(base, step), count)

    def store(self, value: Value, base: Value, step: Index, count: int) -> None:
        """Store a vector of the row."""
        self.fn.store_some(value, self._place(base, step), count)

    def walk(self, unroll: int = 1) -> Iterator[tuple[Index, int, int]]:
        """Yield (step, lanes, accumulator) around what is emitted for each vector of the row."""
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

    def total(self, base: Value, start: float, term: Term, join: Join) -> Value:
        """Return term(x) joined over the row, in every lane."""
        return self.gather(base, start, lambda value, step, count: term(value), join)

    def gather(
        self, base: Value, start: float, term: Callable[[Value, Index, int], Value], join: Join
    ) -> Value:
        """Return term(x, step, lanes) joined over the row, in every lane."""
        fn, lanes = self.fn, self.fn.isa.lanes
        totals = [Var(fn, self.type, start) for _ in range(4)]
        for step, count, which in self.walk(4):
            value = term(self.load(base, step, count), step, count)
            if self.rows.inner == 1 and count < lanes:
                value = keep(fn, value, count, start)
            totals[which].set(join(totals[which].get(), value))
        a, b, c, d = (total.get() for total in totals)
        value = join(join(a, b), join(c, d))
        return value if self.rows.inner > 1 else across(fn, value, join)


def keep(fn: Function, value: Value, count: int, other: float) -> Value:
    """Return the first `count` lanes of a vector, `other` in the rest."""
    lanes = fn.isa.lanes
    order = [k if k < count else lanes for k in range(lanes)]
    return fn.shuffle(value, fn.as_value(value.type, other), order)


def across(fn: Function, value: Value, join: Join) -> Value:
    """Return all lanes joined, in every lane."""
    lanes = half = fn.isa.lanes
    while half > 1:
        half //= 2
        value = join(value, fn.shuffle(value, value, [k ^ half for k in range(lanes)]))
    return value


def each_row(
    fn: Function, chunk: Value, rows: Rows, cost: int
) -> tuple[int, Callable[[Callable[[EmittedRow], None]], None]]:
    """Return the number of chunks, and a function that emits a chunk's rows by calling back.

    cost: half cycles that a vector of elements takes
    """
    lanes = fn.isa.lanes
    across_lanes = rows.inner > 1
    vectors = -(-rows.inner // lanes) if across_lanes else 1
    items = rows.outer * vectors
    each = rows.count * (min(lanes, rows.inner) if across_lanes else 1)
    size, chunks = deal(items, items * each * cost / (lanes * 2e9))

    def emit(body: Callable[[EmittedRow], None]) -> None:
        first: Index = chunk * size if chunks > 1 else 0
        for item in fn.range(first, fn.minimum(first + size, items)):
            if not across_lanes:
                body(EmittedRow(fn, rows, item * rows.count, lanes))
                continue
            outer, v = (fn.integer(op, item, vectors) for op in ("udiv", "urem"))
            offset = outer * (rows.count * rows.inner) + v * lanes
            rest = rows.inner % lanes
            if not rest or isinstance(v, int):
                body(EmittedRow(fn, rows, offset, rest if isinstance(v, int) and rest else lanes))
                continue
            for is_last in fn.either(fn.compare("eq", v, vectors - 1)):
                body(EmittedRow(fn, rows, offset, rest if is_last else lanes))

    return chunks, emit


def _add(a: Value, b: Value) -> Value:
    return a + b


@dataclass(frozen=True)
class Reduction:
    """A reduction: where it starts, what each element gives, how two join, what is stored."""

    start: float
    join: Callable[[Function, Value, Value], Value]
    term: Callable[[Function, Value], Value] = lambda fn, x: x
    end: Callable[[Function, Value, int], Value] = lambda fn, x, count: x


def _plus(fn: Function, a: Value, b: Value) -> Value:
    return a + b


REDUCTIONS: dict[str, Reduction] = {
    "reduce_sum": Reduction(0.0, _plus),
    "reduce_mean": Reduction(0.0, _plus, end=lambda fn, x, count: x / float(count)),
    "reduce_max": Reduction(-math.inf, mathfn.maximum),
    "reduce_min": Reduction(math.inf, mathfn.minimum),
    "reduce_prod": Reduction(1.0, lambda fn, a, b: a * b),
    "reduce_l1": Reduction(0.0, _plus, lambda fn, x: fn.unary("fabs", x)),
    "reduce_sum_square": Reduction(0.0, _plus, lambda fn, x: x * x),
    "reduce_l2": Reduction(
        0.0, _plus, lambda fn, x: x * x, lambda fn, x, count: fn.unary("sqrt", x)
    ),
    "reduce_log_sum": Reduction(0.0, _plus, end=lambda fn, x, count: mathfn.log(fn, x)),
}


def reduce_kernel(isa: Isa, op: str, rows: Rows) -> tuple[Code, int]:
    """Return the kernel of a reduction, and its chunks. Operands: the tensor, the results."""
    fn, (x, y), chunk, _ = begin(f"{op}_f32", isa, 2)
    kind = REDUCTIONS[op]
    chunks, emit = each_row(fn, chunk, rows, REDUCE_COST)

    def body(row: EmittedRow) -> None:
        total = row.total(
            x, kind.start, lambda v: kind.term(fn, v), lambda a, b: kind.join(fn, a, b)
        )
        result = kind.end(fn, total, rows.count)
        if rows.inner == 1:
            at = fn.integer("udiv", row.offset, rows.count)
            fn.store_some(result, fn.at(y, at), 1)
        else:
            outer = fn.integer("udiv", row.offset, rows.count * rows.inner)
            lane = fn.integer("urem", row.offset, rows.inner)
            fn.store_some(result, fn.at(y, outer * rows.inner + lane), row.width)

    emit(body)
    return finish(fn), chunks


def _softmax_kernel(isa: Isa, rows: Rows, beta: float, log: bool) -> tuple[Code, int]:
    fn, (x, y), chunk, _ = begin("log_softmax_f32" if log else "softmax_f32", isa, 2)
    chunks, emit = each_row(fn, chunk, rows, SOFTMAX_COST)

    def body(row: EmittedRow) -> None:
        largest = row.total(x, -math.inf, lambda v: v * beta, lambda a, b: mathfn.maximum(fn, a, b))
        if log:
            total = row.total(x, 0.0, lambda v: mathfn.exp(fn, v - largest), _add)
            shift = mathfn.log(fn, total)
            for step, count, _ in row.walk():
                row.store(row.load(x, step, count) - largest - shift, y, step, count)
            return

        def power(value: Value, step: Index, count: int) -> Value:
            value = mathfn.exp_short(fn, value * beta - largest, most=0.0)
            row.store(value, y, step, count)
            return value

        scale = 1.0 / row.gather(x, 0.0, power, _add)
        for step, count, _ in row.walk():
            row.store(row.load(y, step, count) * scale, y, step, count)

    emit(body)
    return finish(fn), chunks


def _layer_norm_kernel(
    isa: Isa, op: str, rows: Rows, epsilon: float, bias: bool
) -> tuple[Code, int]:
    """Return the kernel of a norm over rows, and its chunks; an RMS norm leaves the mean alone."""
    fn, operands, chunk, _ = begin(f"{op}_f32", isa, 3 + bias)
    is_centred = op == "layer_normalization"
    x, scale, *rest = operands
    y = rest[-1]
    chunks, emit = each_row(fn, chunk, rows, NORM_COST)

    def body(row: EmittedRow) -> None:
        mean = fn.as_value(row.type, 0.0)
        if is_centred:
            mean = row.total(x, 0.0, lambda v: v, _add) / float(rows.count)
        spread = row.total(x, 0.0, lambda v: (v - mean) * (v - mean), _add)
        inverse = 1.0 / fn.unary("sqrt", spread / float(rows.count) + epsilon)
        for step, count, _ in row.walk():
            at = step * isa.lanes
            factor = fn.load_some(row.type, fn.at(scale, at), count)
            value = (row.load(x, step, count) - mean) * inverse * factor
            if bias:
                value = value + fn.load_some(row.type, fn.at(rest[0], at), count)
            row.store(value, y, step, count)

    emit(body)
    return finish(fn), chunks


def _axes(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """The axes a reduction reduces; None when they are not known."""
    rank = len(graph.type(node.used[0]).shape)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        data = graph.values[node.inputs[1]].data
        if data is None:
            return None
        axes = sorted({int(axis) % rank for axis in data.reshape(-1)}) if rank else []
        if axes:
            return tuple(axes)
    return () if node.attrs["noop_with_empty_axes"] else tuple(range(rank))


def _merged(shape: Sequence[int], axes: Sequence[int]) -> Rows | None:
    """The view [outer, count, inner] of a reduction; None when its axes are not neighbours."""
    kept = [axis for axis, size in enumerate(shape) if size != 1 and axis not in axes]
    reduced = [axis for axis, size in enumerate(shape) if size != 1 and axis in axes]
    if not reduced:
        return Rows(math.prod(shape), 1, 1)
    low, high = reduced[0], reduced[-1]
    if any(low < axis < high for axis in kept):
        return None
    return Rows(
        math.prod(shape[:low]), math.prod(shape[low : high + 1]), math.prod(shape[high + 1 :])
    )


def _reduce_reason(graph: Graph, node: Node) -> str | None:
    type = graph.type(node.used[0])
    if not type.elements:
        return f"{node.op} has no native kernel for empty tensors"
    axes = _axes(graph, node)
    if axes is None:
        return f"{node.op} has native kernels for constant axes only"
    if _merged(type.dims, axes) is None:
        return f"{node.op} has native kernels for neighbouring axes only"
    return None


def _step(
    context: Context,
    node: Node,
    made: tuple[Code, int],
    reads: Sequence[int],
    cost: float,
    family: str,
) -> list[Step]:
    code, chunks = made
    seconds = context.type(node.used[0]).elements * cost / (context.isa.lanes * 2e9)
    operands = tuple(context.operand(i) for i in reads)
    return [
        Step(
            code,
            operands,
            (node.outputs[0],),
            chunks,
            seconds=seconds,
            nodes=(node.id,),
            family=family,
        )
    ]


def _lower_reduce(context: Context, node: Node) -> list[Step]:
    rows = _merged(context.type(node.used[0]).dims, _axes(context.graph, node) or ())
    if rows is None:
        raise InternalError("the reason was not asked")
    made = context.kernel(reduce_kernel, node.op, rows)
    return _step(context, node, made, node.used[:1], REDUCE_COST, "reduce")


def _lower_softmax(context: Context, node: Node) -> list[Step]:
    shape = context.type(node.used[0]).dims
    axis = node.attrs["axis"] % len(shape)
    rows = Rows(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    made = context.kernel(
        _softmax_kernel, rows, node.attrs.get("beta", 1.0), node.op == "log_softmax"
    )
    family = ELEMENTWISE if node.op == "log_softmax" else "softmax_f32"
    return _step(context, node, made, node.used, SOFTMAX_COST, family)


def _layer_norm_reason(graph: Graph, node: Node) -> str | None:
    if len(node.outputs) > 1:
        return f"{node.op} has no native kernel for its mean and deviation outputs"
    shape = graph.type(node.used[0]).dims
    count = math.prod(shape[node.attrs["axis"] % len(shape) :])
    if any(graph.type(i).elements != count for i in node.used[1:]):
        return f"{node.op} has native kernels for full-size scale and bias only"
    return float_reason(graph, node)


def _lower_layer_norm(context: Context, node: Node) -> list[Step]:
    shape = context.type(node.used[0]).dims
    axis = node.attrs["axis"] % len(shape)
    rows = Rows(math.prod(shape[:axis]), math.prod(shape[axis:]), 1)
    made = context.kernel(
        _layer_norm_kernel, node.op, rows, node.attrs["epsilon"], len(node.used) > 2
    )
    return _step(context, node, made, node.used, NORM_COST, "layer_normalization_f32")


def _softmax_reason(graph: Graph, node: Node) -> str | None:
    if not graph.type(node.used[0]).shape:
        return f"{node.op} has no native kernel for a scalar"
    return float_reason(graph, node)


TABLE.add(REDUCTIONS, Rule(_reduce_reason, _lower_reduce), ["float32"])
TABLE.add(("softmax", "log_softmax"), Rule(_softmax_reason, _lower_softmax), ["float32"])
TABLE.add(
    ("layer_normalization", "rms_normalization"),
    Rule(_layer_norm_reason, _lower_layer_norm),
    ["float32"],
)
