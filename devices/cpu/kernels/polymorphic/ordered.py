"""Running sums and places of the largest elements for every shape: of any number of rows."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.scalars import SCALARS
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.cumulative import (
    NUMBERS,
    RUNNING,
    Running,
    emit_running,
    running_of,
    running_reason,
    running_work,
)
from trireme.devices.cpu.kernels.f32.ranking import (
    FORMS,
    PLACES,
    Order,
    arg_name,
    arg_order,
    arg_work,
    emit_arg,
    order_reason,
    rows_along,
)
from trireme.devices.cpu.kernels.f32.rows import Rows
from trireme.devices.cpu.kernels.lowering import Context, finish
from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly, generalised, varies
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    begin_sized,
)
from trireme.ir.graph import Graph, Node


def sized_running_kernel(isa: Isa, run: Running, words: int) -> Code:
    """Return the kernel of a running sum; the last words are a chunk's blocks, and all."""
    name = f"{run.op}_{SCALARS[run.dtype].short}"
    fn, operands, chunk, _ = begin_sized(name, isa, 2, words + 2)
    size, items = fn.words[words:]
    first = chunk * size
    emit_running(fn, fn.known(run), operands, (first, fn.minimum(first + size, items)))
    return finish(fn)


def _lower_running(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    isa = context.isa
    known, count, words = generalised(running_of(context.graph, node), node.label)
    code = context.kernel(sized_running_kernel, known, count)

    def size(graph: Graph) -> Sized:
        run = running_of(graph, node)
        items, seconds = running_work(isa, run)
        part, chunks = deal_evenly(items, seconds)
        return Sized((*words(run), part, items), chunks, seconds)

    reads = (context.operand(node.used[0]),)
    return [PolymorphicStep((code,), reads, node.outputs, size, (node.id,), "cum")]


def _running_reason(graph: Graph, node: Node) -> str | None:
    missing = running_reason(graph, node)
    if missing is None and varies(running_of(graph, node).rows.inner):
        return _across(node)
    return missing


def sized_arg_kernel(isa: Isa, order: Order, rows: Rows, words: int) -> Code:
    """Return the kernel of an arg_max or arg_min; the last words are a chunk's blocks, and all."""
    fn, operands, chunk, _ = begin_sized(arg_name(order), isa, 2, words + 2)
    size, items = fn.words[words:]
    first = chunk * size
    emit_arg(fn, order, fn.known(rows), operands, (first, fn.minimum(first + size, items)))
    return finish(fn)


def _lower_arg(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    isa, order = context.isa, arg_order(context.graph, node)
    known, count, words = generalised(_rows_of(context.graph, node), node.label)
    code = context.kernel(sized_arg_kernel, order, known, count)

    def size(graph: Graph) -> Sized:
        rows = _rows_of(graph, node)
        items, seconds = arg_work(isa, order, rows)
        part, chunks = deal_evenly(items, seconds)
        return Sized((*words(rows), part, items), chunks, seconds)

    reads = (context.operand(node.used[0]),)
    return [PolymorphicStep((code,), reads, node.outputs, size, (node.id,), "arg")]


def _rows_of(graph: Graph, node: Node) -> Rows:
    return rows_along(graph.type(node.used[0]).dims, node.attrs["axis"])


def _arg_reason(graph: Graph, node: Node) -> str | None:
    missing = order_reason(graph, node)
    return _across(node) if missing is None and varies(_rows_of(graph, node).inner) else missing


def _across(node: Node) -> str:
    return f"{node.op} has no kernel for every shape where the axes behind its own vary"


POLYMORPHIC.add(RUNNING, PolymorphicRule(_running_reason, _lower_running), NUMBERS)
POLYMORPHIC.add(PLACES, PolymorphicRule(_arg_reason, _lower_arg), FORMS)
