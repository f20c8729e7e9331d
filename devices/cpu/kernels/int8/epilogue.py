"""The end of a product's 32-bit sums: the protocol that its kernel calls.

`Requantiser` (requant.py) makes stored bytes of them, `Dequantiser` (dequant.py) float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.kernels.lowering import Operand
from trireme.support.dtypes import Array

Channels = tuple[Value, Index, int, int]
"""Some vectors of channels: the table, the first lane, lanes of a vector, vectors."""


class Int8Epilogue(Protocol):
    """How sums begin and end; `mark` holds the facts of a product's row, from `enter`."""

    @property
    def data(self) -> Array:
        """Constants: int32 [rows, lanes], in the order of the kernel's lanes."""

    @property
    def element(self) -> str:
        """The LLVM type of stored elements."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The further operands of the kernel."""

    @property
    def form(self) -> Int8Epilogue:
        """The same without constants and addresses, which code does not depend on."""

    @property
    def shared(self) -> bool:
        """Whether all rows have the same facts."""

    def enter(
        self, fn: Function, operands: Sequence[Value], row: Index, channels: Channels | None = None
    ) -> Any:
        """Return the facts of a row: a mark that goes with it.

        channels: those of all sums of the mark, where a loop runs over many
        """

    def start(self, fn: Function, channels: Channels, mark: Any) -> Sequence[Value]:
        """Return what the sums of vectors of channels begin with."""

    def finish(
        self,
        fn: Function,
        sums: Sequence[Value],
        channels: Channels,
        mark: Any,
        pointer: Value,
        count: int,
    ) -> None:
        """Store the first `count` results of the sums of vectors of channels."""


def element_kind(epilogue: Int8Epilogue) -> str:
    """Return what kernels are called that store such results."""
    return "q8_to_f32" if epilogue.element == "float" else "q8"
