"""What an executable of one shape knows of the open program that it was made of.

Programs of known shapes import this, and nothing that writes kernels for every shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trireme.support.records import dataclass

if TYPE_CHECKING:
    from trireme.devices.cpu.compile.polymorphic import PolymorphicProgram
    from trireme.ir.decided import DecidedValues


@dataclass(frozen=True, eq=False)
class OpenSizes:
    """An open program and what shapes decide, of which an executable of one shape was made."""

    program: PolymorphicProgram
    contents: DecidedValues
