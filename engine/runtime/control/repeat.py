"""What runs a `loop` or a `scan`: turn after turn of a program, without an array made in a turn.

The body is bound twice, so that carried values swap buffers: an even turn reads the first set and
writes the second, an odd turn the other way. A value that a turn only scatters into stays where it
is. Captures are bound once, to where they lie.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trireme.backend.capabilities import Rebind, RepeatableCall, TurnLoop, TurnPart, Turns
from trireme.backend.device import BoundCall, Buffer, Done, host_alloc, host_view
from trireme.ir.graph import Graph, Node
from trireme.ops.repeats import Repeat
from trireme.passes.turns import BodyTurn, has_no_end
from trireme.plan.plan import Plan
from trireme.runtime.control.operands import (
    WATCHED_TURNS,
    ControlOperands,
    LazyBodySpans,
    Tally,
    TurnRows,
    endless,
    timed_out,
    watch,
    watch_calls,
)
from trireme.runtime.loop.execute import serial_order, serial_runner
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.failures import raise_named
from trireme.runtime.program.io_binding import Arguments, reader_of, writer_of
from trireme.runtime.program.program import Program
from trireme.support.cancel import check_cancelled
from trireme.support.dtypes import Array
from trireme.support.errors import RunError
from trireme.support.records import dataclass

if TYPE_CHECKING:
    from trireme.runtime.loop.task_watch import TaskWatch

FindRebind = Callable[[Plan, Sequence[BoundCall], Arguments, int], Rebind | None]
"""Returns what points calls at another place of a value: `reader_of` or `writer_of`."""
_LOOK_TURNS = 16
"""Turns between two looks at the clock."""


@dataclass(frozen=True)
class CarriedState:
    """A carried value: where it begins, its two buffers, and where its last value goes.

    first, second: None for a value that no turn changes; the same for one that stays where it is
    """

    initial: Array
    first: Array | None
    second: Array | None
    result: Array | None

    def begin(self) -> None:
        """Put the initial value where turn 0 reads it."""
        if self.first is not None:
            self.first[...] = self.initial

    def end(self, turns: int) -> None:
        """Put the value after so many turns where the node's output is."""
        if self.result is not None:
            self.result[...] = self.last(turns)

    def last(self, turns: int) -> Array:
        """Return the place of the value after so many turns."""
        last = self.second if turns & 1 else self.first
        return self.initial if last is None else last


def states_in_place(form: Repeat, turn: BodyTurn, graph: Graph) -> set[int]:
    """Return the states that need no second buffer: a scatter alone reads each, and makes it anew.

    graph: the turn, as it is compiled
    """
    found = set()
    for k, out in zip(turn.changed, graph.outputs[int(turn.asks) :], strict=False):
        value, node = graph.inputs[form.first + k], graph.producer(out)
        if node is None or node.op not in ("scatter_nd", "scatter_elements"):
            continue  # these write parts of the first operand, and read it nowhere else
        if graph.users(value) == (node,) and node.used[0] == value and node.used.count(value) == 1:
            found.add(k)
    return found


def native_turns(bound: BoundTurn, profile: bool = False) -> TurnLoop | None:
    """Return what runs the turns inside native code; None where the body is several tasks, or its
    device has no such code.
    """
    even, odd = bound.contexts
    tasks = even.program.plan.tasks
    if len(tasks) != 1 or not isinstance(even.calls[0], RepeatableCall):
        return None
    at = {value: k for k, value in enumerate((*tasks[0].inputs, *tasks[0].outputs))}
    asked = 0 if bound.asked is None else bound.asked.ctypes.data

    def parts(rows: Sequence[TurnRows]) -> list[TurnPart]:
        return [
            TurnPart(at[one.value], one.place.ctypes.data, one.start, one.step, one.nbytes)
            for one in rows
            if one.value in at
        ]

    turns = Turns(bound.number.ctypes.data, asked, parts(bound.slices), parts(bound.rows))
    return even.calls[0].repeated(odd.calls[0], turns, profile)


