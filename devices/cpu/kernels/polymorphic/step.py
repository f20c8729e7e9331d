"""Polymorphic kernels: the sizes that vary are words of memory, so one compile serves every shape.

A rule lowers a node of a sample (sample.py). It returns steps without sizes; `PolymorphicStep.size`
says the words, the chunks and the seconds for a graph of one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.backend.kernel_table import KernelTable
from trireme.devices.cpu.codegen.ir import Function, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.lowering import ELEMENTWISE, Context, Operand, Temp, begin
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError
from trireme.support.records import dataclass


@dataclass(frozen=True, eq=False)
class SizedTemp(Temp):
    """Memory that lives from one step of a node to another.

    nbytes: of a usual shape; bytes_at: of each shape
    """

    bytes_at: Callable[[Graph], int]


@dataclass(frozen=True)
class Sized:
    """A step for one shape: its words, chunks and seconds, as in `Step`.

    chunks: 0 where there is nothing to do
    variant: which of the step's codes runs
    arrays: tables of the shape, operands between the words and what the step reads
    """

    words: tuple[int, ...]
    chunks: int = 1
    seconds: float = 1e-5
    local_bytes: int = 0
    columns: int = 1
    variant: int = 0
    arrays: tuple[Array, ...] = ()


@dataclass(frozen=True, eq=False)
class PolymorphicStep:
    """A native step for every shape; `size` gives what a shape decides.

    codes: kernels for different ranges of sizes; operands: the words, then reads, then writes
    """

    codes: tuple[Code, ...]
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    size: Callable[[Graph], Sized]
    nodes: tuple[int, ...]
    family: str = ELEMENTWISE


def sized_for(step: PolymorphicStep, graph: Graph) -> Sized:
    """Return what a shape decides of a step.

    Errors: CompileError, if it reads or makes an empty tensor, and not only moves elements
    """
    sized = step.size(graph)
    values = graph.values
    if sized.chunks and any(
        values[operand].type.elements == 0
        for operand in (*step.reads, *step.writes)
        if isinstance(operand, int)
    ):
        label = graph.node(step.nodes[-1]).label
        raise CompileError(f"cpu: {label} has no kernel of all shapes for empty tensors")
    return sized


@dataclass(frozen=True)
class PolymorphicRule:
    """How a node is lowered for every shape: `reason` says in a sentence why it cannot be.

    reason: sees the sample
    """

    reason: Callable[[Graph, Node], str | None]
    lower: Callable[[Context, Node], Sequence[PolymorphicStep]]


POLYMORPHIC: KernelTable[PolymorphicRule] = KernelTable("cpu")
"""The polymorphic kernels; filled by the modules that polymorphic/table.py imports."""


def begin_sized(
    name: str, isa: Isa, operands: int, words: int
) -> tuple[Function, list[Value], Value, Value]:
    """Begin a kernel that reads its sizes; as `begin`, whose operands follow the words."""
    fn, (place, *pointers), chunk, local = begin(f"{name}_sized", isa, operands + 1)
    fn.words_at = place
    fn.words = [fn.load("i64", fn.at(place, k, "i64"), 8) for k in range(words)]
    return fn, pointers, chunk, local


def dims_of(graph: Graph, value: int) -> tuple[int, ...]:
    """Return the sizes of a value's axes."""
    return graph.values[value].type.dims
