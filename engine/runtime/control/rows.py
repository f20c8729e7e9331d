"""Slices that a loop reads and rows that it writes, one a turn, at equal steps in one array.

A row is written where it belongs in the stacked output, and a slice is read where it lies, if it is
large and the body's calls can be pointed there. Else both are copied.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from trireme.backend.capabilities import Rebind
from trireme.support.dtypes import Array
from trireme.support.records import dataclass


@dataclass
class TurnRows:
    """The slices or rows of one value of a body.

    value: of the body's program
    whole: what the caller gave or gets; axis: along which the turns follow one another
    place: where the body reads or writes a turn's part, unless it is pointed elsewhere
    rebinds: point the even and the odd turns' calls elsewhere; empty where the part is copied
    table: the parts in the order of the turns, contiguous along the first axis
    """

    value: int
    whole: Array
    axis: int
    backward: bool
    place: Array
    rebinds: tuple[Rebind, ...] = ()
    table: Array = field(init=False)

    def __post_init__(self) -> None:
        self.along = np.moveaxis(self.whole, self.axis, 0)
        self.is_own = not self.along.flags.c_contiguous
        self.table = np.empty(self.along.shape, self.whole.dtype) if self.is_own else self.along
        self.nbytes = self.place.nbytes
        self._locate()

    def reset(self, whole: Array) -> None:
        """Go on in another array, whose parts lie one after another in the order of the turns."""
        self.whole = self.along = self.table = whole
        self.is_own = False
        self._locate()

    def _locate(self) -> None:
        last = len(self.table) - 1
        address = self.table.ctypes.data
        self.start = address + last * self.nbytes if self.backward else address
        self.step = -self.nbytes if self.backward else self.nbytes
        self.parts = self.table[::-1] if self.backward else self.table

    @property
    def length(self) -> int:
        """The number of turns that the array has room for."""
        return len(self.table)

    def gather(self) -> None:
        """Bring slices that are not contiguous together, once a run."""
        if self.is_own:
            self.table[...] = self.along

    def scatter(self) -> None:
        """Write rows that were kept together to where they belong, once a run."""
        if self.is_own:
            self.along[...] = self.table

    def point(self, turn: int) -> None:
        """Point the calls of a turn at its part."""
        self.rebinds[turn & 1](self.start + turn * self.step)

    def put(self, turn: int) -> None:
        """Copy the slice of a turn to where the body reads it."""
        self.place[...] = self.parts[turn]

    def take(self, turn: int) -> None:
        """Copy the row of a turn from where the body wrote it."""
        self.parts[turn] = self.place
