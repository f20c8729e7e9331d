"""Steps of an open program with equal sizes at every shape, and what a shape decides of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from trireme.devices.cpu.codegen.aligned_memory import as_kernels_read
from trireme.devices.cpu.compile.recording import Code, CodeOfMany
from trireme.devices.cpu.kernels.polymorphic.step import PolymorphicStep, Sized
from trireme.ir.dim_values import Numbers
from trireme.support.dtypes import Array

MOST_TRIES = 4
"""Recordings of a step; each serves the shapes that go one way through its arithmetic."""
_NEVER = 1 << 30
PROVEN = 4
"""Shapes at which recorded code is compared with what it was made of."""
LITTLE_S = 1e-6
"""Estimated seconds by which a step may change without a look at how the steps run."""

SizedRow = tuple[Numbers, int, float, int, int, tuple[Array, ...]]
"""What a step's `Sized` has: words, chunks, seconds, local bytes, the variant and arrays."""
WORDS: Final = 0
CHUNKS: Final = 1
SECONDS: Final = 2
LOCAL_BYTES: Final = 3
VARIANT: Final = 4
ARRAYS: Final = 5
NOTHING: SizedRow = ((), 1, 0.0, 0, 0, ())


class RowsByTurn(Protocol):
    """The rows of shapes that come one after another.

    words: by shape, as they lie in a layout
    """

    words: Array

    def rows(self, turn: int) -> tuple[SizedRow, ...]:
        """Return the rows of a shape."""
        ...


@dataclass(eq=False)
class Recorded:
    """Recorded code, and at how many shapes it had the sizes that Python has."""

    code: Code
    of_many: CodeOfMany
    proven: int = 0


@dataclass(eq=False)
class AlikeSteps:
    """Steps with equal sizes.

    step: the first of them; number: of the group
    recorded: code that gives the sizes for shapes of some kinds; tries: how often it was made
    """

    step: PolymorphicStep
    number: int
    recorded: list[Recorded] = field(default_factory=list)
    tries: int = 0

    @property
    def is_proven(self) -> bool:
        """Whether nothing more is learnt about these steps from a shape like the last ones."""
        return self.tries >= MOST_TRIES or any(one.proven >= PROVEN for one in self.recorded)

    def of_many(self) -> list[CodeOfMany]:
        """Return code that gives the sizes at many shapes at once."""
        return [one.of_many for one in self.recorded if one.proven >= PROVEN]

    def forget(self) -> None:
        """Be sized by Python from now on."""
        self.recorded.clear()
        self.tries = _NEVER


def row_of(sized: Sized) -> SizedRow:
    """Return what a step has at one shape, its arrays as kernels read them."""
    arrays = tuple(map(as_kernels_read, sized.arrays))
    return sized.words, sized.chunks, sized.seconds, sized.local_bytes, sized.variant, arrays
