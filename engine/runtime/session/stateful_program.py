"""Programs with states: on buffers where states can be, else on whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.backend.device import Buffer
from trireme.ir.dim_values import Numbers, evaluator, picker
from trireme.ir.dims import symbols_of
from trireme.ir.effects import States, aligned_memory
from trireme.ir.graph import Graph, TensorType, Value
from trireme.runtime.models.prepare import Prepared
from trireme.runtime.session.open_program import OpenProgram, Served
from trireme.runtime.shapes.ahead import Shapes
from trireme.runtime.shapes.instance import Instance, StageReport
from trireme.runtime.shapes.instances import OpenGraph
from trireme.runtime.shapes.polymorphic import PolymorphicGraph, polymorphic_device
from trireme.runtime.shapes.resizable import ResizableGraph, laid_array
from trireme.runtime.states.growth import GrowingGraph, Rooms, growing
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import CompileError, PlacementError, ShapeError


class StateSteps:
    """Runs a graph on buffers; a StateHolder of its states between the runs.

    sizes: of the symbols in the last run, until somebody notes them
    """

    def __init__(
        self, whole: ResizableGraph, rooms: Rooms, states: States, inputs: Sequence[Value]
    ) -> None:
        self._whole, self._rooms, self._states = whole, rooms, states
        self._inputs = [(v.name, numpy_dtype(v.dtype), len(v.shape)) for v in inputs]
        axes = [dim for value in inputs for dim in value.shape]
        self._lengths = list(dict.fromkeys(one.rows for one in rooms.buffers))
        known = [*axes, *self._lengths, *(one.room for one in rooms.buffers)]
        symbols = whole.contents.names
        self._pick = picker([known.index(name) for name in symbols])
        self._axes = evaluator(axes, symbols)
        self._grown = evaluator([one.grown for one in rooms.buffers], symbols)
        pasts = [(one, one.tie.past.shape) for one in rooms.buffers]
        self._others = [
            (k, axis, dim)
            for k, (one, shape) in enumerate(pasts)
            for axis, dim in enumerate(shape)
            if axis != one.axis and symbols_of(dim)
        ]
        self._other_dims = evaluator([dim for _, _, dim in self._others], symbols)
        firsts = [one.rows for one in rooms.buffers]
        self._pick_rows = picker([firsts.index(rows) for rows in self._lengths])
        names = [value.name for value in inputs]
        ports = whole.ports
        self._fed = [
            (at, name) for at, k in enumerate(ports.fed) if (name := ports.names[k]) in names
        ]
        self._nothing = aligned_memory(TensorType((64,), "uint8"))
        self._room_rows: Numbers = ()
        self._rows: Numbers = ()
        self._other_sizes: Numbers = ()
        self._places: list[int] = []
        self.sizes: Numbers | None = None

    def run(self, given: Mapping[str, Any]) -> dict[str, Array] | None:
        """Return the outputs that are no states, by name; None where nothing was run.

        Errors: RunError, if a kernel found wrong data
        """
        whole = self._whole
        if self._states.holder is not self and not self._begin():
            return None
        sizes = self._sizes(given)
        if sizes is None:
            return None
        rows = self._grown(*sizes)
        if any([n > most for n, most in zip(rows, self._room_rows, strict=True)]):
            return None
        try:
            whole.checks.check(sizes)
            tables = whole.call.tables(sizes)
        except (CompileError, ShapeError):
            return None
        fed = [laid_array(given[name]) for _, name in self._fed]
        ports = whole.ports
        shapes = ports.shapes(sizes)
        made = [np.empty(shapes[k], ports.dtypes[k]) for k in ports.made]
        places = [*self._places, *[array.ctypes.data for array in made]]
        for (at, _), (_, place) in zip(self._fed, fed, strict=True):
            places[at] = place
        whole.calls.run(tables, places)
        self._rows, self.sizes = rows, sizes
        if self._states.holder is not self:  # another thread asked for them meanwhile
            self._states.arrays.update(self.arrays())
        return {name: made[k] for name, k in ports.results}

    def shapes(self) -> Shapes:
        """Return the shapes that the graph's inputs had in the last run."""
        return () if self.sizes is None else self._whole.shapes(self.sizes)

    def arrays(self) -> dict[str, Array]:
        """Return the states by name."""
        return self._rooms.grown(self._rows)

    def _sizes(self, given: Mapping[str, Any]) -> Numbers | None:
        """Return the sizes of the symbols; None where feeds are not plain arrays that fit."""
        if not isinstance(given, dict) or len(given) != len(self._inputs):
            return None
        axes: tuple[int, ...] = ()
        for name, dtype, rank in self._inputs:
            array = given.get(name)
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != rank:
                return None
            axes += array.shape
        sizes: Numbers = self._pick((*axes, *self._pick_rows(self._rows), *self._room_rows))
        if self._axes(*sizes) != axes or self._other_dims(*sizes) != self._other_sizes:
            return None
        return sizes if 0 not in sizes and self._whole.within(sizes) else None

    def _begin(self) -> bool:
        """Take the states over, if they lie where the last run left them."""
        arrays, buffers = self._states.arrays, self._rooms.buffers
        rooms = self._rooms.held(arrays)
        if rooms is None:
            return False
        self._room_rows = tuple(r.shape[o.axis] for r, o in zip(rooms, buffers, strict=True))
        self._rows = tuple(arrays[one.tie.name].shape[one.axis] for one in buffers)
        lengths = {
            (o.rows, n, m) for o, n, m in zip(buffers, self._rows, self._room_rows, strict=True)
        }
        if len(lengths) != len(self._lengths):
            return False
        self._other_sizes = tuple(rooms[k].shape[axis] for k, axis, _ in self._others)
        at = {one.tie.name: room.ctypes.data for one, room in zip(buffers, rooms, strict=True)}
        ports, nothing = self._whole.ports, self._nothing.ctypes.data
        self._places = [at.get(ports.names[k], nothing) for k in ports.fed]
        self._states.holder = self
        return True


