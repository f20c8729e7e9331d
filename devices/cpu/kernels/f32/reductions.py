"""Kernels that look at a whole row for each result: reductions, softmax, layer normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.rows import (
    EmittedRow,
    RowBody,
    Rows,
    emit_rows,
    row_items,
    rows_s,
)
from trireme.devices.cpu.kernels.lowering import (
    ELEMENTWISE,
    TABLE,
    Context,
    Reason,
    Rule,
    Step,
    dims_of,
    finish,
    float_reason,
    varies,
)
from trireme.devices.cpu.kernels.spans import SpanCut, SpanWork, Wiring, begin_span, span_step
from trireme.ir.graph import Graph, Node
from trireme.support.errors import InternalError
from trireme.support.records import dataclass

REDUCE_COST, SOFTMAX_COST, NORM_COST = 2, 20, 6
"""Half cycles that a vector of elements takes, as measured."""


def _add(a: Value, b: Value) -> Value:
    return a + b


@dataclass(frozen=True)
class Reduction:
    """A reduction: its start, the term of an element, the join of two, and the stored result."""

    start: float
    join: Callable[[Function, Value, Value], Value]
    term: Callable[[Function, Value], Value] = lambda fn, x: x
    end: Callable[[Function, Value, Index], Value] = lambda fn, x, count: x


def float_of(fn: Function, like: Value, count: Index) -> Value | float:
    """Return a number as a float, in every lane where it is read when the kernel runs."""
    if isinstance(count, int):
        return float(count)
    return fn.splat(fn.convert("sitofp", count, "float"), fn.isa.lanes)


def _plus(fn: Function, a: Value, b: Value) -> Value:
    return a + b


REDUCTIONS: dict[str, Reduction] = {
    "reduce_sum": Reduction(0.0, _plus),
    "reduce_mean": Reduction(0.0, _plus, end=lambda fn, x, count: x / float_of(fn, x, count)),
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


@dataclass(frozen=True)
class RowKernel:
    """A kernel that looks at whole rows: its op and what the op's attributes say.

    operands: of the kernel: what it reads, then the result
    single: whether the scale of a norm, and its bias, are one number for all elements
    """

    op: str
    operands: int
    cost: int
    beta: float = 1.0
    epsilon: float = 0.0
    single: tuple[bool, ...] = ()

    def body(self, fn: Function, rows: Rows, operands: Sequence[Value]) -> RowBody:
        """Return what emits a row."""
        if self.op in REDUCTIONS:
            return _reduce_body(fn, self.op, rows, operands)
        if self.op in ("softmax", "log_softmax"):
            return _softmax_body(fn, self, operands)
        return _norm_body(fn, self, rows, operands)


def row_kernel(isa: Isa, rows: Rows, cut: SpanCut, kernel: RowKernel) -> Code:
    """Return the kernel of some rows."""
    fn, operands, _, _, span = begin_span(f"{kernel.op}_f32", isa, kernel.operands, cut)
    rows = fn.known(rows)
    emit_rows(fn, rows, span, kernel.body(fn, rows, operands))
    return finish(fn)


def row_work(isa: Isa, kernel: RowKernel, rows: Rows) -> SpanWork:
    """Return the rows, or vectors of neighbouring ones, and the seconds of all."""
    items, each = row_items(rows, isa.lanes)
    return SpanWork(items, rows_s(isa, items, each, kernel.cost))


def _reduce_body(fn: Function, op: str, rows: Rows, operands: Sequence[Value]) -> RowBody:
    (x, y), kind = operands, REDUCTIONS[op]

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

    return body


def _softmax_body(fn: Function, kernel: RowKernel, operands: Sequence[Value]) -> RowBody:
    (x, y), beta = operands, kernel.beta

    def body(row: EmittedRow) -> None:
        largest = row.total(x, -math.inf, lambda v: v * beta, lambda a, b: mathfn.maximum(fn, a, b))
        if kernel.op == "log_softmax":
            total = row.total(x, 0.0, lambda v: mathfn.exp(fn, v - largest), _add)
            shift = mathfn.log(fn, total)
            for step, count, _ in row.walk():
                row.store(row.load(x, step, count) - largest - shift, y, step, count)
            return

        def power(value: Value, step: Index, count: Index) -> Value:
            value = mathfn.exp_short(fn, value * beta - largest, most=0.0)
            row.store(value, y, step, count)
            return value

        scale = 1.0 / row.gather(x, 0.0, power, _add)
        for step, count, _ in row.walk():
            row.store(row.load(y, step, count) * scale, y, step, count)

    return body


def _norm_body(fn: Function, kernel: RowKernel, rows: Rows, operands: Sequence[Value]) -> RowBody:
    """Return what emits a row of a norm; an RMS norm leaves the mean alone."""
    is_centred = kernel.op == "layer_normalization"
    x, *affine, y = operands

    def affine_at(k: int, row: EmittedRow, step: Index, count: Index) -> Value:
        """Load a vector of the scale (k is 0) or the bias."""
        if kernel.single[k]:
            return fn.splat(fn.load("float", affine[k], 4), fn.isa.lanes)
        return fn.load_some(row.type, fn.at(affine[k], step * fn.isa.lanes), count)

    def body(row: EmittedRow) -> None:
        mean = fn.as_value(row.type, 0.0)
        length = float_of(fn, mean, rows.count)
        if is_centred:
            mean = row.total(x, 0.0, lambda v: v, _add) / length
        spread = row.total(x, 0.0, lambda v: (v - mean) * (v - mean), _add)
        inverse = 1.0 / fn.unary("sqrt", spread / length + kernel.epsilon)
        for step, count, _ in row.walk():
            value = (row.load(x, step, count) - mean) * inverse * affine_at(0, row, step, count)
            if len(affine) > 1:
                value = value + affine_at(1, row, step, count)
            row.store(value, y, step, count)

    return body


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


def _reduced_span(graph: Graph, node: Node) -> tuple[int, int] | None:
    """Return where the axes that a reduction reduces begin and end; None if others lie between."""
    shape, axes = graph.type(node.used[0]).dims, _axes(graph, node) or ()
    kept = [axis for axis, size in enumerate(shape) if size != 1 and axis not in axes]
    reduced = [axis for axis, size in enumerate(shape) if size != 1 and axis in axes]
    if not reduced:
        return len(shape), len(shape)
    low, high = reduced[0], reduced[-1]
    return None if any(low < axis < high for axis in kept) else (low, high + 1)


def _reduced_rows(graph: Graph, node: Node, span: tuple[int, int] | None = None) -> Rows:
    """Return a reduction's tensor as rows: along the axes of a span, or those it reduces here."""
    shape, span = graph.type(node.used[0]).dims, span or _reduced_span(graph, node)
    if span is None:
        raise InternalError("the reason was not asked")
    low, high = span
    return Rows(math.prod(shape[:low]), math.prod(shape[low:high]), math.prod(shape[high:]))


