"""A program for every shape as one call that takes shape after shape: its tables change in place.

The pointers and the steps of the table are laid out once. A shape writes what differs from the
shape before: words that kernels read, numbers of chunks, addresses in scratch memory. A run writes
the addresses of inputs and outputs that moved. A decoder has a new shape for every token and all
caches full of weights, so each line of Python that is saved here counts twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from trireme.backend.capabilities import TurnLoop, Turns
from trireme.backend.device import Buffer, Done, Event
from trireme.devices.cpu.codegen.jit import Jit
from trireme.devices.cpu.compile.alike_steps import (
    ARRAYS,
    CHUNKS,
    LITTLE_S,
    SECONDS,
    VARIANT,
    WORDS,
    RowsByTurn,
    SizedRow,
)
from trireme.devices.cpu.compile.expected_shapes import ExpectedShapes
from trireme.devices.cpu.compile.native_turns import NativeTurns, TurnCall, steps_of_turns
from trireme.devices.cpu.compile.program import faults_of
from trireme.devices.cpu.compile.region import RegionProgram
from trireme.devices.cpu.compile.resizing import CpuTables, Resizer
from trireme.devices.cpu.compile.step_layout import PointerPlaces, StepLayout
from trireme.devices.cpu.compile.turn_tables import TurnTables, turn_tables
from trireme.devices.cpu.kernels.lowering import (
    CONSTANTS,
    At,
    InPlace,
    KernelFault,
    Operand,
    Temp,
)
from trireme.devices.cpu.runtime import native as runtime
from trireme.devices.cpu.runtime.fault_words import FaultWords
from trireme.devices.cpu.runtime.pool import PoolCall, StepPool
from trireme.devices.cpu.runtime.server import ServedCall, Server, Stamped
from trireme.devices.cpu.runtime.step_rows import POLL_S, TRY_S, WAKE_S
from trireme.ir.decided import DecidedValues
from trireme.ir.dim_values import Numbers
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError

_LEARNT = [runtime.CALL_RUNS, runtime.CALL_WITH, runtime.CALL_ALONE]


class CpuResizable:
    """A ResizableCall: one table of steps for one caller at a time.

    resizer: that of a call beside this one, which sizes the same steps; new when None
    """

    def __init__(
        self,
        program: RegionProgram,
        jit: Jit,
        pool: StepPool,
        server: Server | None,
        contents: DecidedValues,
        resizer: Resizer | None = None,
    ) -> None:
        self._made_of = program, jit, pool, server, contents
        self._program, self._pool, self._jit = program, pool, jit
        self._steps = program.steps
        self._faults = faults_of(self._steps)
        self.resizer = resizer or Resizer(program, self._steps, contents)
        self._shapes = ExpectedShapes(self.resizer)
        graph = program.graph
        self._arguments = {v: k for k, v in enumerate((*graph.inputs, *graph.outputs))}
        self._slot_of = {m: k for k, slot in enumerate(program.slots) for m in slot.members}
        self._layout: StepLayout | None = None
        found = jit.addresses(list(program.codes))
        most = max((len(step.codes) for step in self._steps), default=1)
        self._code = np.zeros((len(self._steps), most), np.int64)
        for k, step in enumerate(self._steps):
            self._code[k, : len(step.codes)] = [found[code.symbol] for code in step.codes]
        self._table = np.zeros((len(self._steps), runtime.STEP_WORDS), np.int64)
        self.call = PoolCall(
            self._table,
            shared=False,
            wakes=False,
            tries=False,
            polls=False,
            alive=program,
        )
        self._run = self._native = pool.bind(self.call)
        if server is not None:
            served = ServedCall(self, server, self.pointer, self.stamped)
            self._run = lambda: served.launch().wait()
        self._tables: CpuTables | None = None
        self._scratch: Buffer | None = None
        self._local_bytes = 0
        self._octave = 0
        self._learnt: dict[int, Array] = {}

    def _laid(self, rows: Sequence[SizedRow]) -> StepLayout:
        """Return the pointers and words of steps; those that stay are written.

        rows: of any shape that has as many words and arrays
        """
        group_of = self.resizer.group_of.tolist()
        lengths = [len(row[WORDS]) for row in rows]
        layout = StepLayout(
            list(rows),
            np.zeros(0, np.int64),
            np.zeros(max(sum(lengths), 1), np.int64),
            [0, *accumulate(lengths)][: len(rows)],
            [[] for _ in rows],
            PointerPlaces(len(self._program.slots)),
            PointerPlaces(len(self._arguments)),
            PointerPlaces(len(self.resizer.decided)),
            FaultWords([one.message for one in self._faults]),
            [row[SECONDS] for row in rows],
            self.resizer.below,
        )
        pointers: list[int] = []
        starts = []
        for step, group in zip(self._steps, group_of, strict=True):
            starts.append(len(pointers))
            pointers.append(layout.words.ctypes.data + 8 * layout.word_at[group])
            count = len(rows[group][ARRAYS])
            if count:
                layout.array_places[group].append([len(pointers) + k for k in range(count)])
            pointers += [0] * count
            for operand in (*step.reads, *step.writes):
                pointers.append(self._address(layout, operand, len(pointers), 0))
        layout.pointers = np.array(pointers or [0], np.int64)
        layout.pointer_view = layout.pointers.data
        self._table[:, runtime.STEP_ARGS] = layout.pointers.ctypes.data + 8 * np.array(
            starts, np.int64
        )
        for group, row in enumerate(rows):
            layout.put_row(group, row)
        return layout

    def _address(self, layout: StepLayout, operand: Operand, at: int, beyond: int) -> int:
        """Return the address of an operand, 0 where it is written later."""
        if isinstance(operand, At):
            return self._address(layout, operand.of, at, beyond + operand.offset)
        if isinstance(operand, CONSTANTS):
            where: int = self._program.constants[id(operand)].ctypes.data
            return where + beyond
        if isinstance(operand, InPlace):
            return int(operand.data.ctypes.data) + beyond
        if isinstance(operand, KernelFault):
            return int(layout.faults.words[self._faults.index(operand)].ctypes.data)
        if isinstance(operand, Temp):
            layout.scratch.add(at, self._slot_of[operand.key], beyond)
            return 0
        if not isinstance(operand, int):
            raise InternalError(f"cpu: an operand is a {type(operand).__name__}")
        if operand in self.resizer.decided:
            layout.decided.add(at, self.resizer.decided.index(operand), beyond)
            return 0
        home = self._program.buffer_aliases[operand]
        if home in self._arguments:
            layout.arguments.add(at, self._arguments[home], beyond)
        else:
            layout.scratch.add(at, self._slot_of[home], beyond)
        return 0

    def tables(self, sizes: Numbers) -> CpuTables:
        """Return what a shape decides; see `ResizableCall.tables`."""
        return self._shapes.at(sizes)

    def beside(self) -> CpuResizable:
        """Return a call for another caller; see `ResizableCall.beside`."""
        return CpuResizable(*self._made_of, self.resizer)

    def turn_tables(self, sizes: Numbers, growth: Numbers, count: int) -> TurnTables:
        """Return what the turns of a loop decide; see `GrowingCall.turn_tables`."""
        return turn_tables(self.resizer, sizes, growth, count)

    def repeated(
        self,
        tables: TurnTables,
        scratch: Buffer | None,
        places: Sequence[Sequence[int]],
        turns: Turns,
        first: int,
    ) -> TurnLoop | None:
        """Return what runs turns inside native code; see `GrowingCall.repeated`."""
        if not self._pool.can_repeat:
            return None
        calls = [self.beside().turn_call(tables, scratch, where) for where in places]
        return NativeTurns(self._pool, calls, tables, turns, first)

    def turn_call(
        self, tables: TurnTables, scratch: Buffer | None, places: Sequence[int]
    ) -> TurnCall:
        """Return this call on some places, for turns; nothing else may run it."""
        layout = self._load(tables.tables, scratch)
        layout.arguments.write(layout.pointer_view, places)
        steps = steps_of_turns(self._table, self._code, self.resizer.group_of, tables)
        return TurnCall(layout, self.call, steps, self)

    def run(self, tables: CpuTables, scratch: Buffer | None, places: Sequence[int]) -> None:
        """Run the program; see `ResizableCall.run`."""
        layout = self._layout
        if layout is None or self._tables is not tables or self._scratch is not scratch:
            layout = self._load(tables, scratch)
        layout.arguments.write(layout.pointer_view, places)
        layout.faults.run(self._run)

    def _load(self, tables: CpuTables, scratch: Buffer | None) -> StepLayout:
        """Write what a shape decides, as far as it is other than that of the shape before."""
        layout, self._layout = self._layout, None  # an interrupt leaves tables that nobody takes
        block = tables.block
        if block is not None and layout is not None and self._continues(block, layout, scratch):
            layout.put_words(block.words[tables.turn])
            layout.put_decided(self.resizer.decided_of(tables.sizes))
            self._layout, self._tables = layout, tables
            return layout
        rows = tables.rows if block is None else block.rows(tables.turn)
        before = [] if layout is None else layout.rows
        others = [k for k, now in enumerate(before) if rows[k] is not now]
        if layout is None or not layout.fits(rows, others):
            layout = self._laid(rows)
            self._put_steps(layout)
        else:
            is_other = False
            for k in others:
                is_other |= _runs_otherwise(rows[k], before[k], layout.seconds[k])
                layout.put_row(k, rows[k])
            if is_other:
                self._put_steps(layout)
        if scratch is not None:
            layout.put_scratch(tables.room, scratch)
        layout.put_decided(self.resizer.decided_at(tables))
        if tables.local_bytes > self._local_bytes:
            self._pool.reserve(tables.local_bytes)
            self._local_bytes = tables.local_bytes
        layout.block = block
        self._layout, self._tables, self._scratch = layout, tables, scratch
        return layout

    def _continues(self, block: RowsByTurn, layout: StepLayout, scratch: Buffer | None) -> bool:
        """Whether a shape of a block comes after another one of it, on the same memory."""
        return layout.block is block and self._scratch is scratch

    def _put_steps(self, layout: StepLayout) -> None:
        """Write which code does how many chunks, and what the estimated times decide."""
        rows, group_of, table = layout.rows, self.resizer.group_of, self._table
        layout.seconds = [row[SECONDS] for row in rows]
        chunks = np.array([row[CHUNKS] for row in rows], np.int64)[group_of]
        variants = np.array([row[VARIANT] for row in rows], np.int64)[group_of]
        seconds = np.array(layout.seconds)[group_of]
        table[:, runtime.STEP_CHUNKS] = chunks
        table[:, runtime.STEP_FN] = self._code[np.arange(len(chunks)), variants]
        since = np.cumsum(seconds) // POLL_S
        table[:, runtime.STEP_POLL] = np.diff(since, prepend=0.0) > 0
        if chunks.size and not 0 < chunks.min() <= chunks.max() <= runtime.MOST_CHUNKS:
            table = _cut(table)
        shared_s = float(seconds[chunks > 1].sum())
        octave = int(shared_s * 1e9).bit_length()
        words = self.call.words
        if octave != self._octave:  # runs of unlike length learn by themselves
            self._learnt[self._octave] = words[_LEARNT]
            words[_LEARNT] = self._learnt.get(octave, 0)
            self._octave = octave
        self.call.put_steps(
            table,
            shared=shared_s > 0,
            wakes=shared_s > WAKE_S,
            tries=shared_s < TRY_S and self._pool.threads > 1,
            polls=bool(table[:, runtime.STEP_POLL].any()),
        )

    def launch(self, profile: bool = False) -> Event:
        """Run what the tables say, for the thread of an instance."""
        self._native()
        return Done()

    def pointer(self) -> int:
        """Return the call that native code may run by itself, 0 while it needs Python."""
        return self.call.pointer if self._pool.can_run(self.call) else 0

    def stamped(self) -> Stamped:
        """Return nothing to stamp: profiles are of the executables of one shape."""
        return 0, lambda: tuple


def _runs_otherwise(row: SizedRow, now: SizedRow, seconds: float) -> bool:
    """Whether a group of steps has other code or chunks now, or takes much longer or shorter.

    seconds: those that decided how the steps run
    """
    if row[CHUNKS] != now[CHUNKS] or row[VARIANT] != now[VARIANT]:
        return True
    return abs(row[SECONDS] - seconds) > seconds / 4 + LITTLE_S


def _cut(table: Array) -> Array:
    """Return a table whose steps of too many chunks are several rows, and of none no row."""
    most = runtime.MOST_CHUNKS
    parts = -(-table[:, runtime.STEP_CHUNKS] // most)
    made = np.repeat(table, parts, axis=0)
    first = np.repeat(np.cumsum(parts) - parts, parts)
    made[:, runtime.STEP_BASE] = (np.arange(len(made)) - first) * most
    left = made[:, runtime.STEP_CHUNKS] - made[:, runtime.STEP_BASE]
    made[:, runtime.STEP_CHUNKS] = np.minimum(left, most)
    return made
