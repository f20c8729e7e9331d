"""Turns of a loop on shapes that grow, inside native code.

Two calls of one open program run by turns. What a turn's sizes decide lies ready in tables: its
words are copied to where kernels read them, and each call is pointed at its steps of the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trireme.backend.capabilities import TurnPart, Turns
from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.devices.cpu.compile.step_layout import StepLayout
from trireme.devices.cpu.compile.turn_tables import TurnTables
from trireme.devices.cpu.runtime import native as runtime
from trireme.devices.cpu.runtime.pool import PoolCall, StepPool
from trireme.devices.cpu.runtime.repeat import NativeRepeat, TurnMove
from trireme.devices.cpu.runtime.step_rows import POLL_S
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError

_LINE = 64


@dataclass(frozen=True)
class TurnCall:
    """The call of even or of odd turns.

    steps: the table of its steps in each turn; None where all turns have the same
    alive: what its pointers point to
    """

    layout: StepLayout
    call: PoolCall
    steps: Array | None
    alive: object

    def slots(self, argument: int) -> list[tuple[int, int]]:
        """Return the addresses of the pointers to an argument, and how far beyond it each is."""
        table = self.layout.pointers.ctypes.data
        return [(table + 8 * at, beyond) for at, beyond in self.layout.arguments.ends(argument)]

    def decided_slots(self, number: int) -> list[tuple[int, int]]:
        """Return the addresses of the pointers to an operand that shapes decide; as `slots`."""
        table = self.layout.pointers.ctypes.data
        return [(table + 8 * at, beyond) for at, beyond in self.layout.decided.ends(number)]


def steps_of_turns(table: Array, code: Array, group_of: Array, tables: TurnTables) -> Array | None:
    """Return a call's table of steps in each turn; None where all turns have the same.

    table: its rows; code: of each step, the addresses of its variants
    Errors: CompileError, if a step has no chunk, or more than one row of a table may have
    """
    chunks = tables.chunks[:, group_of]
    if chunks.size and not 0 < chunks.min() <= chunks.max() <= runtime.MOST_CHUNKS:
        raise CompileError("a step of a turn has no chunks, or too many")
    made = np.repeat(table[None], tables.count, axis=0)
    made[:, :, runtime.STEP_FN] = code[np.arange(len(group_of)), tables.variants[:, group_of]]
    made[:, :, runtime.STEP_CHUNKS] = chunks
    since = np.cumsum(tables.seconds[:, group_of], axis=1) // POLL_S
    made[:, :, runtime.STEP_POLL] = np.diff(since, prepend=0.0) > 0
    return None if (made == made[0]).all() and (made[0] == table).all() else made


class NativeTurns:
    """Turns whose shapes grow: a TurnLoop.

    calls: of even and of odd turns, or one of all
    first: the number of the first turn that the tables serve
    """

    def __init__(
        self,
        pool: StepPool,
        calls: Sequence[TurnCall],
        tables: TurnTables,
        turns: Turns,
        first: int,
    ) -> None:
        even, odd = calls[0], calls[-1]
        moving, copying = turns.divided(lambda part: True)
        moves = [
            TurnMove(one, other, part.start + beyond, part.step)
            for part in moving
            for (one, beyond), (other, _) in zip(
                even.slots(part.argument), odd.slots(part.argument), strict=True
            )
        ]
        self._unused = np.zeros(1, np.int64)
        moves += self._step_moves(calls, first)
        decided = _decided_tables(tables)
        for number, table in decided.items():
            step = table.shape[1]
            start = table.ctypes.data - first * step
            pairs = zip(even.decided_slots(number), odd.decided_slots(number), strict=True)
            moves += [
                TurnMove(one, other, start + beyond, step) for (one, beyond), (other, _) in pairs
            ]
        nbytes = 8 * tables.words.shape[1]
        start = tables.words.ctypes.data - first * nbytes
        words = [
            TurnPart(-1, one.layout.words.ctypes.data, start, nbytes, nbytes)
            for one in calls[: 1 if even is odd else 2]
            if nbytes
        ]
        copying = replace(copying, slices=[*copying.slices, *words])
        alive = (calls, tables, decided, self._unused)
        faults = (even.layout.faults, odd.layout.faults)
        self._native = NativeRepeat(pool, (even.call, odd.call), faults, copying, moves, alive)

    def _step_moves(self, calls: Sequence[TurnCall], first: int) -> list[TurnMove]:
        """Return what points each call at its steps; the other call's turns write nowhere."""
        nowhere, moves = self._unused.ctypes.data, []
        for k, one in enumerate(calls):
            if one.steps is None:
                continue
            at = one.call.pointer + 8 * runtime.CALL_STEPS
            even, odd = (at, at) if len(calls) == 1 else (at, nowhere) if k == 0 else (nowhere, at)
            step = one.steps[0].nbytes
            moves.append(TurnMove(even, odd, one.steps.ctypes.data - first * step, step))
        return moves

    def run(
        self, most: int | None, look: Callable[[int], None] | None = None, first: int = 0
    ) -> int:
        """Run turns; see TurnLoop."""
        return self._native.run(most, look, first)


def _decided_tables(tables: TurnTables) -> dict[int, Array]:
    """Return the operands that shapes decide and that change, as bytes of each turn."""
    made = {}
    for number, arrays in enumerate(tables.decided):
        if arrays is None:
            continue
        room = -(-max(array.nbytes for array in arrays) // _LINE) * _LINE
        table = aligned_bytes(max(room, _LINE) * len(arrays)).reshape(len(arrays), -1)
        for row, array in zip(table, arrays, strict=True):
            row[: array.nbytes] = array.reshape(-1).view(np.uint8)
        made[number] = table
    return made
