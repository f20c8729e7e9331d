"""The programs of a session with open shapes, or with a dynamic schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from trireme.ir.bind_shapes import shape_advice
from trireme.runtime.control.body import Workshop
from trireme.runtime.dataflow.program import WORKERS, DataflowProgram
from trireme.runtime.dynamic.instance import PlacedRegion, StaticRegion
from trireme.runtime.dynamic.kept import Shapes
from trireme.runtime.dynamic.polymorphic import PolymorphicGraph, polymorphic_device
from trireme.runtime.dynamic.program import OpenProgram, open_program
from trireme.runtime.shape_session import ShapeOptions, ShapeSession
from trireme.runtime.states.program import PolymorphicOnly, StatefulProgram, Step, open_stateful
from trireme.support.errors import PlacementError

if TYPE_CHECKING:
    from trireme.ir.graph import Graph
    from trireme.placement.options import PlacementOptions
    from trireme.runtime.executors import Mode
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.prepare import Prepared
    from trireme.runtime.shape_session import Places


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
