"""Softmax on 8-bit integers along the last axis: powers from a table, ratios in float64.

The ratio is a division of integers, (e * gain + s // 2) // s, of a numerator below 2**50. The
kernel computes floor((e * gain + s / 2 + 1 / 4) * (1 / s)). The exact argument is at least
1 / (4 s) away from the integers on either side. The product with 1 / s has a relative error below
2**-52. So the floor is that of the division.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from trireme.backend.kernel_table import STORED_8
from trireme.devices.cpu.codegen.intfn import maximum
from trireme.devices.cpu.codegen.ir import Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.rows import (
    EmittedRow,
    Join,
    Rows,
    across,
    emit_rows,
    keep,
)
from trireme.devices.cpu.kernels.int8.arithmetic import (
    clamp_and_narrow,
    load_stored,
    store_stored,
    stored_reason,
    widen,
)
from trireme.devices.cpu.kernels.lowering import (
    ELEMENTWISE_Q8,
    TABLE,
    Context,
    Rule,
    Step,
    begin,
    deal,
    finish,
)
from trireme.ir.graph import Graph, Node
from trireme.ir.op import call_of
from trireme.ops.integer import SoftmaxParams, softmax_params
from trireme.support.errors import InternalError
from trireme.support.records import dataclass

_MOST_POWER = 1 << 23
_EXACT = 1 << 50
"""Numerators below it are divided exactly."""
_ELEMENT_S, _ROW_S = 0.9e-9, 2e-8
"""The reads of the table take most of the time, with vectors of any width."""
_CHAINS = 4
"""Sums that run beside each other."""


@dataclass(frozen=True)
class SoftmaxRow:
    """The length and type of a row, and the gain, zero point and ends of the outputs."""

    length: int
    dtype: str
    gain: int
    y_zero: int
    low: int
    high: int


def softmax_kernel(isa: Isa, rows: int, row: SoftmaxRow) -> tuple[Code, int]:
    """Return the kernel, and its chunks. Operands: the tensor, the table of powers, the result."""
    fn, (x, table, y), chunk, local = begin("softmax_q8", isa, 3)
    size, chunks = deal(rows, _seconds(rows, row))
    first: Index = chunk * size if chunks > 1 else 0
    span = first, fn.minimum(first + size, rows)
    body = functools.partial(_emit_row, row, (x, table, y, local))
    emit_rows(fn, Rows(rows, row.length, 1), span, body)
    return finish(fn), chunks


def _seconds(rows: int, row: SoftmaxRow) -> float:
    return rows * (_ROW_S + row.length * _ELEMENT_S)


def _emit_row(row: SoftmaxRow, operands: Sequence[Value], place: EmittedRow) -> None:
    """Emit a row. Operands: the tensor, the table, the result, room for the powers of a row."""
    x, table, y, powers = operands
    fn, lanes = place.fn, place.fn.isa.lanes
    source, target = fn.at(x, place.offset, "i8"), fn.at(y, place.offset, "i8")
    integers, reals = vector(lanes, "i32"), vector(lanes, "double")

    def element(step: Index, count: int) -> Value:
        loaded = load_stored(fn, fn.at(source, step * lanes, "i8"), lanes, count)
        return widen(fn, loaded, row.dtype)

    def power(step: Index, count: int) -> Value:
        """Keep and return powers as floats; 0 beyond the end of the row."""
        below = fn.convert("zext", largest - element(step, count), vector(lanes, "i64"))
        found = fn.gather_at(integers, table, below, count)
        fn.store(found, fn.at(powers, step * lanes, "i32"))
        return fn.convert("sitofp", found, reals)

    largest = _joined(place, integers, -128, element, lambda a, b: maximum(fn, a, b, signed=True))
    total = _joined(place, reals, 0, power, lambda a, b: a + b)
    inverse = fn.splat(1.0 / fn.extract(total, 0), lanes)
    half = total * 0.5 + 0.25
    for step, count, _ in _walk(place):
        kept = fn.load(integers, fn.at(powers, step * lanes, "i32"))
        ratio = fn.fma(fn.convert("sitofp", kept, reals), float(row.gain), half) * inverse
        whole = fn.convert("fptosi", ratio, integers)
        made = clamp_and_narrow(fn, whole, row.y_zero, row.low, row.high)
        store_stored(fn, made, fn.at(target, step * lanes, "i8"), count)


def _joined(
    place: EmittedRow,
    type: str,
    start: int,
    term: Callable[[Index, int], Value],
    join: Join,
) -> Value:
    """Return a term of each vector joined over the row, in every lane."""
    fn, lanes = place.fn, place.fn.isa.lanes
    totals = [Var(fn, type, start) for _ in range(_CHAINS)]
    for step, count, which in _walk(place, _CHAINS):
        value = term(step, count)
        if count < lanes:
            value = keep(fn, value, count, start)
        totals[which].set(join(totals[which].get(), value))
    return across(fn, functools.reduce(join, (total.get() for total in totals)), join)


def _walk(place: EmittedRow, unroll: int = 1) -> Iterator[tuple[Index, int, int]]:
    """Yield (step, lanes, accumulator) around what is emitted for each vector of a row."""
    for step, count, which in place.walk(unroll):
        if isinstance(count, Value):
            raise InternalError("the length of a row is known here")
        yield step, count, which


def _row_of(context: Context, node: Node, p: SoftmaxParams) -> SoftmaxRow:
    x = context.type(node.used[0])
    return SoftmaxRow(x.dims[-1], x.dtype, p.gain, p.y_zero, p.low, p.high)


def _lower(context: Context, node: Node) -> Sequence[Step]:
    """Return the step of softmax along the last axis."""
    p = softmax_params(call_of(context.graph, node))
    row = _row_of(context, node, p)
    rows = context.type(node.used[0]).elements // row.length
    code, chunks = context.kernel(softmax_kernel, rows, row)
    return [
        Step(
            code,
            (context.operand(node.used[0]), p.table),
            (node.outputs[0],),
            chunks,
            local_bytes=4 * -(-row.length // context.isa.lanes) * context.isa.lanes,
            seconds=_seconds(rows, row),
            nodes=(node.id,),
            family=ELEMENTWISE_Q8,
        )
    ]


def _reason(graph: Graph, node: Node) -> str | None:
    x = graph.type(node.used[0])
    if node.attrs["axis"] not in (-1, len(x.shape) - 1):
        return "quantised softmax has a native kernel for the last axis only"
    reason = stored_reason(graph, node, lambda: softmax_params(call_of(graph, node)))
    if reason:
        return reason
    gain = softmax_params(call_of(graph, node)).gain
    if _MOST_POWER * (gain + x.dims[-1]) >= _EXACT:
        return "quantised softmax has no native kernel for a numerator of more than 50 bits"
    return None


TABLE.add("softmax", Rule(_reason, _lower), STORED_8)
