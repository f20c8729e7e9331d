"""Turns of a call inside native code, as Python begins them.

An even turn runs one call, an odd turn the other, on memory that their callers swapped. Before a
turn its number is written and pointers move on; a small slice or row is copied instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trireme.backend.capabilities import TurnPart, Turns
from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.devices.cpu.runtime import native as runtime
from trireme.devices.cpu.runtime.fault_words import FaultWords
from trireme.devices.cpu.runtime.pool import PoolCall, StepPool
from trireme.support.records import dataclass

NO_END = (1 << 63) - 1


@dataclass(frozen=True)
class TurnMove:
    """A pointer of both calls that goes on by `step` bytes a turn.

    even, odd: the addresses of the pointer in the calls' tables; start: where turn 0 points
    """

    even: int
    odd: int
    start: int
    step: int


class NativeRepeat:
    """Two calls that run in turn, until a number of turns is done, a byte says so or a kernel
    finds wrong data.

    faults: what the kernels of each call may find wrong; as many
    turns: the slices and rows that are copied, the number and the byte
    moves: pointers that go on with the turns
    alive: what the addresses point into
    """

    def __init__(
        self,
        pool: StepPool,
        calls: Sequence[PoolCall],
        faults: Sequence[FaultWords],
        turns: Turns,
        moves: Sequence[TurnMove],
        alive: object,
    ) -> None:
        copies = [[_line(part) for part in parts] for parts in (turns.slices, turns.rows)]
        lines = [[(one.even, one.odd, one.start, one.step) for one in moves], *copies]
        tables = [np.array(rows or [(0, 0, 0, 0)], np.int64) for rows in lines]
        self._keep = (tables, calls, alive)
        self._words = words = aligned_bytes(runtime.REPEAT_WORDS * 8).view("int64")
        words[[runtime.REPEAT_EVEN, runtime.REPEAT_ODD]] = [one.pointer for one in calls]
        words[runtime.REPEAT_NUMBER], words[runtime.REPEAT_ASKED] = turns.number, turns.asked
        for k, (table, rows) in enumerate(zip(tables, lines, strict=True)):
            words[runtime.REPEAT_TABLES + 2 * k] = table.ctypes.data
            words[runtime.REPEAT_TABLES + 2 * k + 1] = len(rows)
        words[runtime.REPEAT_BUDGET] = runtime.REPEAT_BUDGET_NS
        for k, one in enumerate(faults):
            words[runtime.REPEAT_FAULTS + k] = one.words.ctypes.data
        words[runtime.REPEAT_FAULT_COUNT] = len(faults[0])
        self._faults = faults if len(faults[0]) else ()
        self._run = pool.bind_repeat(words, calls)

    def run(
        self, most: int | None, look: Callable[[int], None] | None = None, first: int = 0
    ) -> int:
        """Run the turns; return how many were done, those before `first` among them.

        most: the most turns, None for no end; look: called now and then with the turns done
        first: the number of the turn to go on with
        Errors: RunError, if a kernel of a turn found wrong data; no other turn ran after that
        """
        words = self._words
        words[runtime.REPEAT_TURN], words[runtime.REPEAT_INSIDE] = first, 0
        words[runtime.REPEAT_MOST] = NO_END if most is None else most
        try:
            while self._run():
                if look is not None:
                    look(int(words[runtime.REPEAT_TURN]))
        except BaseException:
            for one in self._faults:
                one.clear()
            raise
        for one in self._faults:
            one.check()
        return int(words[runtime.REPEAT_TURN])


def _line(part: TurnPart) -> tuple[int, int, int, int]:
    return part.place, part.start, part.step, part.nbytes
