"""Shapes that are expected next: what they decide is computed for many of them at once.

A decoder's past grows by a token a run. When shapes have grown alike for a while, the tables of
those to come are made together (compile/turn_tables.py). Such a shape then copies its words and its
pointers, and Python computes nothing for it.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from trireme.devices.cpu.compile.alike_steps import LITTLE_S, LOCAL_BYTES, WORDS, SizedRow
from trireme.devices.cpu.compile.resizing import CpuTables, Resizer
from trireme.devices.cpu.compile.turn_tables import turn_tables
from trireme.ir.dim_values import Numbers
from trireme.support.errors import CompileError

_ALIKE = 3
"""Shapes that grew by the same sizes before more of them are expected."""
_FEW = 8
"""A block of fewer shapes does not pay."""
_FIRST, _MOST = 32, 256
"""Shapes in the first block; each later one has twice as many, up to the most."""


class ShapeBlock:
    """Shapes that come one after another, whose steps differ in words alone.

    words: by shape, as they lie in a layout; count: of the shapes
    """

    def __init__(self, resizer: Resizer, sizes: Numbers, growth: Numbers, count: int) -> None:
        """Errors: CompileError, if the program does not serve a shape, or two need unlike tables"""
        made = turn_tables(resizer, sizes, growth, count, is_block=True)
        seconds, count = made.seconds, made.count
        is_alike = (made.chunks == made.chunks[0]).all(1)
        is_alike &= (made.variants == made.variants[0]).all(1)
        is_alike &= (np.abs(seconds - seconds[0]) <= seconds[0] / 4 + LITTLE_S).all(1)
        self.count = count if is_alike.all() else min(count, int(np.argmin(is_alike)))
        self.words, self._made = made.words, made
        self._growing = [group.number for group in resizer.groups_by([n != 0 for n in growth])]
        lengths = (len(row[WORDS]) for row in made.tables.rows)
        self._ends = list(pairwise(accumulate(lengths, initial=0)))
        pairs = list(zip(sizes, growth, strict=True))
        self._turns = {
            tuple([size + turn * step for size, step in pairs]): turn for turn in range(self.count)
        }

    def at(self, sizes: Numbers) -> CpuTables | None:
        """Return the tables of a shape, None where it is none of these."""
        turn, whole = self._turns.get(sizes), self._made.tables
        if turn is None:
            return None
        room, scratch_bytes = whole.room, whole.scratch_bytes
        return CpuTables(sizes, (), room, scratch_bytes, whole.local_bytes, None, self, turn)

    def rows(self, turn: int) -> tuple[SizedRow, ...]:
        """Return the rows of a shape; those of groups that change are new objects each time."""
        rows, made = list(self._made.tables.rows), self._made
        for k in self._growing:
            words = self.words[turn, slice(*self._ends[k])].tolist()
            rows[k] = (
                tuple(words),
                int(made.chunks[turn, k]),
                float(made.seconds[turn, k]),
                rows[k][LOCAL_BYTES],
                int(made.variants[turn, k]),
                (),
            )
        return tuple(rows)


class ExpectedShapes:
    """The tables of shapes, for one caller at a time; a block of them where they grow alike."""

    def __init__(self, resizer: Resizer) -> None:
        self._resizer = resizer
        self._last: Numbers = ()
        self._growth: Numbers = ()
        self._alike = 0
        self._count = _FIRST
        self._block: ShapeBlock | None = None

    def at(self, sizes: Numbers) -> CpuTables:
        """Return the tables of a shape.

        Errors: CompileError, if the kernels do not serve it
        """
        block = self._block
        if block is not None:
            found = block.at(sizes)
            if found is not None:
                self._last = sizes
                return found
        before, self._last = self._last, sizes
        growth = tuple([now - n for now, n in zip(sizes, before, strict=False)])
        self._alike = self._alike + 1 if growth == self._growth else 0
        self._growth, self._block = growth, None
        if self._alike >= _ALIKE:
            self._block = self._expected(sizes, growth)
            found = None if self._block is None else self._block.at(sizes)
            if found is not None:
                return found
        return self._resizer.at(sizes)

    def _expected(self, sizes: Numbers, growth: Numbers) -> ShapeBlock | None:
        """Return a block of shapes that begins with these sizes; None where it does not pay."""
        if min(growth) < 0 or max(growth) == 0:
            return None
        groups = self._resizer.groups_by([n != 0 for n in growth])
        count = min(self._count, self._resizer.most_shapes(sizes, growth))
        if count < _FEW or not all(group.is_known for group in groups):
            return None
        try:
            made = ShapeBlock(self._resizer, sizes, growth, count)
        except CompileError:
            self._alike = -_MOST
            return None
        if made.count < _FEW:  # there is more to be learnt from single shapes
            self._alike = -_FEW
            return None
        self._count = min(2 * self._count, _MOST)
        return made
