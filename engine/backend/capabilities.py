"""Optional capabilities of calls, events and devices: each is a protocol declared here.

A call has a capability if it has the protocol's method. The functions at the end give the answer
for calls without the capability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from trireme.backend.device import BoundCall, Buffer, Device, Event, Executable, LazySpans
from trireme.ir.decided import DecidedValues
from trireme.ir.effects import States
from trireme.ir.graph import Graph, Node
from trireme.support.records import dataclass

Rebind = Callable[[int], None]
"""Moves one argument of a call to another address, for the launches that follow."""


@runtime_checkable
class DirectCall(Protocol):
    """A call that can run without an event, for work of some microseconds."""

    def run(self) -> None:
        """Do the same as `launch().wait()`."""


@runtime_checkable
class RebindableCall(Protocol):
    """A call whose inputs and outputs in host memory can be moved."""

    def rebind(self, argument: int) -> Rebind | None:
        """Return a function that moves an argument, counted as in `bind`; None where it
        must stay.
        """


@runtime_checkable
class ThreadedCall(Protocol):
    """A call that can run on one thread or on all threads of its device."""

    def use_single_thread(self, alone: bool | None) -> bool:
        """Let further launches run on one thread (True) or on all (False).

        None lets the device find the faster choice. Return whether there is a choice.
        """


@runtime_checkable
class IdlingCall(Protocol):
    """A call of a device whose threads look for more work for a while after a launch."""

    def set_idle(self, sleeps: bool) -> None:
        """Let idle threads sleep right after a launch (True), or look for work for a while (False).

        True suits runs in which another device then needs the cores.
        """


@runtime_checkable
class SimulatedCall(Protocol):
    """A call of a simulator, which can restore an earlier result instead of simulating again."""

    def repeat(self, repeats: bool) -> None:
        """Let later launches restore the next launch's result (True), or simulate always (False).

        True is for runs with the same inputs.
        """


@runtime_checkable
class QueuedCall(Protocol):
    """A call that its device starts by itself, once events of the same driver queue are over.

    driver_queue: the common queue of calls and events, compared by identity: a driver's context.
        Calls of one device or link and one driver queue run in launch order. None: the call is not
        queued
    """

    driver_queue: object

    def launch(self, profile: bool = False, after: Sequence[Event] = ()) -> Event:
        """Return without waiting; the work starts when `after` is over.

        after: QueuedEvents of this driver queue
        """


@runtime_checkable
class QueuedEvent(Protocol):
    """An event of a driver queue: calls and copies of the queue can start behind it.

    driver_event: the driver's own event; an event that wraps another has that one's
    """

    driver_event: object


@runtime_checkable
class TimedEvent(Protocol):
    """An event that a caller need not wait for to the end."""

    def wait_for(self, most_s: float) -> bool:
        """Return True when the launch is complete, and raise its errors; False after so many
        seconds, while it may go on.
        """


MOVED_BYTES = 256
"""Slices and rows of turns below which copying is as fast as moving a pointer."""


@dataclass(frozen=True)
class TurnPart:
    """The part of an array that an iteration reads or writes: the bytes at start + turn * step.

    argument: of the call, counted as in `bind`; place: the address that the argument is bound to
    """

    argument: int
    place: int
    start: int
    step: int
    nbytes: int


@dataclass(frozen=True)
class Turns:
    """The memory and addresses that iterations need beside the calls.

    number: the address at which an int64 is to be the turn; asked: the address of the byte that
        says after a turn whether there is another; 0 where there is none
    slices, rows: what turns read and write of larger arrays
    """

    number: int
    asked: int
    slices: Sequence[TurnPart]
    rows: Sequence[TurnPart]

    def divided(self, can_move: Callable[[TurnPart], bool]) -> tuple[list[TurnPart], Turns]:
        """Return the parts that calls are pointed at, and the turns with the parts to copy.

        Kernels expect operands at multiples of 16 bytes; a small part is copied as fast.
        """
        moving = [
            part
            for part in (*self.slices, *self.rows)
            if part.nbytes >= MOVED_BYTES
            and not part.start % 16
            and not part.step % 16
            and can_move(part)
        ]
        slices, rows = (
            [part for part in parts if part not in moving] for parts in (self.slices, self.rows)
        )
        return moving, Turns(self.number, self.asked, slices, rows)


class TurnLoop(Protocol):
    """Two calls that a device runs by turns, without Python between them."""

    def run(
        self, most: int | None, look: Callable[[int], None] | None = None, first: int = 0
    ) -> int:
        """Run the turns; return how many were done, those before `first` among them.

        most: the most turns, None for no end; look: called now and then with the turns done
        first: the number of the turn to go on with
        Errors: RunError, if a kernel of a turn found wrong data; no other turn ran after that
        """


@runtime_checkable
class RepeatableCall(Protocol):
    """A call that its device can run turn after turn by itself."""

    def repeated(self, odd: BoundCall, turns: Turns, profile: bool = False) -> TurnLoop | None:
        """Return what runs this call in even turns and another in odd ones; None where it cannot.

        odd: the same executable on other memory
        profile: whether `turn_spans` of the calls is to tell how long their nodes took
        """

    def turn_spans(self) -> LazySpans:
        """Return what tells the spans of the last turn of this call that ran with `profile`."""


@runtime_checkable
class StateKeeper(Protocol):
    """A device that holds the arrays of `variable` and `assign`."""

    states: States


@runtime_checkable
class StatefulExecutable(Protocol):
    """An executable of a device with state memory: its calls read and write states."""

    def with_states(self, states: States) -> Executable:
        """Return the executable on the states of a session, itself where it has none."""


@runtime_checkable
class PolymorphicExecutable(Protocol):
    """A region compiled once for every shape."""

    def at(self, graph: Graph) -> Executable:
        """Return the executable of one shape in microseconds: nothing is compiled.

        graph: the compiled graph with static types; what shapes alone decide is constant there
        Errors: CompileError, if the shape does not have the structure that was compiled, such as
            an axis of size 1 that was not known to be broadcast
        """


class ShapeTables(Protocol):
    """The numbers that one shape decides of a program, for a ResizableCall.

    scratch_bytes: the scratch memory that a run needs
    """

    @property
    def scratch_bytes(self) -> int:
        """The scratch memory that a run needs."""


class ResizableCall(Protocol):
    """A program that runs shape after shape; for one caller at a time."""

    def tables(self, sizes: tuple[int, ...]) -> Any:
        """Return the ShapeTables of a shape, in microseconds; they serve calls beside it too.

        sizes: of the symbols, in the order of the names that the call was made with
        Errors: CompileError, if the shape does not have the structure that was compiled
        """

    def beside(self) -> ResizableCall:
        """Return a call for another caller, who may run it at the same time."""

    def run(self, tables: Any, scratch: Buffer | None, places: Sequence[int]) -> None:
        """Run a shape.

        scratch: at least as many bytes as the tables say
        places: addresses in host memory, multiples of 16, of the graph's inputs and outputs
        Errors: RunError, if a kernel found wrong data
        """


@runtime_checkable
class GrowingCall(ResizableCall, Protocol):
    """A ResizableCall that its device can run turn after turn of a loop whose shapes grow."""

    def turn_tables(self, sizes: tuple[int, ...], growth: tuple[int, ...], count: int) -> Any:
        """Return the ShapeTables of so many turns.

        sizes: of the symbols in the first turn; growth: by how much each is larger a turn later
        Errors: CompileError, if turns need tables of unlike kinds, or the program does not serve
            one of their shapes
        """

    def repeated(
        self,
        tables: Any,
        scratch: Buffer | None,
        places: Sequence[Sequence[int]],
        turns: Turns,
        first: int,
    ) -> TurnLoop | None:
        """Return what runs the turns from `first` on, of which `tables` are; None where it cannot.

        scratch: at least as many bytes as the tables say
        places: as of `run`, for all turns, or for even and for odd ones
        Errors: CompileError, as `turn_tables`
        """


@runtime_checkable
class ResizableExecutable(PolymorphicExecutable, Protocol):
    """A PolymorphicExecutable, of a device in host memory, whose calls change their shape."""

    def resizable(self, contents: DecidedValues) -> ResizableCall | None:
        """Return a call on memory of its own; None where each shape needs an executable.

        contents: the symbols' names, and the values that shapes decide
        """


@runtime_checkable
class PolymorphicDevice(Protocol):
    """A device with kernels whose sizes are known when they run."""

    def polymorphic_reason(self, graph: Graph, node: Node) -> str | None:
        """Say in a sentence why a node of a graph with symbols has no kernel for every shape.

        None for a node that has one, and for one whose results shapes alone decide.
        """

    def compile_polymorphic(self, graphs: Sequence[Graph]) -> list[PolymorphicExecutable]:
        """Compile graphs with symbols.

        Errors: CompileError, if a node has no kernel for every shape
        """


def states_of(device: Device | None) -> States | None:
    """Return the states that a device keeps, None for a device that keeps none."""
    return device.states if isinstance(device, StateKeeper) else None


def on_states(executable: Executable, states: States | None) -> Executable:
    """Return an executable on the states of a session."""
    if states is None or not isinstance(executable, StatefulExecutable):
        return executable
    return executable.with_states(states)


def driver_queue_of(call: BoundCall) -> object | None:
    """Return the driver queue of a call, None if every launch must be waited for."""
    return call.driver_queue if isinstance(call, QueuedCall) else None


def runner_of(call: BoundCall) -> Callable[[], None]:
    """Return a function that launches a call and waits for it."""
    return call.run if isinstance(call, DirectCall) else lambda: call.launch().wait()


def rebind_of(call: BoundCall, argument: int) -> Rebind | None:
    """Return a function that moves an argument of a call; None where it must stay."""
    return call.rebind(argument) if isinstance(call, RebindableCall) else None