def _reduce_reason(graph: Graph, node: Node) -> str | None:
    """Say why a reduction has no native kernel, None when it has."""
    type = graph.type(node.used[0])
    if not type.elements:
        return f"{node.op} has no native kernel for empty tensors"
    axes = _axes(graph, node)
    if axes is None:
        return f"{node.op} has native kernels for constant axes only"
    if _reduced_span(graph, node) is None:
        return f"{node.op} has native kernels for neighbouring axes only"
    return None


def _softmax_rows(graph: Graph, node: Node) -> Rows:
    """Return a softmax's tensor as rows."""
    shape = graph.type(node.used[0]).dims
    axis = node.attrs["axis"] % len(shape)
    return Rows(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def _norm_rows(graph: Graph, node: Node) -> Rows:
    """Return a norm's tensor as rows; a scale or a bias tells the size of an open axis."""
    shape = graph.type(node.used[0]).dims
    axis = node.attrs["axis"] % len(shape)
    sizes = list(shape[axis:])
    for value in node.used[1:]:
        for k, told in enumerate(reversed(dims_of(graph, value)[-len(sizes) :]), 1):
            if varies(sizes[-k]) and not varies(told) and told != 1:
                sizes[-k] = told
    return Rows(math.prod(shape[:axis]), math.prod(sizes), 1)


def _kernel_of(graph: Graph, node: Node) -> tuple[RowKernel, tuple[int, ...], str]:
    """Return a node's kernel, the values it reads and the kernel's family."""
    if node.op in REDUCTIONS:
        return RowKernel(node.op, 2, REDUCE_COST), node.used[:1], "reduce"
    if node.op in ("softmax", "log_softmax"):
        family = ELEMENTWISE if node.op == "log_softmax" else "softmax_f32"
        beta = float(node.attrs.get("beta", 1.0))
        return RowKernel(node.op, 2, SOFTMAX_COST, beta=beta), node.used, family
    epsilon = node.attrs["epsilon"]
    single = tuple(graph.type(i).elements == 1 for i in node.used[1:])
    kernel = RowKernel(node.op, 1 + len(node.used), NORM_COST, epsilon=epsilon, single=single)
    return kernel, node.used, "layer_normalization_f32"


RowsOf = Callable[[Graph, Node], Rows]


def _rule(reason: Reason, rows_of: RowsOf) -> Rule:
    def open_reason(graph: Graph, node: Node) -> str | None:
        if varies(rows_of(graph, node).inner):
            return f"{node.op} has no kernel for every shape where the axes behind it vary"
        return None

    def lower(context: Context, node: Node) -> list[Step]:
        kernel, reads, family = _kernel_of(context.graph, node)
        # An axis of 1 is reduced like a longer one.
        span = _reduced_span(context.graph, node) if node.op in REDUCTIONS else None

        def plan_of(graph: Graph) -> Rows:
            return rows_of(graph, node) if span is None else _reduced_rows(graph, node, span)

        operands = [context.operand(i) for i in reads]
        wiring = Wiring(operands, node.outputs[:1], (node.id,), family)
        work = partial(row_work, context.isa, kernel)
        return [span_step(context, wiring, plan_of, work, row_kernel, kernel)]

    return Rule(reason, lower, open_reason)


def _layer_norm_reason(graph: Graph, node: Node) -> str | None:
    """Say why a layer normalisation has no native kernel, None when it has."""
    if len(node.outputs) > 1:
        return f"{node.op} has no native kernel for its mean and deviation outputs"
    count = _norm_rows(graph, node).count
    if any(graph.type(i).elements not in (1, count) for i in node.used[1:]):
        return f"{node.op} has native kernels for scale and bias of full size or of one number only"
    return float_reason(graph, node)


def _softmax_reason(graph: Graph, node: Node) -> str | None:
    """Say why a softmax has no native kernel, None when it has."""
    if not graph.type(node.used[0]).shape:
        return f"{node.op} has no native kernel for a scalar"
    return float_reason(graph, node)


TABLE.add(REDUCTIONS, _rule(_reduce_reason, _reduced_rows), ["float32"])
TABLE.add(("softmax", "log_softmax"), _rule(_softmax_reason, _softmax_rows), ["float32"])
TABLE.add(
    ("layer_normalization", "rms_normalization"), _rule(_layer_norm_reason, _norm_rows), ["float32"]
)
