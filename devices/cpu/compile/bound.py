"""A program of one shape on memory: steps of the pool, and nodes of numpy between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count

import numpy as np

from trireme.backend.capabilities import TurnLoop, Turns
from trireme.backend.device import (
    HOST,
    BoundCall,
    Buffer,
    Done,
    Event,
    LazySpans,
    host_alloc,
    host_view,
)
from trireme.devices.cpu.codegen.aligned_memory import address
from trireme.devices.cpu.compile.bound_steps import NativeSteps, NumpyStep
from trireme.devices.cpu.compile.program import faults_of
from trireme.devices.cpu.compile.region import RegionProgram
from trireme.devices.cpu.kernels.lowering import (
    CONSTANTS,
    At,
    Extents,
    InPlace,
    KernelFault,
    Operand,
    StateMemory,
    Step,
    Temp,
)
from trireme.devices.cpu.runtime.fault_words import FaultWords
from trireme.devices.cpu.runtime.pool import StepPool
from trireme.devices.cpu.runtime.repeat import NativeRepeat, TurnMove
from trireme.devices.cpu.runtime.server import Stamped
from trireme.ir.graph import Node
from trireme.ir.interpreter import evaluator
from trireme.support.cancel import check_cancelled
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError


class Bound:
    """A program on memory: tables of steps and pointers, and closures for reference steps."""

    def __init__(
        self,
        program: RegionProgram,
        code: Sequence[int],
        pool: StepPool,
        args: Sequence[Buffer],
        scratch: Buffer | None,
        states: Mapping[str, Array],
    ) -> None:
        self._program, self._code, self._pool = program, code, pool
        self._keep = (args, scratch)
        self._states = states
        graph = program.graph
        views = program.states.views
        self._buffers = {value: _buffer_of(states[name]) for value, name in views.items()}
        self._fixed: set[int] = set()
        self._faults = FaultWords([one.message for one in faults_of(program.items)])
        self._fault_numbers = count()
        again = []  # outputs that are inputs, constants or listed twice
        for value, buffer in zip((*graph.inputs, *graph.outputs), args, strict=True):
            if value in self._buffers or graph.values[value].is_constant:
                again.append((value, buffer))
                self._fixed.add(value)
            else:
                self._buffers[value] = buffer
        self._parts = list(self._segments())
        self._copies = [self._copy(value, buffer) for value, buffer in again]
        calls = [part.run for part in self._parts] + self._copies
        run = calls[0] if len(calls) == 1 else _in_order(calls)
        checked = partial(self._faults.run, run)
        self.run: Callable[[], None] = checked if len(self._faults) else run
        sole = self._parts[0] if len(calls) == 1 else None
        self._sole = sole if isinstance(sole, NativeSteps) else None

    def pointer(self) -> int:
        """Return the call that native code may run by itself, 0 while or where it needs Python."""
        steps = self._without_python()
        return 0 if steps is None else steps.call.pointer

    def stamped(self) -> Stamped:
        """Return the same of a call that notes when each step ran, and what tells it then."""
        steps = self._without_python()
        return (0, None) if steps is None else steps.stamped()

    def _without_python(self) -> NativeSteps | None:
        """Return all steps where native code may run them by itself now."""
        sole = self._sole
        if sole is None or len(self._faults) or not self._pool.can_run(sole.call):
            return None
        return sole

    def launch(self, profile: bool = False) -> Event:
        """Run the program; it is complete when this returns."""
        if profile:
            return Done(self._profiled())
        self.run()
        return _DONE

    def use_single_thread(self, alone: bool | None) -> bool:
        """Let further runs be done without the workers, or with them; None: whichever is faster.

        Whether the call has the choice; if not, nothing changes.
        """
        chosen = [
            part.use_single_thread(alone) for part in self._parts if isinstance(part, NativeSteps)
        ]
        return any(chosen)

    def set_idle(self, sleeps: bool = True) -> None:
        """Let workers sleep as soon as a run is over, as another device then needs their cores."""
        for part in self._parts:
            if isinstance(part, NativeSteps):
                part.set_idle(sleeps)

    def rebind(self, argument: int) -> Callable[[int], None] | None:
        """Return a function that moves an argument to another address; None where it must stay."""
        graph = self._program.graph
        value = (*graph.inputs, *graph.outputs)[argument]
        if value in self._fixed:
            return None
        native = [part for part in self._parts if isinstance(part, NativeSteps)]
        places = [(part.pointers, k, at) for part in native for k, at in part.uses(value)]

        def move(to: int) -> None:
            for pointers, k, offset in places:
                pointers[k] = to + offset

        return move

    def repeated(self, odd: BoundCall, turns: Turns, profile: bool = False) -> TurnLoop | None:
        """Return what runs this call in even turns and `odd` in odd ones, inside native code.

        None where a node runs on numpy, or workers sleep in Python.
        """
        if self._sole is None or not isinstance(odd, Bound) or odd._sole is None:
            return None
        if not self._pool.can_repeat:
            return None
        graph = self._program.graph
        values = (*graph.inputs, *graph.outputs)
        moving, copying = turns.divided(lambda part: values[part.argument] not in self._fixed)
        moves = [
            TurnMove(even, odd_, part.start + offset, part.step)
            for part in moving
            for (even, offset), (odd_, _) in zip(
                self._sole.slots(values[part.argument]),
                odd._sole.slots(values[part.argument]),
                strict=True,
            )
        ]
        calls = [one.call_of(profile) for one in (self._sole, odd._sole)]
        faults = (self._faults, odd._faults)
        return NativeRepeat(self._pool, calls, faults, copying, moves, (self, odd))

    def turn_spans(self) -> LazySpans:
        """Return what tells when each step of the last turn ran."""
        return self._sole.node_spans() if self._sole is not None else tuple

    def _profiled(self) -> LazySpans:
        """Run, and return what tells when each step ran."""
        parts: list[LazySpans] = []

        def run() -> None:
            parts.extend(part.profile() for part in self._parts)
            for call in self._copies:
                call()

        self._faults.run(run)
        return lambda: [span for told in parts for span in told()]

    def _copy(self, value: int, target: Buffer) -> Callable[[], None]:
        source, place = self._array(value), host_view(target, self._program.graph.type(value))

        def call() -> None:
            place[...] = source

        return call

    def _segments(self) -> Iterable[NativeSteps | NumpyStep]:
        """Yield runs of native steps and single reference steps, in order."""
        native: list[tuple[Step, int]] = []
        code = iter(self._code)
        for item in self._program.items:
            if isinstance(item, Step):
                native.append((item, next(code)))
                continue
            if native:
                yield self._native(native)
                native = []
            yield self._reference(item.node)
        if native:
            yield self._native(native)

    def _native(self, steps: Sequence[tuple[Step, int]]) -> NativeSteps:
        """Return steps on their places, but for copies to where they come from."""
        steps = [one for one in steps if not self._is_in_place(one[0])]
        operands = [(*step.reads, *step.writes) for step, _ in steps]
        owners = [self._owner(o) for row in operands for o in row]
        pointers = [[self._address(o) for o in row] for row in operands]
        return NativeSteps(self._pool, steps, pointers, owners, (self._program, self._keep))

    def _is_in_place(self, step: Step) -> bool:
        """Whether a step copies a value to where it is; then its two ends do not move."""
        if not step.is_copy or {*map(self._address, (*step.reads, *step.writes))} != {
            self._address(step.writes[0])
        }:
            return False
        ends = map(self._owner, (*step.reads, *step.writes))
        self._fixed |= {owner[0] for owner in ends if owner is not None}
        return True

    def _owner(self, operand: Operand) -> tuple[int, int] | None:
        """Return the value in whose memory an operand is, and how far in; None: in no value's."""
        of, offset = (operand.of, operand.offset) if isinstance(operand, At) else (operand, 0)
        return (self._program.buffer_aliases[of], offset) if isinstance(of, int) else None

    def _reference(self, node: Node) -> NumpyStep:
        graph = self._program.graph
        self._fixed |= {
            self._program.buffer_aliases[value] for value in (*node.used, *node.outputs)
        }
        inputs = [None if i is None else self._array(i) for i in node.inputs]
        outputs = [self._array(i) for i in node.outputs]
        evaluate = evaluator(graph, node)

        def call() -> None:
            with np.errstate(all="ignore"):
                results = evaluate(inputs)
            for out, result in zip(outputs, results, strict=True):
                out[...] = result

        return NumpyStep(node.id, call)

    def _buffer(self, value: int) -> Buffer:
        home = self._program.buffer_aliases[value]
        if home in self._buffers:
            return self._buffers[home]
        scratch, nbytes = self._keep[1], self._program.graph.type(home).nbytes
        if scratch is not None:
            return scratch.at(self._program.offsets[home], nbytes)
        if nbytes:
            raise InternalError(f"cpu: %{value} has no memory")
        return host_alloc(nbytes)

    def _array(self, value: int) -> Array:
        constant = self._program.graph.values[value].data
        if constant is not None:
            return constant
        return host_view(self._buffer(value), self._program.graph.type(value))

    def _address(self, operand: Operand) -> int:
        if isinstance(operand, CONSTANTS):
            where: int = self._program.constants[id(operand)].ctypes.data
            return where
        if isinstance(operand, InPlace):
            return operand.data.ctypes.data
        if isinstance(operand, StateMemory):
            return self._states[operand.state].ctypes.data
        if isinstance(operand, Extents):
            return operand.words.ctypes.data + 8 * operand.at
        if isinstance(operand, At):
            return self._address(operand.of) + operand.offset
        if isinstance(operand, KernelFault):
            return int(self._faults.words[next(self._fault_numbers)].ctypes.data)
        if isinstance(operand, Temp):
            scratch = self._keep[1]
            if scratch is None:
                raise InternalError(f"cpu: temp {operand.key} has no memory")
            return address(scratch) + self._program.offsets[operand.key]
        if isinstance(operand, int):
            return address(self._buffer(operand))
        raise InternalError(f"cpu: an operand is a {type(operand).__name__}")


def _buffer_of(array: Array) -> Buffer:
    return Buffer(HOST, array.reshape(-1).view(np.uint8), 0, array.nbytes)


def _in_order(calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for call in calls:
            check_cancelled()
            call()

    return run


_DONE = Done()
