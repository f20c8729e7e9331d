"""What the turns of a loop decide, where each turn has larger shapes than the one before.

The sizes of the symbols are affine in the turn. The words of kernels need not be: they are computed
for many turns at once by the recorded code of each group of steps, and a turn copies its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from trireme.devices.cpu.compile.alike_steps import (
    ARRAYS,
    CHUNKS,
    LOCAL_BYTES,
    SECONDS,
    VARIANT,
    WORDS,
    AlikeSteps,
    SizedRow,
)
from trireme.devices.cpu.compile.resizing import CpuTables, Resizer
from trireme.devices.cpu.runtime.slot_places import slot_places
from trireme.ir.dim_values import NumberRows, Numbers
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError

_LEARN_TURNS = 24
"""Turns that are sized one by one at most, so that recorded code is made."""
_PARTS = {CHUNKS: np.int64, SECONDS: np.float64, LOCAL_BYTES: np.int64, VARIANT: np.int64}
"""Numbers of a group beside its words, and how they are kept."""
_MOST_DECIDED_BYTES = 4 << 20
"""The most bytes of operands that shapes decide, of all turns."""


@dataclass(frozen=True, eq=False)
class TurnTables:
    """What some turns decide; the columns are by turn, then by group of alike steps.

    tables: with the rows of the last turn, and memory for each of them
    words: by turn, the words of all groups one after another
    decided: by operand that shapes decide, its array in each turn; None where all are the same;
        or nothing
    """

    tables: CpuTables
    count: int
    words: Array
    chunks: Array
    variants: Array
    seconds: Array
    decided: tuple[tuple[Array, ...] | None, ...]

    @property
    def scratch_bytes(self) -> int:
        """The scratch memory that a turn needs."""
        return self.tables.scratch_bytes


def turn_tables(
    resizer: Resizer, sizes: Numbers, growth: Numbers, count: int, is_block: bool = False
) -> TurnTables:
    """Return the tables of turns.

    sizes: of the symbols in the first turn; growth: by how much each is larger a turn later
    is_block: whether they lack the operands that shapes decide, and may be of fewer turns: those
        before one that goes a way that no code was recorded for
    Errors: CompileError, if the kernels do not serve a turn, or turns need unlike tables
    """
    return _TurnSizer(resizer, sizes, growth, count, is_block).tables()


class _TurnSizer:
    """Sizes the steps of a program for some turns."""

    def __init__(
        self, resizer: Resizer, sizes: Numbers, growth: Numbers, count: int, is_block: bool
    ) -> None:
        self._resizer, self._sizes, self._growth, self._count = resizer, sizes, growth, count
        self._is_block, self._served = is_block, count
        self._growing = resizer.groups_by([step != 0 for step in growth])
        self._known: dict[int, CpuTables] = {}
        turns = np.arange(count, dtype=np.int64)
        self._rows: NumberRows = [
            size + step * turns if step else size for size, step in zip(sizes, growth, strict=True)
        ]

    def tables(self) -> TurnTables:
        """Return the tables of all turns."""
        resizer, count = self._resizer, self._count
        for turn in range(min(count, _LEARN_TURNS)):
            self._at(turn)
            if all(group.is_known for group in self._growing):
                break
        last = self._at(count - 1)
        numbers = resizer.numbers_of_many(self._rows)
        if any(np.min(number) < 1 for number in resizer.open_dims(numbers)):
            raise CompileError("a turn has a tensor without elements")
        made = _Columns(*(np.tile(one, (count, 1)) for one in _row_of_all(last.rows)))
        ends = list(accumulate((len(row[WORDS]) for row in last.rows), initial=0))
        for group in self._growing:
            k = group.number
            self._fill(group, numbers, made.of_group(k, slice(*ends[k : k + 2])))
        room = resizer.most_room(self._rows, self._known_temps())
        nbytes = slot_places(room, resizer.below)[1]
        most_local = int(made.local_bytes.max(initial=0))
        return TurnTables(
            replace(last, room=room, scratch_bytes=nbytes, local_bytes=most_local),
            self._served,
            made.words,
            made.chunks,
            made.variants,
            made.seconds,
            () if self._is_block else self._decided(last),
        )

    def _at(self, turn: int) -> CpuTables:
        """Return the tables of one turn."""
        if turn not in self._known:
            self._known[turn] = self._resizer.at(self._sizes_at(turn), not self._is_block)
        return self._known[turn]

    def _sizes_at(self, turn: int) -> Numbers:
        pairs = zip(self._sizes, self._growth, strict=True)
        return tuple([size + turn * step for size, step in pairs])

    def _fill(self, group: AlikeSteps, numbers: NumberRows, columns: _Columns) -> None:
        """Write what a group has in each turn."""
        missing = np.ones(self._count, bool)
        for code in group.of_many:
            if not missing.any():
                break
            with np.errstate(all="ignore"):  # where the numbers go another way
                on, row = code(numbers)
            columns.put(np.logical_and(missing, on), row)
            missing &= ~np.broadcast_to(on, missing.shape)
        if self._is_block and missing.any():
            self._served = min(self._served, int(np.argmax(missing)))
            missing[:] = False
        left = np.flatnonzero(missing).tolist()
        for turn in left:
            columns.put(turn, self._at(turn).rows[group.number])
        most = self._served
        for turn in {0, most // 2, most - 1} - {*left, most, -1}:
            columns.check(turn, self._at(turn).rows[group.number])

    def _known_temps(self) -> list[CpuTables]:
        """Return the tables of all turns if steps have memory whose size only Python tells."""
        return [self._at(turn) for turn in range(self._count)] if self._resizer.has_temps else []

    def _decided(self, last: CpuTables) -> tuple[tuple[Array, ...] | None, ...]:
        """Return the operands that shapes decide, turn by turn."""
        grows = self._resizer.decided_grow([step != 0 for step in self._growth])
        if not any(grows):
            return (None,) * len(grows)
        turns = [self._resizer.decided_of(self._sizes_at(turn)) for turn in range(self._count)]
        bytes_of_turn = sum(array.nbytes for array in turns[-1])
        if bytes_of_turn * self._count > _MOST_DECIDED_BYTES:
            raise CompileError("what shapes decide is too large to keep for many turns")
        return tuple(
            tuple([arrays[k] for arrays in turns]) if moves else None
            for k, moves in enumerate(grows)
        )


@dataclass(eq=False)
class _Columns:
    """What one group or all groups have in each turn."""

    words: Array
    chunks: Array
    seconds: Array
    local_bytes: Array
    variants: Array

    def of_group(self, group: int, words: slice) -> _Columns:
        """Return those of one of all groups, which are parts of the same memory."""
        others = (self.chunks, self.seconds, self.local_bytes, self.variants)
        return _Columns(self.words[:, words], *(numbers[:, group] for numbers in others))

    def put(self, turns: Array | int, row: SizedRow) -> None:
        """Write a row of some turns; its numbers are arrays over all turns, or the same in each."""
        words = row[WORDS]
        if len(words) != self.words.shape[1] or row[ARRAYS]:
            raise CompileError("turns need tables of unlike lengths")
        for place, number in enumerate(words):
            self.words[turns, place] = _of(number, turns)
        self.chunks[turns] = _of(row[CHUNKS], turns)
        self.seconds[turns] = _of(row[SECONDS], turns)
        self.local_bytes[turns] = _of(row[LOCAL_BYTES], turns)
        self.variants[turns] = _of(row[VARIANT], turns)

    def check(self, turn: int, row: SizedRow) -> None:
        """Raise CompileError unless a turn has what Python computes for it."""
        found = self.words[turn].tolist(), int(self.chunks[turn]), int(self.variants[turn])
        if found != (list(row[WORDS]), row[CHUNKS], row[VARIANT]):
            raise CompileError("sizes of many turns at once are not those of one")


def _of(number: object, turns: Array | int) -> object:
    return number[turns] if isinstance(number, np.ndarray) and number.ndim else number


def _row_of_all(rows: Sequence[SizedRow]) -> Iterator[Array]:
    """Yield what all groups have in one turn, in the order of `_Columns`."""
    yield np.array([word for row in rows for word in row[WORDS]], np.int64)
    for part, dtype in _PARTS.items():
        yield np.array([row[part] for row in rows], dtype)
