"""Steps of an open program with equal sizes at every shape, and what a shape decides of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from trireme.devices.cpu.codegen.aligned_memory import as_kernels_read
from trireme.devices.cpu.compile.recording import Code, CodeOfMany
from trireme.devices.cpu.kernels.lowering import Sized, Step
from trireme.ir.dim_values import Numbers
from trireme.support.dtypes import Array

MOST_WAYS = 4
"""Recordings of a step; each serves the shapes that go one way through its arithmetic."""
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
class AlikeSteps:
    """Steps with equal sizes.

    step: the first of them; number: of the group
    codes: recorded code that gives the sizes of shapes that go one way; of_many: for many at once
    is_recorded: whether the sizes can be recorded; Python sizes the others at each shape
    """

    step: Step
    number: int
    codes: list[Code] = field(default_factory=list)
    of_many: list[CodeOfMany] = field(default_factory=list)
    is_recorded: bool = True

    @property
    def is_known(self) -> bool:
        """Whether nothing more is learnt about these steps from a shape like the last ones."""
        return bool(self.codes) or not self.is_recorded

    def row(self, numbers: Numbers) -> SizedRow | None:
        """Return the sizes by recorded code; None where the numbers go another way."""
        for code in self.codes:
            row: SizedRow | None = code(numbers)
            if row is not None:
                return row
        return None


def row_of(sized: Sized) -> SizedRow:
    """Return what a step has at one shape, its arrays as kernels read them."""
    arrays = tuple(map(as_kernels_read, sized.arrays))
    return sized.words, sized.chunks, sized.seconds, sized.local_bytes, sized.variant, arrays
