"""The pointers and words of a polymorphic program's steps, as they lie in memory.

compile/resizable.py lays them out once; a shape writes what differs from the shape before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from trireme.backend.device import Buffer
from trireme.devices.cpu.codegen.aligned_memory import address
from trireme.devices.cpu.compile.alike_steps import ARRAYS, WORDS, RowsByTurn, SizedRow
from trireme.devices.cpu.runtime.fault_words import FaultWords
from trireme.devices.cpu.runtime.slot_places import SLOT_ALIGN, slot_places
from trireme.ir.dim_values import Numbers
from trireme.support.dtypes import Array


class PointerPlaces:
    """Those pointers of a table that a list of addresses decides."""

    def __init__(self, count: int) -> None:
        self._ends: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self._now = [0] * count

    def add(self, at: int, of: int, beyond: int) -> None:
        """Have pointer `at` be address `of`, and some bytes beyond it."""
        self._ends[of].append((at, beyond))

    def ends(self, of: int) -> list[tuple[int, int]]:
        """Return the pointers that an address decides, and how far beyond it each is."""
        return self._ends[of]

    def write(self, pointers: memoryview, addresses: Sequence[int]) -> None:
        """Write the pointers whose addresses are others than before."""
        now = self._now
        if now == addresses:
            return
        for k, place in enumerate(addresses):
            if now[k] != place:
                now[k] = 0  # an interrupt leaves it to be written again
                for at, beyond in self._ends[k]:
                    pointers[at] = place + beyond
                now[k] = place


@dataclass(eq=False)
class StepLayout:
    """The pointers and words of all steps, as they lie in memory; each row is what was written.

    pointers, words: what kernels read
    word_at: by group, where its words begin; array_places: by group, its pointers to arrays
    scratch, arguments, decided: the pointers that the addresses of these decide
    faults: what kernels may find wrong
    seconds: by group, those that decided how the steps run
    below: by slot of the scratch memory, the slots below it
    block: the shapes of which the one that was written is; then rows are those of its first one
    """

    rows: list[SizedRow]
    pointers: Array
    words: Array
    word_at: list[int]
    array_places: list[list[list[int]]]
    scratch: PointerPlaces
    arguments: PointerPlaces
    decided: PointerPlaces
    faults: FaultWords
    seconds: list[float]
    below: Sequence[Sequence[int]]
    room: Sequence[int] = ()
    home: Buffer | None = None
    arrays: tuple[Array, ...] = ()
    block: RowsByTurn | None = None

    def __post_init__(self) -> None:
        self.pointer_view, self.word_view = self.pointers.data, self.words.data

    def fits(self, rows: Sequence[SizedRow], others: Sequence[int]) -> bool:
        """Whether the rows of some groups, the others now, have as many words and arrays."""
        return all(
            [
                len(rows[k][WORDS]) == len(self.rows[k][WORDS])
                and len(rows[k][ARRAYS]) == len(self.rows[k][ARRAYS])
                for k in others
            ]
        )

    def put_row(self, group: int, row: SizedRow) -> None:
        """Write the words and arrays of a group of steps."""
        words = self.word_view
        for at, word in enumerate(row[WORDS], self.word_at[group]):
            words[at] = word
        for places in self.array_places[group]:
            for at, array in zip(places, row[ARRAYS], strict=True):
                self.pointer_view[at] = array.ctypes.data
        self.rows[group] = row

    def put_words(self, words: Array) -> None:
        """Write the words of all groups."""
        self.words[: len(words)] = words

    def put_scratch(self, room: Numbers, scratch: Buffer) -> None:
        """Have each slot lie in some memory; slots stay where they are while they are enough."""
        if scratch is self.home and not any([n > m for n, m in zip(room, self.room, strict=True)]):
            return
        self.room, self.home = [-(-nbytes // SLOT_ALIGN) * SLOT_ALIGN for nbytes in room], scratch
        begin = address(scratch)
        places = [begin + offset for offset in slot_places(room, self.below)[0]]
        self.scratch.write(self.pointer_view, places)

    def put_decided(self, arrays: tuple[Array, ...]) -> None:
        """Have steps read what a shape decides."""
        if any([array is not now for array, now in zip_longest(arrays, self.arrays)]):
            self.decided.write(self.pointer_view, [array.ctypes.data for array in arrays])
            self.arrays = arrays
