"""Kernels of equal units, written once for sizes that are numbers and for sizes that vary.

A family gives a plan of a graph, the units and seconds of a plan, and a maker of code that does a
span of units. `span_step` returns the step: in a graph of one shape all sizes are numbers in the
code; in a graph with symbols those that vary are words, which the kernel reads when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Word
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.lowering import (
    ELEMENTWISE,
    AnyStep,
    Context,
    Operand,
    PolymorphicStep,
    Sized,
    Step,
    begin,
    deal,
)
from trireme.ir.graph import Graph
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

Plan = TypeVar("Plan")
P = ParamSpec("P")


@dataclass(frozen=True)
class Cut:
    """How units of equal work are cut into chunks.

    size, units: of a chunk, and all; numbers, or Words in a kernel for every shape
    is_sole: whether one chunk does all, so that it begins at 0
    words: that the kernel reads, 0 where all sizes are numbers
    """

    size: int
    units: int
    is_sole: bool = False
    words: int = 0


class Wiring(NamedTuple):
    """The operands that a step reads and writes, the nodes it is of, and its family.

    tables: gives arrays that follow from a graph's sizes, operands before those that are read
    """

    reads: Sequence[Operand]
    writes: Sequence[Operand]
    nodes: tuple[int, ...]
    family: str = ELEMENTWISE
    tables: Callable[[Graph], tuple[Array, ...]] = lambda graph: ()


class Work(NamedTuple):
    """What a plan takes: units, seconds on one thread, and bytes of each thread's own memory."""

    units: int
    seconds: float
    local_bytes: int = 0


NOTHING = Work(0, 0.0)
"""The work of a shape that has nothing to do."""


class SpanKernel(NamedTuple):
    """A kernel under construction: its function, operands, chunk, thread's memory and units."""

    fn: Function
    operands: list[Value]
    chunk: Value
    local: Value
    span: tuple[Index, Index]


def begin_span(name: str, isa: Isa, operands: int, cut: Cut) -> SpanKernel:
    """Begin a kernel that does a span of units; plans hold values after `fn.known(plan)`."""
    label, first_operand = (f"{name}_sized", 1) if cut.words else (name, 0)
    fn, pointers, chunk, local = begin(label, isa, operands + first_operand)
    if cut.words:
        fn.words_at = place = pointers[0]
        fn.words = [fn.load("i64", fn.at(place, k, "i64"), 8) for k in range(cut.words)]
        cut = fn.known(cut)
    first: Index = 0 if cut.is_sole else chunk * cut.size
    span = first, fn.minimum(first + cut.size, cut.units)
    return SpanKernel(fn, pointers[first_operand:], chunk, local, span)


def span_step(
    context: Context,
    wiring: Wiring,
    plan_of: Callable[[Graph], Plan],
    work: Callable[[Plan], Work],
    make: Callable[Concatenate[Isa, Plan, Cut, P], Code],
    *args: P.args,
    **named: P.kwargs,
) -> AnyStep:
    """Return the step of a kernel whose units are cut into chunks.

    plan_of: gives the plan of a graph; work: the units and seconds of a plan
    make: gives the code; sees nothing but the plan, the cut and what follows here
    """
    plan = plan_of(context.graph)
    reads, writes, nodes, family, tables = wiring
    if not context.is_open:
        found = work(plan)
        size, chunks = deal(found.units, found.seconds)
        cut = Cut(size, found.units, chunks == 1)
        code = context.kernel(make, plan, cut, *args, **named)
        return Step(
            code,
            (*tables(context.graph), *reads),
            tuple(writes),
            chunks,
            found.local_bytes,
            found.seconds,
            nodes,
            family=family,
        )
    from trireme.devices.cpu.kernels.polymorphic.plans import quick_plan
    from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly, generalised

    values = [operand for operand in (*reads, *writes) if isinstance(operand, int)]
    quick_plan_of = quick_plan(context.graph, values, plan, plan_of)
    known, count, words = generalised(plan, make.__name__)
    code = context.kernel(make, known, read_cut(count), *args, **named)

    def size_at(graph: Graph) -> Sized:
        plan = quick_plan_of(graph)
        found = work(plan)
        if found is NOTHING:
            return Sized((0,) * (count + 2), chunks=0)
        units, seconds, local_bytes = found
        part, chunks = deal_evenly(units, seconds)
        return Sized(
            (*words(plan), part, units), chunks, seconds, local_bytes, arrays=tables(graph)
        )

    return PolymorphicStep((code,), tuple(reads), tuple(writes), size_at, nodes, family)


def read_cut(count: int) -> Cut:
    """Return a cut whose numbers are the words behind the first `count`."""
    at: Any = Word
    return Cut(at(count), at(count + 1), words=count + 2)
