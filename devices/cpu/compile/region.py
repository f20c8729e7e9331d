"""What a region of a graph is compiled to: steps in order, and memory for what flows between them.

program.py makes one, for the sizes of a graph or for sizes that vary; one_shape.py takes one shape
of the latter. executable.py puts a program of one shape on addresses, resizable.py any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.compile.scratch_slots import (
    ScratchSlot,
)
from trireme.devices.cpu.compile.states import RegionStates
from trireme.devices.cpu.kernels.lowering import (
    Operand,
    SizedTemp,
    Step,
)
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

if TYPE_CHECKING:
    from trireme.devices.cpu.compile.open_sizes import OpenSizes
    from trireme.ir.decided import DecidedValues

REFERENCE = "numpy reference"


@dataclass(frozen=True, eq=False)
class ReferenceStep:
    """A node that numpy runs between native steps."""

    node: Node

    @property
    def reads(self) -> tuple[Operand, ...]:
        """The values it reads."""
        return self.node.used

    @property
    def writes(self) -> tuple[Operand, ...]:
        """The values it writes."""
        return self.node.outputs


Item = Step | ReferenceStep


@dataclass(frozen=True)
class RegionProgram:
    """A region without its addresses, made by `build` (program.py)."""

    graph: Graph
    items: tuple[Item, ...]
    buffer_aliases: Mapping[int, int]
    """The value in whose memory each value lies; itself where it has memory of its own."""
    kernels: Mapping[int, str]
    offsets: Mapping[int | str, int] = field(default_factory=dict)
    """Byte offsets in the scratch memory, by value or temp, where no size varies."""
    scratch_bytes: int = 0
    stretches: Sequence[tuple[int, RegionProgram, int]] = ()
    """Stretches that run part by part: first item, program of a part, number of parts."""
    constants: Mapping[int, Array] = field(default_factory=dict)
    """Constants by the identity of the operand that steps name; aligned and contiguous."""
    states: RegionStates = RegionStates()
    opened: OpenSizes | None = None
    """What it was lowered as where sizes vary; then a shape places the slots of scratch memory."""
    slots: Sequence[ScratchSlot] = ()
    temps: Mapping[str, SizedTemp] = field(default_factory=dict)

    @property
    def steps(self) -> list[Step]:
        """The native steps."""
        return [item for item in self.items if isinstance(item, Step)]

    @property
    def decided(self) -> frozenset[int]:
        """The values that shapes decide."""
        return frozenset() if self.opened is None else self.opened.decided

    @property
    def codes(self) -> tuple[Code, ...]:
        """The kernels, in the order of the steps."""
        return tuple(code for step in self.steps for code in step.codes)

    @property
    def local_bytes(self) -> int:
        """The memory of its own that each thread needs, where no size varies."""
        return max((step.local_bytes for step in self.steps), default=0)


@dataclass(frozen=True, eq=False)
class OpenOrigin:
    """A program for every shape, and what shapes decide; an executable of one shape knows it."""

    program: RegionProgram
    contents: DecidedValues
