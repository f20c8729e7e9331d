"""A polymorphic program as one call that takes shape after shape: its tables are written anew.

The pointers and the steps of the table are laid out once. A shape writes the words that kernels
read, the numbers of chunks and the addresses in scratch memory. A run writes the addresses of the
inputs and outputs. Both are sums of arrays, so a longer program hardly takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.backend.device import Buffer, Done, Event, Executable
from trireme.devices.cpu.codegen.aligned_memory import address
from trireme.devices.cpu.codegen.jit import Jit
from trireme.devices.cpu.compile.bound_steps import POLL_S, TRY_S, WAKE_S
from trireme.devices.cpu.compile.executable import CpuExecutable
from trireme.devices.cpu.compile.polymorphic import PolymorphicProgram, program_at
from trireme.devices.cpu.compile.program import ReferenceStep
from trireme.devices.cpu.compile.resizing import CpuTables, Resizer
from trireme.devices.cpu.kernels.lowering import CONSTANTS, At, InPlace, KernelFault, Operand, Temp
from trireme.devices.cpu.kernels.polymorphic.step import PolymorphicStep
from trireme.devices.cpu.runtime import native as runtime
from trireme.devices.cpu.runtime.pool import PoolCall, StepPool
from trireme.devices.cpu.runtime.server import ServedCall, Server, Stamped
from trireme.ir.decided import DecidedValues
from trireme.ir.dim_values import Numbers
from trireme.ir.graph import Graph
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError, RunError

_LEARNT = [runtime.CALL_RUNS, runtime.CALL_WITH, runtime.CALL_ALONE]


class _PointerPlaces:
    """Those pointers of a table that one array of addresses decides."""

    def __init__(self) -> None:
        self._at: list[int] = []
        self._of: list[int] = []
        self._beyond: list[int] = []

    def add(self, at: int, of: int, beyond: int) -> None:
        """Have pointer `at` be address `of`, and some bytes beyond it."""
        self._at.append(at)
        self._of.append(of)
        self._beyond.append(beyond)

    def finish(self) -> None:
        """Be ready for `write`."""
        self.at = np.array(self._at, np.int64)
        self.of, self.beyond = np.array(self._of, np.int64), np.array(self._beyond, np.int64)

    def write(self, pointers: Array, addresses: Array) -> None:
        """Write the pointers."""
        if len(self.at):
            pointers[self.at] = addresses[self.of] + self.beyond


class CpuResizable:
    """A ResizableCall: one table of steps for one caller at a time."""

    def __init__(
        self,
        program: PolymorphicProgram,
        jit: Jit,
        pool: StepPool,
        server: Server | None,
        contents: DecidedValues,
    ) -> None:
        self._program, self._pool, self._jit = program, pool, jit
        self._steps = [s for s in program.steps if isinstance(s, PolymorphicStep)]
        self.resizer = Resizer(program, self._steps, contents)
        graph = program.graph
        self._arguments = {v: k for k, v in enumerate((*graph.inputs, *graph.outputs))}
        self._slot_of = {m: k for k, slot in enumerate(program.slots) for m in slot.members}
        self._in_scratch, self._in_arguments = _PointerPlaces(), _PointerPlaces()
        self._decided = _PointerPlaces()
        self._faults: list[KernelFault] = []
        self._wrong = np.zeros((1, 2), np.int64)
        self._pointers = self._starts = self._words = np.zeros(0, np.int64)
        self._array_places: list[list[int]] = []
        self._layout: tuple[Numbers, Numbers] | None = None
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
        self._now: tuple[CpuTables, Buffer | None] | None = None
        self._octave = 0
        self._learnt: dict[int, Array] = {}

    def _lay(self, tables: CpuTables) -> None:
        """Lay out the pointers of all steps; those that stay are written.

        tables: of any shape that has as many words and arrays
        """
        self._layout = None
        self._in_scratch, self._in_arguments = _PointerPlaces(), _PointerPlaces()
        self._decided, self._array_places = _PointerPlaces(), []
        faults = [o for s in self._steps for o in s.reads if isinstance(o, KernelFault)]
        self._faults = faults
        self._wrong = np.zeros((max(len(faults), 1), 2), np.int64)
        pointers: list[int] = []
        starts = []
        counts = [len(arrays) for arrays in tables.arrays] or [0] * len(self._steps)
        for step, count in zip(self._steps, counts, strict=True):
            starts.append(len(pointers))
            self._array_places.append(list(range(len(pointers) + 1, len(pointers) + 1 + count)))
            pointers += [0] * (1 + count)  # the words and arrays of a shape
            for operand in (*step.reads, *step.writes):
                pointers.append(self._address(operand, len(pointers), 0))
        self._pointers = np.array(pointers or [0], np.int64)
        self._starts = np.array(starts, np.int64)
        self._words = np.zeros(len(tables.words), np.int64)
        lengths = tables.layout[0]
        word_at = (np.cumsum(lengths, dtype=np.int64) - lengths)[self.resizer.group_of]
        self._pointers[self._starts] = self._words.ctypes.data + 8 * word_at
        self._table[:, runtime.STEP_ARGS] = self._pointers.ctypes.data + 8 * self._starts
        for places in (self._in_scratch, self._in_arguments, self._decided):
            places.finish()
        self._layout = tables.layout

    def _address(self, operand: Operand, at: int, beyond: int) -> int:
        """Return the address of an operand, 0 where it is written later."""
        if isinstance(operand, At):
            return self._address(operand.of, at, beyond + operand.offset)
        if isinstance(operand, CONSTANTS):
            where: int = self._program.constants[id(operand)].ctypes.data
            return where + beyond
        if isinstance(operand, InPlace):
            return int(operand.data.ctypes.data) + beyond
        if isinstance(operand, KernelFault):
            return int(self._wrong[self._faults.index(operand)].ctypes.data)
        if isinstance(operand, Temp):
            self._in_scratch.add(at, self._slot_of[operand.key], beyond)
            return 0
        if not isinstance(operand, int):
            raise InternalError(f"cpu: an operand is a {type(operand).__name__}")
        if operand in self.resizer.decided:
            self._decided.add(at, self.resizer.decided.index(operand), beyond)
            return 0
        home = self._program.buffer_aliases[operand]
        if home in self._arguments:
            self._in_arguments.add(at, self._arguments[home], beyond)
        else:
            self._in_scratch.add(at, self._slot_of[home], beyond)
        return 0

    def tables(self, sizes: Numbers) -> CpuTables:
        """Return what a shape decides; see `ResizableCall.tables`."""
        return self.resizer.at(sizes)

    def run(self, tables: CpuTables, scratch: Buffer | None, places: Sequence[int]) -> None:
        """Run the program; see `ResizableCall.run`."""
        if self._now is None or self._now[0] is not tables or self._now[1] is not scratch:
            self._load(tables, scratch)
        self._in_arguments.write(self._pointers, np.array(places, np.int64))
        self._run()
        if self._faults and self._wrong.any():
            self._raise()

    def _load(self, tables: CpuTables, scratch: Buffer | None) -> None:
        """Write the tables of a shape."""
        self._now = None  # an interrupt leaves tables that nobody takes for a shape's
        if self._layout != tables.layout:
            self._lay(tables)
        self._words[:] = tables.words
        if scratch is not None:
            self._in_scratch.write(self._pointers, tables.offsets + address(scratch))
        for places, arrays in zip(self._array_places, tables.arrays, strict=False):
            self._pointers[places] = [array.ctypes.data for array in arrays]
        self._kept = self.resizer.decided_at(tables)
        if self._kept:
            addresses = [array.ctypes.data for array in self._kept]
            self._decided.write(self._pointers, np.array(addresses, np.int64))
        self._pool.reserve(tables.local_bytes)
        self._put_steps(tables)
        self._now = tables, scratch

    def _put_steps(self, tables: CpuTables) -> None:
        table, chunks, seconds = self._table, tables.chunks, tables.seconds
        table[:, runtime.STEP_CHUNKS] = chunks
        table[:, runtime.STEP_FN] = self._code[np.arange(len(chunks)), tables.variants]
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
        return self.call.pointer if self._pool.ready else 0

    def stamped(self) -> Stamped:
        """Return nothing to stamp: profiles are of the executables of one shape."""
        return 0, lambda: tuple

    def _raise(self) -> None:
        """Raise what the kernels found wrong; their results mean nothing then."""
        for fault, words in zip(self._faults, self._wrong, strict=True):
            wrong, number = words.tolist()
            if wrong:
                self._wrong[:] = 0
                raise RunError(fault.message(number))


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


class CpuPolymorphic:
    """A region compiled for every shape: a ResizableExecutable."""

    def __init__(
        self, program: PolymorphicProgram, jit: Jit, pool: StepPool, server: Server | None
    ) -> None:
        self._program, self._jit, self._pool, self._server = program, jit, pool, server
        self.constant_bytes = sum(array.nbytes for array in program.constants.values())

    def at(self, graph: Graph) -> Executable:
        """Return the executable of one shape."""
        program = program_at(self._program, graph)
        return CpuExecutable(program, self._jit, self._pool, self._server)

    def resizable(self, contents: DecidedValues) -> CpuResizable | None:
        """Return a call that serves one shape after another; None where numpy runs a node."""
        if any(isinstance(step, ReferenceStep) for step in self._program.steps):
            return None
        return CpuResizable(self._program, self._jit, self._pool, self._server, contents)
