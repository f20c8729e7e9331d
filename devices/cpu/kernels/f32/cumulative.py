"""cum_sum and cum_prod: running sums along an axis, of floats in float64 as the references do.

Chunks are of whole rows, so every sum is made in the order of its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from trireme.devices.cpu.codegen.index import minus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.scalars import SCALARS, convert, load, store
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.ranking import rows_along
from trireme.devices.cpu.kernels.f32.rows import Rows
from trireme.devices.cpu.kernels.lowering import TABLE, Context, Rule, Step, finish, varies
from trireme.devices.cpu.kernels.spans import SpanCut, SpanWork, Wiring, begin_span, span_step
from trireme.ir.graph import Graph, Node
from trireme.support.records import dataclass


@dataclass(frozen=True)
class Running:
    """A running sum or product over rows of a dtype."""

    op: str
    dtype: str
    rows: Rows
    exclusive: bool
    reverse: bool


def running_kernel(isa: Isa, run: Running, cut: SpanCut) -> Code:
    """Return the kernel of a running sum. Operands: x, y."""
    fn, operands, _, _, span = begin_span(f"{run.op}_{SCALARS[run.dtype].short}", isa, 2, cut)
    _emit(fn, fn.known(run), operands, span)
    return finish(fn)


def _work(isa: Isa, run: Running) -> SpanWork:
    """Return the blocks of neighbouring rows, and the seconds of all."""
    lanes = isa.lanes if run.rows.inner > 1 else 1
    items = run.rows.outer * -(-run.rows.inner // lanes)
    return SpanWork(items, items * run.rows.count * (3e-9 if lanes > 1 else 1.4e-9))


def _emit(fn: Function, run: Running, operands: Sequence[Value], span: tuple[Index, Index]) -> None:
    """Emit some of the blocks of rows; how many rows there are, and how long, may be read."""
    rows, memory, (x, y) = run.rows, SCALARS[run.dtype].memory, operands
    lanes = fn.isa.lanes if rows.inner > 1 else 1
    blocks = -(-rows.inner // lanes)
    for item in fn.range(*span):
        outer, block = fn.integer("udiv", item, blocks), fn.integer("urem", item, blocks)
        offset = times(fn, outer, times(fn, rows.count, rows.inner)) + block * lanes
        places = (fn.at(x, offset, memory), fn.at(y, offset, memory))
        rest = rows.inner % lanes
        if not rest or isinstance(block, int):
            _rows(fn, run, places, lanes, rest or lanes)
            continue
        for is_last in fn.either(fn.compare("eq", block, blocks - 1)):
            _rows(fn, run, places, lanes, rest if is_last else lanes)


def _rows(fn: Function, run: Running, places: tuple[Value, Value], lanes: int, count: int) -> None:
    """Emit the running sums of `count` neighbouring rows."""
    scalar, (x, y) = SCALARS[run.dtype], places
    is_float = scalar.kind in ("single", "double")
    held = "float64" if is_float else run.dtype
    start = 0 if run.op == "cum_sum" else 1
    total = Var(fn, vector(lanes, SCALARS[held].register), start)
    last = minus(fn, run.rows.count, 1)
    for j in fn.range(0, run.rows.count):
        at = (fn.as_value("i64", last) - j if run.reverse else j) * run.rows.inner
        value = load(fn, run.dtype, fn.at(x, at, scalar.memory), lanes, count)
        value = convert(fn, value, run.dtype, held) if is_float else value
        before = total.get()
        after = before + value if run.op == "cum_sum" else before * value
        total.set(after)
        made = before if run.exclusive else after
        made = convert(fn, made, held, run.dtype) if is_float else made
        store(fn, run.dtype, made, fn.at(y, at, scalar.memory), count)


def _reason(graph: Graph, node: Node) -> str | None:
    """Say why a running sum has no native kernel, None when it has."""
    x, axis = (graph.values[value] for value in node.used)
    if axis.data is None:
        return f"{node.op} has native kernels for a constant axis only"
    if not x.type.elements or not x.type.dims:
        return f"{node.op} has no native kernel for empty tensors and scalars"
    return None


def _open_reason(graph: Graph, node: Node) -> str | None:
    if varies(_running_of(graph, node).rows.inner):
        return f"{node.op} has no kernel for every shape where the axes behind its own vary"
    return None


def _running_of(graph: Graph, node: Node) -> Running:
    """Return a node's running sum or product."""
    x, axis = (graph.values[value] for value in node.used)
    rows = rows_along(x.type.dims, 0 if axis.data is None else int(axis.data.reshape(())))
    exclusive, reverse = (bool(node.attrs[name]) for name in ("exclusive", "reverse"))
    return Running(node.op, x.type.dtype, rows, exclusive, reverse)


def _lower(context: Context, node: Node) -> list[Step]:
    wiring = Wiring((context.operand(node.used[0]),), node.outputs, (node.id,), "cum")
    plan_of, work = partial(_running_of, node=node), partial(_work, context.isa)
    return [span_step(context, wiring, plan_of, work, running_kernel)]


_NUMBERS = [dtype for dtype in SCALARS if dtype != "bool"]
TABLE.add(("cum_sum", "cum_prod"), Rule(_reason, _lower, _open_reason), _NUMBERS)
