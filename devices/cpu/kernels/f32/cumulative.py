"""cum_sum and cum_prod: running sums along an axis, of floats in float64 as the references do.

Chunks are of whole rows, so every sum is made in the order of its row.
"""

from __future__ import annotations

from collections.abc import Sequence

from trireme.devices.cpu.codegen.index import minus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.scalars import SCALARS, convert, load, store
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.ranking import rows_along
from trireme.devices.cpu.kernels.f32.rows import Rows
from trireme.devices.cpu.kernels.lowering import TABLE, Context, Rule, Step, begin, deal, finish
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


def running_kernel(isa: Isa, run: Running) -> tuple[Code, int, float]:
    """Return the kernel of a running sum, its chunks and seconds. Operands: x, y."""
    scalar = SCALARS[run.dtype]
    fn, operands, chunk, _ = begin(f"{run.op}_{scalar.short}", isa, 2)
    items, seconds = running_work(isa, run)
    size, chunks = deal(items, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    emit_running(fn, run, operands, (first, fn.minimum(first + size, items)))
    return finish(fn), chunks, seconds


def running_work(isa: Isa, run: Running) -> tuple[int, float]:
    """Return the blocks of neighbouring rows, and the seconds of all."""
    lanes = isa.lanes if run.rows.inner > 1 else 1
    items = run.rows.outer * -(-run.rows.inner // lanes)
    return items, items * run.rows.count * (3e-9 if lanes > 1 else 1.4e-9)


def emit_running(
    fn: Function, run: Running, operands: Sequence[Value], span: tuple[Index, Index]
) -> None:
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


def running_reason(graph: Graph, node: Node) -> str | None:
    """Say why a running sum has no native kernel, None when it has."""
    x, axis = (graph.values[value] for value in node.used)
    if axis.data is None:
        return f"{node.op} has native kernels for a constant axis only"
    if not x.type.elements or not x.type.dims:
        return f"{node.op} has no native kernel for empty tensors and scalars"
    return None


def running_of(graph: Graph, node: Node) -> Running:
    """Return a node's running sum or product."""
    x, axis = (graph.values[value] for value in node.used)
    rows = rows_along(x.type.dims, 0 if axis.data is None else int(axis.data.reshape(())))
    exclusive, reverse = (bool(node.attrs[name]) for name in ("exclusive", "reverse"))
    return Running(node.op, x.type.dtype, rows, exclusive, reverse)


def _lower(context: Context, node: Node) -> list[Step]:
    code, chunks, seconds = context.kernel(running_kernel, running_of(context.graph, node))
    reads = (context.operand(node.used[0]),)
    return [
        Step(code, reads, node.outputs, chunks, seconds=seconds, nodes=(node.id,), family="cum")
    ]


RUNNING = ("cum_sum", "cum_prod")
NUMBERS = [dtype for dtype in SCALARS if dtype != "bool"]
TABLE.add(RUNNING, Rule(running_reason, _lower), NUMBERS)