class BoundTurn:
    """One turn of a body, bound for even and for odd turns.

    number: the number of the turn, for the body to read
    asked: whether there is another turn, written by the body; None where it does not decide
    """

    def __init__(
        self, operands: ControlOperands, form: Repeat, turn: BodyTurn, program: Program
    ) -> None:
        graph = program.plan.graph
        self._common: dict[int, Buffer] = {}
        number, going, asked = host_alloc(8), host_alloc(1), host_alloc(1)
        going.handle[0] = 1
        self.number = number.handle[:8].view(np.int64)
        self.asked = asked.handle[:1] if turn.asks else None
        inputs, outputs = list(graph.inputs), list(graph.outputs)
        if form.counts:
            self._common |= dict(zip(inputs[:2], (number, going), strict=True))
        if turn.asks:
            self._common[outputs[0]] = asked
        cut = form.carried + len(form.slices)
        for k in range(cut, len(operands.inputs) - form.first):
            self._common[inputs[form.first + k]] = operands.buffer(form.first + k)
        self._bind_states(operands, form, turn, program)
        self._bind_rows(operands, form, graph)

    def _bind_states(
        self, operands: ControlOperands, form: Repeat, turn: BodyTurn, program: Program
    ) -> None:
        graph = program.plan.graph
        results = graph.outputs[int(turn.asks) :]
        even: dict[int, Buffer] = {}
        odd: dict[int, Buffer] = {}
        self.states = []
        kept = states_in_place(form, turn, graph)
        for k in range(form.carried):
            value = graph.inputs[form.first + k]
            initial = operands.array(form.first + k)
            out = operands.output(k) if k < len(operands.outputs) else None
            if k not in turn.changed:
                self._common[value] = operands.buffer(form.first + k)
                self.states.append(CarriedState(initial, None, None, out))
                continue
            made, type = results[turn.changed.index(k)], graph.type(value)
            first = host_alloc(max(type.nbytes, 1))
            second = first if k in kept else host_alloc(max(type.nbytes, 1))
            even |= {value: first, made: second}
            odd |= {value: second, made: first}
            views = host_view(first, type), host_view(second, type)
            self.states.append(CarriedState(initial, *views, out))
        slices = graph.inputs[form.first + form.carried :][: len(form.slices)]
        self._rows = graph.outputs[int(turn.asks) + len(turn.changed) :]
        for value in (*slices, *self._rows):
            self._common[value] = host_alloc(max(graph.type(value).nbytes, 1))
        context = ExecutionContext(program, places=self._common | even)
        self.contexts = [context, context]
        if kept != {*turn.changed}:
            self.contexts[1] = ExecutionContext(
                program, context.scratch, self._common | odd, beside=context
            )
        self.order = serial_order(program.plan, context.calls)
        self.runs = [serial_runner(one.program.plan, one.calls) for one in self.contexts]
        self.watch: TaskWatch | None = None

    def watch_bodies(self, run: TaskWatch) -> None:
        """See CallWithBodies."""
        plan = self.contexts[0].program.plan
        self.watch = run.of_body(plan)
        self.runs = [serial_runner(plan, one.calls, self.watch) for one in self.contexts]
        for one in self.contexts:
            watch_calls(one.calls, run)

    def _bind_rows(self, operands: ControlOperands, form: Repeat, graph: Graph) -> None:
        plan = self.contexts[0].program.plan
        arguments = Arguments(plan)

        def rows(value: int, whole: Array, way: tuple[int, bool], find: FindRebind) -> TurnRows:
            place = host_view(self._common[value], graph.type(value))
            made = TurnRows(value, whole, *way, place)
            calls = [one.calls for one in self.contexts]
            found = [find(plan, one, arguments, value) for one in calls]
            able = [one for one in found if one is not None]
            if len(able) == len(found) and made.start % 16 == made.nbytes % 16 == 0:
                made.rebinds = tuple(able)
            return made

        first = form.first + form.carried
        self.slices = [
            rows(graph.inputs[first + k], operands.array(first + k), way, reader_of)
            for k, way in enumerate(form.slices)
        ]
        self.rows = []
        for k, (value, way) in enumerate(zip(self._rows, form.rows, strict=True)):
            if form.carried + k < len(operands.outputs):
                whole = operands.output(form.carried + k)
                self.rows.append(rows(value, whole, way, writer_of))


DRIVEN, NATIVE = "turns driven by the host", "turns inside native code"


