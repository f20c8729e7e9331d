"""Where the operands, slices and rows of control flow lie, and the seconds of its bodies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from trireme.backend.capabilities import Rebind
from trireme.backend.device import BodySpan, Buffer, Event, NodeSpan, held_s, host_view
from trireme.ir.graph import Graph, Node
from trireme.plan.plan import Plan, Task
from trireme.runtime.loop.execute import TaskListener
from trireme.runtime.program.context import ExecutionContext
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError, RunError
from trireme.support.records import dataclass

if TYPE_CHECKING:
    from trireme.runtime.loop.task_watch import TaskWatch


@dataclass(frozen=True)
class ControlOperands:
    """Where the operands and outputs of a node lie, in host memory.

    inputs: of each operand, None where one is left out
    """

    graph: Graph
    node: Node
    inputs: Sequence[Buffer | None]
    outputs: Sequence[Buffer]

    def view(self, position: int) -> Array | None:
        """Return an operand as an array; None where it is left out."""
        if position >= len(self.inputs):
            return None
        buffer, value = self.inputs[position], self.node.inputs[position]
        if buffer is None or value is None:
            return None
        return host_view(buffer, self.graph.type(value))

    def array(self, position: int) -> Array:
        """Return an operand that must be there as an array."""
        found = self.view(position)
        if found is None:
            raise InternalError(f"{self.node.label}: operand {position} is missing")
        return found

    def buffer(self, position: int) -> Buffer:
        """Return the memory of an operand that must be there."""
        found = self.inputs[position]
        if found is None:
            raise InternalError(f"{self.node.label}: operand {position} is missing")
        return found

    def output(self, position: int) -> Array:
        """Return the place of an output as an array."""
        return host_view(self.outputs[position], self.graph.type(self.node.outputs[position]))


def timed_out(node: Node, turns: int, timeout_s: float) -> RunError:
    """Return the error of a loop that takes longer than it may."""
    return RunError(
        f"{node.label} did not end within {timeout_s:g} s: {turns:,} turns are done",
        fix="a larger timeout_s, or a trip count",
    )


def endless(node: Node) -> RunError:
    """Return the error of a loop that nothing can end."""
    return RunError(
        f"{node.label} has no end: it has no trip count, and its condition stays true",
        fix="a trip count, or a condition that a turn computes",
    )


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


WATCHED_TURNS = 8
"""Turns of a launch that are watched; what they took stands for the others."""
LazyBodySpans = Callable[[], tuple[BodySpan, ...]]
"""Returns the spans of bodies, computed on the call."""
WatchedTurn = Sequence[tuple[int, float, float, Event]]
"""The tasks of a turn in their order: number, start and end in seconds, and event."""


def watch(
    context: ExecutionContext, order: Sequence[int], listener: TaskListener | None = None
) -> WatchedTurn:
    """Run the tasks of a body once, in an order that respects the waits; note when each ran.

    listener: is told when tasks begin and end
    """
    turn = []
    for index in order:
        start = time.perf_counter()
        if listener is None:
            event = context.calls[index].launch(True)
            event.wait()
        else:
            listener.begin((index,))
            event = context.calls[index].launch(True)
            listener.wait(event, (index,))
            listener.end((index,))
        turn.append((index, start, time.perf_counter(), event))
    return turn


@dataclass(frozen=True)
class Key:
    """One kernel of a body: its task and its place in it, or a kernel of a body inside."""

    task: int
    position: int
    inner: tuple[str, ...] = ()


class Tally:
    """Adds up the spans of the watched turns of one body."""

    def __init__(self, plan: Plan, name: str) -> None:
        self._plan, self._name = plan, name
        self._rows: dict[Key, BodySpan] = {}
        self._turns: list[WatchedTurn] = []

    def add(self, turn: WatchedTurn) -> None:
        """Add one turn; its spans are read later, so that the next turn does not wait."""
        self._turns.append(turn)

    def _read(self, turn: WatchedTurn) -> None:
        for index, start_s, end_s, event in turn:
            task = self._plan.tasks[index]
            if task.is_copy:
                label = f"copy {self._plan.graph.values[task.inputs[0]].first_name}"
                self._count(Key(index, 0), self._row(task, label, "copy", end_s - start_s))
            else:
                self._read_nodes(task, event.spans())

    def _read_nodes(self, task: Task, spans: Sequence[NodeSpan]) -> None:
        for position, (span, took) in enumerate(zip(spans, held_s(spans), strict=True)):
            nodes = [self._plan.graph.node(node) for node in span.nodes]
            label = "+".join(node.op for node in nodes) or task.nodes[0].op
            label += f" ({nodes[0].source})" if nodes else ""
            choices = self._plan.placement.choices
            known = [choices[node.id] for node in nodes if node.id in choices]
            estimate_s = sum(one.estimates[task.device].seconds for one in known)
            row = self._row(task, label, span.kernel, took, estimate_s)
            self._count(Key(task.index, position), replace(row, clock=span.clock))
            for inner in span.bodies:
                path = (self._name, nodes[0].label if nodes else "", *inner.path)
                key = Key(task.index, position, (*inner.path, inner.label))
                self._count(key, replace(inner, path=path))

    def spans(self, turns: int) -> tuple[BodySpan, ...]:
        """Return the rows for so many turns, of which the watched ones are a sample."""
        for turn in self._turns:
            self._read(turn)
        scale = turns / len(self._turns) if self._turns else 0.0
        return tuple(
            replace(
                row,
                turns=round(row.turns * scale),
                seconds=row.seconds * scale,
                estimate_s=row.estimate_s * scale,
            )
            for row in self._rows.values()
        )

    def _row(
        self, task: Task, label: str, kernel: str, took: float, estimate_s: float = 0.0
    ) -> BodySpan:
        return BodySpan((self._name,), label, task.device, kernel, "wall", 1, took, estimate_s)

    def _count(self, key: Key, row: BodySpan) -> None:
        old = self._rows.get(key)
        if old is not None:
            row = replace(
                row,
                turns=old.turns + row.turns,
                seconds=old.seconds + row.seconds,
                estimate_s=old.estimate_s + row.estimate_s,
            )
        self._rows[key] = row


@runtime_checkable
class CallWithBodies(Protocol):
    """A bound call that runs bodies."""

    def watch_bodies(self, run: TaskWatch) -> None:
        """Tell the watches of the bodies, which belong to that of a run, what begins and ends."""


def watch_calls(calls: Sequence[Any], run: TaskWatch) -> None:
    """Watch the bodies of bound calls for a run."""
    for call in calls:
        if isinstance(call, CallWithBodies):
            call.watch_bodies(run)
