"""Kernels of equal units, written once for sizes that are numbers and for sizes that vary.

A family gives a plan of a graph, the units and seconds of a plan, and a maker of code that does a
span of units. `span_step` returns the step: in a graph of one shape all sizes are numbers in the
code; in a graph with symbols those that vary are words, which the kernel reads when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Word
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.lowering import (
    ELEMENTWISE,
    Context,
    Operand,
    Sized,
    Step,
    begin,
    deal,
    open_step,
)
from trireme.ir.graph import Graph
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError
from trireme.support.records import dataclass

Plan = TypeVar("Plan")
P = ParamSpec("P")


@dataclass(frozen=True)
class SpanCut:
    """How units of equal work are cut into chunks.

    size, units: of a chunk, and all; numbers, or Words in a kernel for every shape
    is_sole: whether one chunk does all, so that it begins at 0
    words: that the kernel reads, 0 where all sizes are numbers
    parts, block: chunks of a block of channels, and its channels; 0 where channels are not cut
    """

    size: int
    units: int
    is_sole: bool = False
    words: int = 0
    parts: int = 0
    block: int = 0


class Wiring(NamedTuple):
    """The operands that a step reads and writes, the nodes it is of, and its family.

    in_blocks: whether cuts have blocks of channels where sizes vary
    """

    reads: Sequence[Operand]
    writes: Sequence[Operand]
    nodes: tuple[int, ...]
    family: str = ELEMENTWISE
    in_blocks: bool = False


class SpanWork(NamedTuple):
    """What a plan takes: units, seconds on one thread, and bytes of each thread's own memory.

    deal: returns a chunk's units, parts and block as in `SpanCut`, and the number of chunks;
        None to cut as most kernels are
    """

    units: int
    seconds: float
    local_bytes: int = 0
    deal: Callable[[int, float], tuple[int, ...]] | None = None


class Planned(NamedTuple, Generic[Plan]):
    """What a graph of one shape decides of a step.

    tables: operands that follow from the shape, before those that the step reads
    """

    plan: Plan
    work: SpanWork
    tables: tuple[Array, ...] = ()


NOTHING = SpanWork(0, 0.0)
"""The work of a shape that has nothing to do."""


class SpanKernel(NamedTuple):
    """A kernel under construction: its function, operands, chunk, thread's memory and units."""

    fn: Function
    operands: list[Value]
    chunk: Value
    local: Value
    span: tuple[Index, Index]


def begin_sized(
    name: str, isa: Isa, operands: int, words: int
) -> tuple[Function, list[Value], Value, Value]:
    """Begin a kernel that reads its sizes; as `begin`, whose operands follow the words."""
    fn, (at, *pointers), chunk, local = begin(f"{name}_sized", isa, operands + 1)
    fn.words_at = at
    fn.words = [fn.load("i64", fn.at(at, k, "i64"), 8) for k in range(words)]
    return fn, pointers, chunk, local


def begin_cut(
    name: str, isa: Isa, operands: int, cut: SpanCut
) -> tuple[Function, list[Value], Value, Value]:
    """Begin a kernel whose units are cut; plans hold values after `fn.known(plan)`.

    operands: tables of the shape, those read, and those written; the words not counted
    """
    if not cut.words:
        return begin(name, isa, operands)
    return begin_sized(name, isa, operands, cut.words)


def span_of(fn: Function, chunk: Value, cut: SpanCut) -> tuple[Index, Index]:
    """Emit the first unit of a chunk, and the one after its last."""
    cut = fn.known(cut)
    place = fn.integer("urem", chunk, cut.parts) if cut.parts else chunk
    first: Index = 0 if cut.is_sole else fn.as_value("i64", place) * cut.size
    return first, fn.minimum(first + cut.size, cut.units)


def begin_span(name: str, isa: Isa, operands: int, cut: SpanCut) -> SpanKernel:
    """Begin a kernel that does a span of units, as `begin_cut` does."""
    fn, pointers, chunk, local = begin_cut(name, isa, operands, cut)
    return SpanKernel(fn, pointers, chunk, local, span_of(fn, chunk, cut))


def span_step(
    context: Context,
    wiring: Wiring,
    plan_of: Callable[[Graph], Plan],
    work: Callable[[Plan], SpanWork],
    make: Callable[Concatenate[Isa, Plan, SpanCut, P], Code],
    *args: P.args,
    **named: P.kwargs,
) -> Step:
    """Return the step of a kernel whose units are cut into chunks.

    plan_of: gives the plan of a graph; work: the units and seconds of a plan
    make: gives the code; sees nothing but the plan, the cut and what follows here
    """

    def planned(graph: Graph) -> Planned[Plan]:
        plan = plan_of(graph)
        return Planned(plan, work(plan))

    samples = (plan_of(context.graph),) if context.is_open else ()
    return planned_step(context, wiring, planned, samples, make, *args, **named)


def planned_step(
    context: Context,
    wiring: Wiring,
    planned: Callable[[Graph], Planned[Plan]],
    samples: Sequence[Plan],
    make: Callable[Concatenate[Isa, Plan, SpanCut, P], Code],
    *args: P.args,
    **named: P.kwargs,
) -> Step:
    """Return the step of a kernel with tables, or with variants in a graph whose sizes vary.

    samples: plans of such a graph, a code for each; a shape takes the first of its structure
    """
    reads, writes, nodes, family, in_blocks = wiring
    if not context.is_open:
        plan, (units, seconds, local_bytes, deal_here), tables = planned(context.graph)
        size, *_, chunks = (deal_here or deal)(units, seconds)
        code = context.kernel(make, plan, SpanCut(size, units, chunks == 1), *args, **named)
        operands = (*tables, *reads), tuple(writes)
        return Step(code, *operands, chunks, local_bytes, seconds, nodes, family=family)
    from trireme.devices.cpu.kernels.sample import deal_evenly, generalised

    made = [generalised(sample, make.__name__) for sample in samples]
    codes = tuple(
        context.kernel(make, known, read_cut(count, in_blocks), *args, **named)
        for known, count, _ in made
    )
    room = max(count for _, count, _ in made) + (4 if in_blocks else 2)

    def size_at(graph: Graph) -> Sized:
        plan, found, tables = planned(graph)
        if found is NOTHING:
            return Sized((0,) * room, chunks=0)
        units, seconds, local_bytes, deal_here = found
        variant, words = _fitting([take for _, _, take in made], plan)
        part, *blocks, chunks = (deal_here or deal_evenly)(units, seconds)
        sized = (*words, part, units, *blocks)
        sized += (0,) * (room - len(sized))
        return Sized(sized, chunks, seconds, local_bytes, variant=variant, arrays=tables)

    return open_step(codes, reads, writes, size_at, nodes, family)


def read_cut(count: int, in_blocks: bool = False) -> SpanCut:
    """Return a cut whose numbers are the words behind the first `count`."""
    at: list[Any] = [Word(count + k) for k in range(4 if in_blocks else 2)]
    size, units, *blocks = at
    return SpanCut(size, units, False, count + len(at), *blocks)


def _fitting(
    takers: Sequence[Callable[[Plan], tuple[int, ...]]], plan: Plan
) -> tuple[int, tuple[int, ...]]:
    """Return the first variant with a plan's structure, and the plan's words."""
    for variant, take in enumerate(takers[:-1]):
        try:
            return variant, take(plan)
        except CompileError:
            continue
    return len(takers) - 1, takers[-1](plan)
