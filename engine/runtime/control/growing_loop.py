"""A loop whose carried values grow by the same sizes in each turn, run inside native code.

One program serves every turn: its device makes tables of what the sizes of many turns decide. A
value that turns only append to lies in memory with room, and a turn writes its part behind it; so
does one whose rows do not lie one after another (state_rooms.py). Other carried values swap two
buffers.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trireme.backend.capabilities import GrowingCall, TurnLoop, TurnPart, Turns
from trireme.backend.device import Buffer, host_alloc
from trireme.ir.dim_values import Numbers, evaluator
from trireme.ir.graph import Graph, Node, TensorType
from trireme.ops.repeats import Repeat
from trireme.runtime.control.growing import TurnMemory, growing_turn, steps_of
from trireme.runtime.control.open_loop import Compile
from trireme.runtime.control.operands import timed_out
from trireme.runtime.control.state_rooms import first_shapes, room_for, with_rooms
from trireme.runtime.shapes.call_pool import grown
from trireme.runtime.shapes.resizable import ResizableGraph
from trireme.support.cancel import check_cancelled
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, TriremeError

FIRST_TURNS, MOST_TURNS = 64, 1024
"""Turns whose tables are made at once: as many as are done, between these."""
MOST_BLOCKS = 16
"""Blocks of turns that are kept for runs that begin at the same sizes."""
ROW_BYTES = 4 << 20
"""The most bytes of rows that a block of turns makes, if it has more than one turn."""
KNOWN_BYTES = 64 << 20
"""Memory for a known number of turns is had at once, up to these bytes."""
KEPT_BYTES = 16 << 20
"""Larger memory is given back after a run."""

Shape = Sequence[int]


@dataclass
class TurnsDone:
    """What the turns of a loop made so far.

    states: before the next turn; rows: of each kind, one after another along a new first axis
    going: whether there may be another turn
    """

    turns: int
    states: list[Array]
    rows: Sequence[Array | list[Array]]
    going: bool


@dataclass(frozen=True)
class _Block:
    """Turns that are ready to run, from a first one on.

    buffers: the memory that they are bound to
    """

    count: int
    loop: TurnLoop
    buffers: tuple[Buffer, ...]

    def serves(self, count: int, buffers: tuple[Buffer, ...]) -> bool:
        """Whether so many turns can run, on this memory."""
        pairs = zip(self.buffers, buffers, strict=True)
        return count <= self.count and all([mine is now for mine, now in pairs])


class GrowingLoop:
    """A `loop` or a `scan` whose states grow; one run at a time.

    why: why turns of the last run are left for the host; "" where none are
    state_rooms: the states in memory with room, of which turns read a part
    """

    def __init__(
        self,
        node: Node,
        form: Repeat,
        in_rooms: Mapping[int, int],
        given: Sequence[TensorType],
        compile: Compile,
        timeout_s: float | None,
    ) -> None:
        """Compile a turn for every size.

        form: its turns make parts in place of the states `in_rooms`, by the axis of each, before
            which all axes have size 1
        given: the types of states, slices and captures in one turn
        Errors: CompileError, if turns do not grow alike, or no device runs them in native code;
            those of compiling
        """
        self._node, self._form, self._rooms = node, form, in_rooms
        self._timeout_s, self.why = timeout_s, ""
        turn = growing_turn(form, in_rooms, given)
        self._turn, self.state_rooms = with_rooms(form, turn.turn)
        graph = self._turn.graph
        if self._turn.stops:
            raise CompileError("the condition ends the loop after one turn")
        later = first_shapes(self.state_rooms, form.first, _later_shapes(form, in_rooms, given), 1)
        self._sized, self._call = _compiled(graph, later, compile)
        names = self._sized.contents.names
        self._growth = evaluator([turn.growth.get(name, 0) for name in names], names)
        self._first_row = int(self._turn.asks) + len(self._turn.changed)
        ports = self._sized.ports
        self._reads = {k: n for n, k in enumerate(ports.fed)}
        self._makes = {k: len(ports.fed) + n for n, k in enumerate(ports.made)}
        changed = enumerate(self._turn.changed, int(self._turn.asks))
        self._swapped = {state: out for out, state in changed if state not in in_rooms}
        self._memory(graph)

    def _memory(self, graph: Graph) -> None:
        """Have memory of its own for each value, and no turn that is ready."""
        form = self._form
        inputs = [TurnMemory(graph.type(value).dtype) for value in graph.inputs]
        cut = form.first + form.carried
        types = map(graph.type, graph.inputs)
        for memory, type in zip(inputs[: form.first], types, strict=False):
            memory.reserve(8)
            memory.view(type.dims)[...] = 1
        self._in = inputs
        self._out = [TurnMemory(graph.type(value).dtype) for value in graph.outputs]
        self._rows = [TurnMemory(graph.type(v).dtype) for v in graph.outputs[self._first_row :]]
        self._cut = {
            k: TurnMemory(graph.type(graph.inputs[k]).dtype)
            for k in range(cut, cut + len(form.slices))
        }
        self._blocks: OrderedDict[tuple[int, Numbers], _Block] = OrderedDict()
        self._scratch: Buffer | None = None

    @property
    def _held(self) -> tuple[TurnMemory, ...]:
        return (*self._in, *self._out, *self._rows, *self._cut.values())

    def run(
        self,
        states: Sequence[Array],
        cut: Sequence[Array],
        captures: Sequence[Array],
        most: int | None,
        first: int = 0,
    ) -> TurnsDone:
        """Run turns from one on, as far as they can be run in this way.

        cut: arrays whose first axis is cut, in the order of the turns
        Errors: RunError, if it takes longer than it may, or a kernel found wrong data
        """
        fed = [*states, *(x[0] for x in cut), *captures]
        shapes = [*((),) * self._form.first, *(array.shape for array in fed)]
        sizes = self._sized.sizes(first_shapes(self.state_rooms, self._form.first, shapes, 0))
        growth: Numbers = self._growth(*sizes)
        self.why = ""
        try:
            self._load(sizes, states, cut, captures, first)
            return self._run(sizes, growth, most, first)
        finally:
            if sum(memory.nbytes for memory in self._held) > KEPT_BYTES:
                self._memory(self._turn.graph)

    def _run(self, sizes: Numbers, growth: Numbers, most: int | None, first: int) -> TurnsDone:
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s

        def look(done: int) -> None:
            if deadline is not None and time.monotonic() > deadline:
                raise timed_out(self._node, done, self._timeout_s or 0.0)

        turn, going = first, True
        rows: list[list[Array]] = [[] for _ in self._rows]
        if most is not None:
            sizes = self._with_room(sizes, growth, most - first, KNOWN_BYTES)
        while going and (most is None or turn < most):
            check_cancelled()
            look(turn)
            left = None if most is None else most - turn
            count = self._turns_ahead(sizes, turn - first, left)
            sizes = self._with_room(sizes, growth, count)
            block = self._block(turn, sizes, growth, count)
            if block is None:
                break
            done = block.loop.run(turn + count, look, turn)
            for kept, memory, shape in zip(rows, self._rows, self._row_shapes(sizes), strict=True):
                kept.append(memory.view((done - turn, *shape)).copy())
            going = done == turn + count and self._goes_on()
            sizes, turn = _later(sizes, growth, done - turn), done
        shapes = self._row_shapes(sizes)
        joined = [
            np.concatenate(kept) if kept else memory.view((0, *shape))
            for kept, memory, shape in zip(rows, self._rows, shapes, strict=True)
        ]
        return TurnsDone(turn, self._lasts(sizes, turn), joined, going)

    def _goes_on(self) -> bool:
        return not self._turn.asks or bool(self._out[0].view(()))

    def _row_shapes(self, sizes: Numbers) -> list[tuple[int, ...]]:
        return self._sized.ports.shapes(sizes)[self._first_row :]

    def _turns_ahead(self, sizes: Numbers, done: int, left: int | None) -> int:
        """Return how many turns to make ready at once."""
        shapes = self._row_shapes(sizes)
        row_bytes = sum(one.bytes_of(shape) for one, shape in zip(self._rows, shapes, strict=True))
        count = min(max(done, FIRST_TURNS), MOST_TURNS, max(ROW_BYTES // max(row_bytes, 1), 1))
        return count if left is None else min(count, left)

    def _load(
        self,
        sizes: Numbers,
        states: Sequence[Array],
        cut: Sequence[Array],
        captures: Sequence[Array],
        turn: int,
    ) -> None:
        """Put what a run is given where turns read it."""
        first, roomy = self._form.first, {one.state: one for one in self.state_rooms}
        shapes, end = self._sized.shapes(sizes), first + self._form.carried + len(cut)
        places = [*(self._state(k, turn) for k in range(len(states))), *self._cut.values()]
        places += self._in[end : end + len(captures)]
        for k, (memory, array) in enumerate(zip(places, (*states, *cut, *captures), strict=True)):
            room = roomy.get(k)
            shape = array.shape if room is None else shapes[first + k]
            memory.reserve(memory.bytes_of(shape))
            whole = memory.view(shape)
            (whole if room is None else room.part(whole, array.shape[room.axis]))[...] = array

    def _state(self, state: int, turn: int) -> TurnMemory:
        """Return where a state lies before a turn."""
        swapped = turn & 1 and state in self._swapped
        return self._out[self._swapped[state]] if swapped else self._in[self._form.first + state]

    def _lasts(self, sizes: Numbers, turn: int) -> list[Array]:
        shapes = self._sized.shapes(sizes)
        states = shapes[self._form.first :][: self._form.carried]
        lasts = [self._state(k, turn).view(shape) for k, shape in enumerate(states)]
        for one in self.state_rooms:
            lasts[one.state] = one.part(lasts[one.state], shapes[one.length][0])
        return [last.copy() for last in lasts]

    def _with_room(
        self, sizes: Numbers, growth: Numbers, turns: int, most_bytes: int | None = None
    ) -> Numbers:
        """Have room for all values as they are so many turns later; return the sizes with it.

        most_bytes: where more are needed, there is as much room as before
        """
        names, later = self._sized.contents.names, _later(sizes, growth, turns)
        after = self._sized.shapes(later)
        rooms = {one.room: room_for(after[one.length][0]) for one in self.state_rooms}
        now = dict(zip(names, sizes, strict=True))
        larger = {name: max(room, now[name]) for name, room in rooms.items()}
        later = tuple([larger.get(name, n) for name, n in zip(names, later, strict=True)])
        after = self._sized.shapes(later)
        memories = [*self._in, *self._out]
        shapes = [*after, *self._sized.ports.shapes(later)]
        needs = [one.bytes_of(shape) for one, shape in zip(memories, shapes, strict=True)]
        if most_bytes is not None and sum(needs) > most_bytes:
            return sizes
        before, first = self._sized.shapes(sizes), self._form.first
        for one in self.state_rooms:
            if larger[one.room] > now[one.room]:
                k = first + one.state
                one.move(self._in[k], before[k], after[k], before[one.length][0])
        for memory, nbytes in zip(memories, needs, strict=True):
            memory.reserve(nbytes)
        return tuple([larger.get(name, n) for name, n in zip(names, sizes, strict=True)])

    def _block(self, turn: int, sizes: Numbers, growth: Numbers, count: int) -> _Block | None:
        """Return turns that are ready, at least so many; None where they cannot be run so."""
        key = turn, sizes
        for memory, shape in zip(self._rows, self._row_shapes(sizes), strict=True):
            memory.reserve(count * memory.bytes_of(shape))
        buffers = tuple([memory.buffer for memory in self._held])
        found = self._blocks.get(key)
        if found is None or not found.serves(count, buffers):
            try:
                loop = self._native(turn, sizes, growth, count)
            except TriremeError as error:
                self.why = error.summary
                return None
            if loop is None:
                self.why = "the device's workers sleep in Python"
                return None
            found = self._blocks[key] = _Block(count, loop, buffers)
            if len(self._blocks) > MOST_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return found

    def _native(self, turn: int, sizes: Numbers, growth: Numbers, count: int) -> TurnLoop | None:
        """Return what runs turns in native code.

        Errors: those of inference at the sizes of a turn; CompileError of the tables
        """
        if self._sized.checks.nodes:
            for k in range(count):
                self._sized.checks.check(_later(sizes, growth, k))
        tables = self._call.turn_tables(sizes, growth, count)
        self._scratch = grown(self._scratch, tables.scratch_bytes, host_alloc)
        ports = self._sized.ports
        reads = {self._form.first + k: out for k, out in self._swapped.items()}
        writes = {out: k for k, out in reads.items()}
        even = [*(self._in[k] for k in ports.fed), *(self._out[k] for k in ports.made)]
        odd = [self._out[reads[k]] if k in reads else self._in[k] for k in ports.fed]
        odd += [self._in[writes[k]] if k in writes else self._out[k] for k in ports.made]
        places = [[memory.address for memory in half] for half in (even, odd)]
        if not self._swapped:
            places.pop()
        return self._call.repeated(tables, self._scratch, places, self._turns(turn, sizes), turn)

    def _turns(self, turn: int, sizes: Numbers) -> Turns:
        """Return what turns from one on read and write of larger arrays."""
        form, asks = self._form, int(self._turn.asks)
        made, fed = self._sized.ports.shapes(sizes), self._sized.shapes(sizes)
        slices = [
            TurnPart(self._reads[k], self._in[k].address, whole.address, nbytes, nbytes)
            for k, whole in self._cut.items()
            if k in self._reads and (nbytes := whole.bytes_of(fed[k]))
        ]
        ends = []
        for state in self._rooms:
            whole, out = self._in[form.first + state], asks + self._turn.changed.index(state)
            ends.append((out, whole.address + whole.bytes_of(fed[form.first + state])))
        ends += [(self._first_row + k, one.address) for k, one in enumerate(self._rows)]
        rows = []
        for out, end in ends:
            nbytes = self._out[out].bytes_of(made[out])
            place = self._out[out].address
            rows.append(TurnPart(self._makes[out], place, end - turn * nbytes, nbytes, nbytes))
        number = self._in[0].address if form.counts else 0
        return Turns(number, self._out[0].address if asks else 0, slices, rows)


def _later(sizes: Numbers, growth: Numbers, turns: int) -> Numbers:
    """Return the sizes so many turns later."""
    return tuple([size + turns * step for size, step in zip(sizes, growth, strict=True)])


def _later_shapes(
    form: Repeat, in_rooms: Mapping[int, int], given: Sequence[TensorType]
) -> list[tuple[int, ...]]:
    """Return the shapes of what a turn is given one turn later: none of a state that grows is 0."""
    steps = [*steps_of(form, in_rooms, given)]
    steps += [(0,) * len(type.shape) for type in given[form.carried :]]
    later = [
        tuple([size + step for size, step in zip(type.dims, by, strict=True)])
        for type, by in zip(given, steps, strict=True)
    ]
    return [*[()] * form.first, *later]


def _compiled(
    graph: Graph, shapes: Sequence[Shape], compile: Compile
) -> tuple[ResizableGraph, GrowingCall]:
    """Return a turn as a device runs it at every size.

    Errors: CompileError, if no device runs its turns in native code
    """
    program = compile(graph, shapes)
    if isinstance(program, str):
        raise CompileError(program)
    found = program.resizable
    if found is None or not isinstance(found.call, GrowingCall):
        raise CompileError("its device runs no turns of unlike shapes by itself")
    if len(found.ports.made) != len(graph.outputs):
        raise CompileError("shapes alone decide what a turn makes")
    return found, found.call