class TurnRunner:
    """Runs the turns of a loop on its memory: in native code where a device can, else one by one.

    tally: gets the first turns that the host drives; None outside a profile
    """

    def __init__(
        self,
        node: Node,
        operands: ControlOperands,
        form: Repeat,
        turn: BodyTurn,
        program: Program,
        timeout_s: float | None = None,
    ) -> None:
        self._node, self._timeout_s = node, timeout_s
        self.bound = BoundTurn(operands, form, turn, program)
        self.contexts = self.bound.contexts
        self.tally: Tally | None = None
        self._deadline: float | None = None
        self.rebind()
        self.kernel = NATIVE if self.native is not None else DRIVEN

    def rebind(self) -> None:
        """Find slices and rows anew where they lie now."""
        bound = self.bound
        self._before = [one.point if one.rebinds else one.put for one in bound.slices]
        self._before += [one.point for one in bound.rows if one.rebinds]
        self._after = [one.take for one in bound.rows if not one.rebinds]
        self.native = native_turns(bound)

    @property
    def has_stopped(self) -> bool:
        """Whether the last turn said that there is no other."""
        asked = self.bound.asked
        return asked is not None and not asked[0]

    def run(self, most: int | None, first: int = 0) -> int:
        """Run turns from one on; return how many were done, those before it among them.

        most: the most turns; None for no end
        Errors: RunError, if it takes longer than it may since turn 0; those of a turn, which is
            the last then
        """
        if most is not None and most <= first:
            return first
        if not first and self._timeout_s is not None:
            self._deadline = time.monotonic() + self._timeout_s
        if self.native is None:
            return self._by_host(most, first)
        try:
            return self.native.run(most, None if self._deadline is None else self._look, first)
        except RunError as error:
            if self._is_late:
                raise
            raise_named(self.contexts[0].program.plan, [0], error)

    @property
    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _look(self, done: int) -> None:
        if self._is_late:
            raise timed_out(self._node, done, self._timeout_s or 0.0)

    def _by_host(self, most: int | None, turn: int) -> int:
        """Run turn after turn; return how many."""
        bound = self.bound
        number, asked, (even, odd) = bound.number.data, bound.asked, bound.runs
        answer = None if asked is None else asked.data
        before, after, tally = self._before, self._after, self.tally
        is_timed = self._deadline is not None
        while most is None or turn < most:
            check_cancelled()
            number[0] = turn
            for place in before:
                place(turn)
            if tally is not None and turn < WATCHED_TURNS:
                tally.add(watch(self.contexts[turn & 1], bound.order, bound.watch))
            elif turn & 1:
                odd()
            else:
                even()
            for keep in after:
                keep(turn)
            turn += 1
            if answer is not None and not answer[0]:
                break
            if is_timed and not turn % _LOOK_TURNS:
                self._look(turn)
        return turn


class RepeatDriver:
    """A `loop` or a `scan` on its memory, whose stacked outputs have a known length."""

    def __init__(
        self,
        operands: ControlOperands,
        form: Repeat,
        turn: BodyTurn,
        program: Program,
        timeout_s: float | None = None,
    ) -> None:
        self._operands, self._form, self._turn = operands, form, turn
        self._runner = TurnRunner(operands.node, operands, form, turn, program, timeout_s)
        self.bound, self.kernel = self._runner.bound, self._runner.kernel
        self.contexts = self.bound.contexts
        self._trips = operands.view(0) if form.counts else None
        self._condition = operands.view(1) if form.counts else None
        ways = [*self.bound.slices, *self.bound.rows]
        self._length = ways[0].length if ways else None
        calls = [] if self._runner.native is None else [one.calls[0] for one in self.contexts]
        self._repeatable = [call for call in calls if isinstance(call, RepeatableCall)]
        self._noting: TurnLoop | None = None
        self.turns = 0
        """How many turns the last run had."""

    def watch_bodies(self, run: TaskWatch) -> None:
        """See CallWithBodies."""
        self.bound.watch_bodies(run)

    def profiled(self) -> LazyBodySpans:
        """Run; return what tells how long the kernels of the body took.

        Native turns note when the last of them ran. Of turns that the host drives, the first are
        watched.
        """
        runner, tally = self._runner, Tally(self.contexts[0].program.plan, "body")
        plain, runner.tally = runner.native, tally
        if plain is not None:
            self._noting = runner.native = self._noting or native_turns(self.bound, True)
        try:
            self.run()
        finally:
            runner.native, runner.tally = plain, None
        for call in self._repeatable[: self.turns]:
            tally.add([(0, 0.0, 0.0, Done(call.turn_spans()))])
        return partial(tally.spans, self.turns)

    def run(self) -> None:
        """Run the turns."""
        bound = self.bound
        for state in bound.states:
            state.begin()
        for one in bound.slices:
            one.gather()
        most = self._most()
        self.turns = self._runner.run(most)
        if bound.rows and self.turns != self._length:
            raise RunError(
                f"{self._operands.node.label} ended after {self.turns} turns, and its stacked "
                f"outputs have room for exactly {self._length}"
            )
        for one in bound.rows:
            one.scatter()
        for state in bound.states:
            state.end(self.turns)

    def _most(self) -> int | None:
        """Return the most turns of this run; None for no end."""
        if not self._form.counts:
            return self._length or 0
        if self._condition is not None and not self._condition.reshape(-1)[0]:
            return 0
        trips = None if self._trips is None else max(int(self._trips.reshape(-1)[0]), 0)
        if trips is None and has_no_end(self._form):
            raise endless(self._operands.node)
        if self._turn.stops:
            return 1 if trips is None else min(trips, 1)
        return trips