def state_steps(
    whole: ResizableGraph | None, rooms: Rooms, states: States, ties: int
) -> StateSteps | None:
    """Return what runs step after step; None where a graph needs more than that.

    whole: the graph on buffers; ties: how many states there are
    """
    if whole is None or whole.ports.others or len(rooms.buffers) != ties:
        return None
    own = {name for one in rooms.buffers for name in (one.tie.name, one.length)}
    inputs = [value for value in whole.closed.graph.input_values() if value.name not in own]
    known = {dim for value in inputs for dim in value.shape if symbols_of(dim) == {dim}}
    known |= {name for one in rooms.buffers for name in (one.rows, one.room)}
    needed = set(whole.contents.names)
    for one in rooms.buffers:
        needed.update(*map(symbols_of, (one.grown, *one.tie.past.shape)))
    is_plain = needed <= known and all(value.dtype != "string" for value in inputs)
    return StateSteps(whole, rooms, states, inputs) if is_plain else None


Places = Callable[[Graph], Mapping[int, Buffer]]
"""Says where inputs of a graph lie that are not in its arena."""
Step = Callable[[Mapping[str, Any]], dict[str, Array] | None]
"""Runs on states as they lie, and returns the other outputs; None where nothing was run."""


class PolymorphicOnly(OpenGraph):
    """A graph that one program serves at every shape, or an error says why not."""

    def _cut(self) -> list[Any]:
        return []  # the rows of a buffer are written and read in one region

    def _compiled_once(self, shapes: Sequence[Sequence[int]]) -> PolymorphicGraph | str | None:
        try:
            return super()._compiled_once(shapes)
        except PlacementError as error:  # the ops on buffers are not those of the model
            return error.summary

    def _specialised(self, shapes: Shapes, why: str) -> Instance:
        raise CompileError(why)


