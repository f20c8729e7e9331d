"""Polymorphic kernels: the sizes that vary are words of memory, so one compile serves every shape.

A rule lowers a node of a sample (sample.py). It returns steps without sizes; `PolymorphicStep.size`
says the words, the chunks and the seconds for a graph of one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.backend.kernel_table import KernelTable
from trireme.devices.cpu.kernels.lowering import (
    AnyStep,
    Context,
    PolymorphicStep,
    Sized,
    SizedTemp,
    dims_of,
)
from trireme.devices.cpu.kernels.spans import begin_sized
from trireme.ir.graph import Graph, Node
from trireme.support.errors import CompileError
from trireme.support.records import dataclass

__all__ = [
    "POLYMORPHIC",
    "PolymorphicRule",
    "PolymorphicStep",
    "Sized",
    "SizedTemp",
    "begin_sized",
    "dims_of",
    "sized_for",
]


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
    lower: Callable[[Context, Node], Sequence[AnyStep]]


POLYMORPHIC: KernelTable[PolymorphicRule] = KernelTable("cpu")
"""The polymorphic kernels; filled by the modules that polymorphic/table.py imports."""
