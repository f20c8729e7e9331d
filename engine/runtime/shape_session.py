"""A session of some shapes of a program that serves all, with a plan and memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from trireme.runtime.contexts import ContextCount
from trireme.runtime.program_runner import ProgramRunner
from trireme.runtime.program_session import ProgramSession
from trireme.runtime.runners import ReadyModel
from trireme.support.errors import InternalError

if TYPE_CHECKING:
    from trireme.backend.device import Buffer
    from trireme.ir.graph import Graph
    from trireme.placement.options import PlacementOptions
    from trireme.runtime.dynamic.polymorphic import PolymorphicGraph
    from trireme.runtime.executors import Mode
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.prepare import Prepared
    from trireme.runtime.program import Program

    Places = Callable[[Graph], Mapping[int, Buffer]]
    """Says where inputs of a graph lie that are not in its arena."""


class ShapeOptions(NamedTuple):
    """The options of the session whose shapes are open."""

    execution_options: ExecutionOptions
    placement_options: PlacementOptions


class ShapeSession(ProgramSession):
    """Some shapes of a program that serves all; estimates come when they are asked for."""

    def __init__(
        self,
        whole: ShapeOptions,
        prepared: Prepared,
        mode: Mode,
        graph: PolymorphicGraph,
        program: Program,
        places: Places | None,
    ) -> None:
        self._begin()
        self._mode, self._whole_graph, self._places = mode, graph, places
        source = program.plan.placement.source
        own = replace(prepared, graph=source, tied=None)
        count = ContextCount(1, "it runs one set of shapes of a session")
        self._keep(ReadyModel(own, *whole, self._runner_of(program), count))
        self._is_priced = False

    def price(self) -> None:
        """Have the estimates of its shapes, which runs do without."""
        if not self._is_priced:
            program = self._whole_graph.priced(self.program)
            self._keep(replace(self.ready, runner=self._runner_of(program)))
            self._is_priced = True

    def _runner_of(self, program: Program) -> ProgramRunner:
        whole = self._whole_graph
        places = None if self._places is None else self._places(program.plan.graph)
        context = whole.context(program, places)
        turn = None if whole.runs_at_once else whole.turn
        return ProgramRunner(program, context, self._mode, self.faults, self._closing, turn=turn)


def priced(region: object) -> ProgramSession:
    """Return a region as a session, with the estimates of its shapes."""
    from trireme.runtime.dynamic.resizable import ShapeRun

    if isinstance(region, ShapeRun):
        region = region.session
    if not isinstance(region, ProgramSession):
        raise InternalError(f"an instance is a {type(region).__name__}")
    if isinstance(region, ShapeSession):
        region.price()
    return region