class StatefulProgram:
    """A graph whose states are past inputs and present outputs.

    on_buffers: the program in which states grow in place, None where there is none, and why
    open_plain: makes the program that takes and gives whole states
    states: of the session; ties: how many of them there are
    """

    def __init__(
        self,
        rooms: Rooms | None,
        on_buffers: OpenProgram | None,
        why: str,
        open_plain: Callable[[], OpenProgram],
        states: States,
        ties: int,
    ) -> None:
        self._rooms, self._on_buffers, self._why = rooms, on_buffers, why
        self._open_plain = open_plain
        self._plain: OpenProgram | None = None
        self._last: Instance | None = None
        self._stages: list[StageReport] = []
        self._states, self._tie_count = states, ties

    @cached_property
    def _steps(self) -> StateSteps | None:
        """What runs on buffers as they are; None where runs need more than that."""
        if self._rooms is None or self._on_buffers is None:
            return None
        whole = self._on_buffers.resizable
        return state_steps(whole, self._rooms, self._states, self._tie_count)

    def step(self, feeds: Mapping[str, Any]) -> dict[str, Array] | None:
        """Run on buffers as they are, and return the outputs that are no states.

        None where nothing was run: the states lie elsewhere, or the feeds want a closer look
        feeds: without the pasts
        Errors: RunError, if a kernel found wrong data
        """
        steps = self._steps if self._last is not None else None
        return None if steps is None else steps.run(feeds)

    @property
    def last(self) -> Instance | None:
        """The instance that ran last."""
        self._note_steps()
        return self._last

    @property
    def stages(self) -> list[StageReport]:
        """What the stages of the last run were."""
        self._note_steps()
        return self._stages

    def _note_steps(self) -> None:
        """Have the reports be of the last step."""
        steps, program = self._steps if self._last is not None else None, self._on_buffers
        if steps is not None and program is not None and steps.sizes is not None:
            program.note(steps.shapes())
            steps.sizes = None
            self._ran(program, str(self._rooms))

    @property
    def kept(self) -> int:
        """The number of instances kept."""
        programs = (self._on_buffers, self._plain)
        return sum(program.kept for program in programs if program is not None)

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs by name, the presents too, which may be parts of buffers.

        feeds: the pasts too
        Errors: as `OpenProgram.run`
        """
        rooms, program = self._rooms, self._on_buffers
        if rooms is not None and program is not None:
            mine = self._fed(rooms, feeds)
            with self._or_plain():
                if mine is not None:
                    results = program.run(mine, out)
                    self._ran(program, str(rooms))
                    return results | rooms.made()
        program = self._whole_states()
        results = program.run(feeds, out)
        self._ran(program, f"states are copied: {self._why}")
        return results

    def whole(self, feeds: Mapping[str, Any]) -> Served:
        """Return what runs the graph for the shapes of some feeds."""
        rooms, program = self._rooms, self._on_buffers
        if rooms is not None and program is not None:
            mine = self._fed(rooms, feeds)
            with self._or_plain():
                if mine is not None:
                    served = program.whole(mine)
                    self._saw(program)

                    def cut(results: Mapping[str, Array]) -> dict[str, Array]:
                        return served.cut(results) | rooms.made()

                    return replace(served, cut=cut)
        program = self._whole_states()
        served = program.whole(feeds)
        self._saw(program)
        return served

    @contextmanager
    def _or_plain(self) -> Iterator[None]:
        """Go on after a shape that the program on buffers does not serve, and keep the reason."""
        try:
            yield
        except CompileError as error:
            self._why = error.summary

    def close(self) -> None:
        """Close every instance."""
        for program in (self._on_buffers, self._plain):
            if program is not None:
                program.close()

    def _fed(self, rooms: Rooms, feeds: Mapping[str, Any]) -> Mapping[str, Any] | None:
        found = rooms.feeds(feeds)
        if found is None:
            self._why = "the states are of unequal lengths"
        return found

    def _whole_states(self) -> OpenProgram:
        if self._plain is None:
            self._plain = self._open_plain()
        return self._plain

    def _ran(self, program: OpenProgram, state: str) -> None:
        self._saw(program)
        first, *others = program.stages
        self._stages[:] = [replace(first, state=state), *others]

    def _saw(self, program: OpenProgram) -> None:
        """Have the last instance be that of a program."""
        self._last = program.last
        if self._steps is not None:
            self._steps.sizes = None


def open_stateful(
    prepared: Prepared,
    has_buckets: bool,
    on_buffers: Callable[[Prepared, Places], OpenProgram],
    open_plain: Callable[[], OpenProgram],
) -> StatefulProgram:
    """Return the program of a graph with tied states.

    on_buffers: opens the program of a graph on buffers, given where they lie. A device that serves
        every shape runs it alone: elsewhere each length, so each run, is a program to compile
    """
    ties, states = () if prepared.tied is None else prepared.tied.ties, prepared.states
    if has_buckets:
        found: GrowingGraph | str = "shapes are padded to buckets"
    elif polymorphic_device(prepared.devices) is None:
        found = "no device has kernels for every length"
    else:
        found = growing(prepared.graph, ties)
    if isinstance(found, str):
        return StatefulProgram(None, None, found, open_plain, states, len(ties))
    rooms = Rooms(found)
    program = on_buffers(replace(prepared, graph=found.graph), rooms.places)
    return StatefulProgram(rooms, program, "", open_plain, states, len(ties))
