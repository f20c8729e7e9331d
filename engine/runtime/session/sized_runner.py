"""The runner of open shapes and of a dynamic schedule: a run finds the program of its shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from trireme.ir.bind_shapes import shape_advice
from trireme.ir.graph import Dim, Graph
from trireme.ir.op import get_op
from trireme.runtime.calls.bound_run import MovingIO
from trireme.runtime.control.body import Workshop
from trireme.runtime.dataflow.program import WORKERS, DataflowProgram
from trireme.runtime.models.stored import Entry, entry_of
from trireme.runtime.program.io_binding import IN_PLACE_BYTES
from trireme.runtime.session.open_program import OpenProgram, open_program
from trireme.runtime.session.program_session import ProgramSession
from trireme.runtime.session.shape_session import ShapeOptions, ShapeSession, priced
from trireme.runtime.session.stateful_program import (
    PolymorphicOnly,
    StatefulProgram,
    Step,
    open_stateful,
)
from trireme.runtime.shapes.ahead import Shapes
from trireme.runtime.shapes.instance import PlacedRegion, StaticRegion
from trireme.runtime.shapes.polymorphic import PolymorphicGraph, polymorphic_device
from trireme.runtime.shapes.resizable import ResizableGraph, ShapeRun
from trireme.support.dtypes import Array
from trireme.support.errors import PlacementError, RunError
from trireme.support.mapped import OpenFile

if TYPE_CHECKING:
    from trireme.backend.device import Device
    from trireme.placement.options import PlacementOptions
    from trireme.runtime.dataflow.executor import PrimitiveSpan
    from trireme.runtime.loop.executors import Mode
    from trireme.runtime.models.prepare import Prepared
    from trireme.runtime.program.options import ExecutionOptions
    from trireme.runtime.session.program_runner import ProgramRunner
    from trireme.runtime.session.session_faults import SessionFaults
    from trireme.runtime.session.shape_session import Places


def moving_in(program: object, feeds: Mapping[str, Array]) -> MovingIO | None:
    """Return what runs of these feeds read and write where it is; None where they copy all.

    program: what a session runs; buckets pad, and the host hands out what several programs make
    """
    if not isinstance(program, OpenProgram) or program.pads:
        return None
    try:
        region = program.whole(feeds).region
    except RunError:
        return None
    if isinstance(region, ShapeRun):
        return MovingIO(region.moves, 0)
    if isinstance(region, ProgramSession):
        return MovingIO(region.moves, IN_PLACE_BYTES)
    return None


def open_entry(
    run: ShapeRun,
    graph: Graph,
    files: Sequence[OpenFile],
    notes: Sequence[str],
    is_mapped: bool,
) -> Entry | None:
    """Return the entry of a program at the shapes of a run; None where it has none.

    graph: with open shapes; the others are as of `entry_of`
    """
    opened = run.open_session()
    try:
        if not isinstance(opened, ProgramSession):
            return None
        sizing = sizing_facts(run.whole)
        return entry_of(opened.ready.latest().context, files, notes, is_mapped, graph, sizing)
    finally:
        opened.close()


def sizing_facts(whole: ResizableGraph) -> dict[str, Any] | None:
    """Return the symbols, their bounds and what must agree; None where inference must be asked.

    agree: pairs of dimensions, of which the first is 1 or the second: nodes broadcast them
    """
    graph, agree = whole.closed.graph, list[tuple[Dim, Dim]]()
    if whole.ports.others:
        return None
    for node in whole.checks.nodes:
        if node.op != "expand" and not get_op(node.op).elementwise:
            return None
        made = graph.type(node.outputs[0]).shape
        for value in node.used[: 1 if node.op == "expand" else None]:
            shape = graph.type(value).shape
            pairs = zip(shape, made[len(made) - len(shape) :], strict=True)
            agree += [pair for pair in pairs if pair[0] not in (1, pair[1])]
    bounds = [graph.symbols.get(name, (0, None)) for name in whole.contents.names]
    return {"names": whole.contents.names, "bounds": bounds, "agree": list(dict.fromkeys(agree))}


class WatchableRegion(PlacedRegion, Protocol):
    """A session that can be watched."""

    def watch_tasks(self) -> None:
        """Give a task up that hangs."""


class WatchableRegions:
    """Opens sessions for graphs of static shapes; from `watch` on, tasks of theirs that hang end.

    open_session: opens one, with options
    """

    def __init__(self, open_session: Callable[..., WatchableRegion], **options: object) -> None:
        self._open = partial(open_session, **options)
        self._watches = False

    def __call__(self, graph: Graph) -> PlacedRegion:
        """Return the session of a graph."""
        opened = self._open(graph)
        if self._watches:
            opened.watch_tasks()
        return opened

    def watch(self) -> None:
        """Have the sessions watched that are opened from now on."""
        self._watches = True


def open_shapes(
    whole: ShapeOptions,
    prepared: Prepared,
    mode: Mode,
    asked: PlacementOptions,
    buckets: Mapping[str, Sequence[int]] | None,
    open_region: Callable[[Graph], PlacedRegion],
) -> OpenProgram | StatefulProgram:
    """Return what finds the instance for the shapes of each run.

    whole: the options of the session; asked: of each placement
    open_region: opens a session for a graph of static shapes
    Errors: PlacementError, if a placement is fixed
    """
    if asked.fixed is not None:
        raise PlacementError(
            "a placement is fixed for a model whose shapes are open",
            fix=shape_advice(prepared.graph.input_values()) or "leave out placement=",
        )
    how = whole.execution_options
    open_plain = partial(
        open_program,
        prepared,
        asked,
        how,
        open_region,
        partial(_of_shapes, whole, prepared, mode),
        buckets,
    )

    def on_buffers(mine: Prepared, places: Places) -> OpenProgram:
        open_one = partial(_of_shapes, whole, mine, mode, places=places)
        one_device = asked.single_device or polymorphic_device(mine.devices)
        alone = replace(asked, single_device=one_device)
        return open_program(mine, alone, how, open_region, open_one, kind=PolymorphicOnly)

    if prepared.tied is None:
        return open_plain()
    return open_stateful(prepared, bool(buckets), on_buffers, open_plain)


def step_of(program: OpenProgram | StatefulProgram | DataflowProgram) -> Step | None:
    """Return what runs a program on states as they lie; None without states."""
    return program.step if isinstance(program, StatefulProgram) else None


def dataflow_program(prepared: Prepared, how: ExecutionOptions, mode: Mode) -> DataflowProgram:
    """Return what runs the dataflow form of the graph."""
    workshop = Workshop(prepared.devices, prepared.calibration, how)
    workers = 0 if mode == "serial" else WORKERS
    return DataflowProgram(prepared.graph, workshop, prepared.states, workers)


def _of_shapes(
    whole: ShapeOptions,
    prepared: Prepared,
    mode: Mode,
    program: PolymorphicGraph,
    shapes: Shapes,
    places: Places | None = None,
) -> StaticRegion:
    """Return what runs some shapes of a program that serves all.

    places: says where inputs of a graph lie that are not in the arena
    """
    open_session = partial(ShapeSession, whole, prepared, mode, program, places=places)
    return program.region(shapes, open_session)


class SizedRunner:
    """Runs a model whose shapes are open.

    program: finds what runs feeds; devices: the open ones
    store_shapes: stores the program at the shapes of the next run, for later processes
    direct: no run has one function for all shapes
    """

    direct, is_sized = None, True
    store_shapes: Callable[[ShapeRun], None] | None = None

    def __init__(
        self,
        program: OpenProgram | DataflowProgram | StatefulProgram,
        prepared: Prepared,
        faults: SessionFaults,
        watch_regions: Callable[[], None] | None,
    ) -> None:
        self.program, self._prepared, self._faults = program, prepared, faults
        self.tied = prepared.tied
        self._watch_regions, self._regions_are_watched = watch_regions, False
        self._step: Step | None = step_of(program)

    @property
    def devices(self) -> Mapping[str, Device]:
        """The open devices, by name."""
        return self._prepared.devices

    @property
    def open_program(self) -> OpenProgram | None:
        """The program, where shapes are open and no states grow in it."""
        return self.program if isinstance(self.program, OpenProgram) else None

    @property
    def spans(self) -> Sequence[PrimitiveSpan]:
        """With a dynamic schedule, when each op of the last run ran."""
        return self.program.spans if isinstance(self.program, DataflowProgram) else ()

    def choose_direct(self) -> None:
        """Step on states that grow in place where nothing is watched."""
        self._step = None if self._faults.is_watched else step_of(self.program)

    def watch_tasks(self) -> None:
        """Watch the sessions of regions; without any, nothing hangs unseen."""
        if self._watch_regions is not None:
            self._watch_regions()
            self._regions_are_watched = True

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs of a run.

        Errors: DeviceOut, if a device is passed over
        """
        tied = self.tied
        if tied is None:
            return self._run(feeds, out)
        if out is None and self._step is not None:
            made = self._step(feeds)
            if made is not None:
                return made
        out, asked = tied.outputs_asked(out)
        return tied.keep(self._run(tied.feeds(feeds), out), asked)

    def run_beside(
        self, number: int, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Return the outputs of a run: instances find memory for each of its callers."""
        return self.run(feeds, out)

    def _run(self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None) -> dict[str, Array]:
        self._faults.begin()
        if self._regions_are_watched:
            from trireme.runtime.loop.watchdog import holding_turn

            with holding_turn(self._faults):
                results = self.program.run(feeds, out)
        else:
            results = self.program.run(feeds, out)
        if self.store_shapes is not None:
            self._store_shapes()
        return results

    def _store_shapes(self) -> None:
        """Store the program at the shapes of the run that is just over, for later processes."""
        store = vars(self).pop("store_shapes", None)  # one of several callers has it
        last = None if self.open_program is None else self.open_program.last
        if store is not None and last is not None and isinstance(last.region, ShapeRun):
            store(last.region)

    def latest(self) -> ProgramRunner:
        """Return the runner of the program that ran last.

        Errors: RunError, before a run, and if no program or more than one ran
        """
        from trireme.ir.bind_shapes import shape_advice

        last, stages = self.program.last, self.program.stages
        if last is None and len(stages) > 1:
            raise RunError(
                f"the last run went through {len(stages)} regions, each with a program",
                fix="session.at(feeds) has one program for the shapes of some feeds",
            )
        if (last is None or last.region is None) and stages:
            raise RunError(
                f"the last run had no program: {stages[0].ran_by}",
                fix="session.stages says what ran, session.profile_stages(feeds) what it took",
            )
        if last is None or last.region is None:
            raise RunError(
                "no program has run: the shapes are open",
                fix=shape_advice(self._prepared.inputs) or "run the session first",
            )
        return priced(last.region).ready.latest()
