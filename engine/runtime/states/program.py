"""A program with open shapes and states: on buffers where they can be, else as whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from trireme.backend.device import Buffer
from trireme.ir.effects import States
from trireme.ir.graph import Graph
from trireme.runtime.dynamic.instance import Instance
from trireme.runtime.dynamic.instances import OpenGraph
from trireme.runtime.dynamic.kept import Shapes
from trireme.runtime.dynamic.polymorphic import PolymorphicGraph, polymorphic_device
from trireme.runtime.dynamic.program import OpenProgram, Served
from trireme.runtime.dynamic.reports import StageReport
from trireme.runtime.prepare import Prepared
from trireme.runtime.states.growth import GrowingGraph, growing
from trireme.runtime.states.rooms import Rooms
from trireme.runtime.states.steps import StateSteps, state_steps
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, PlacementError

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
