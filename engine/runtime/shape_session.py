"""A session of some shapes of a program that serves all, with a plan and memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trireme.runtime.program_session import ProgramSession
from trireme.support.errors import InternalError

if TYPE_CHECKING:
    from trireme.backend.device import Buffer
    from trireme.ir.graph import Graph
    from trireme.placement.options import PlacementOptions
    from trireme.runtime.context import ExecutionContext
    from trireme.runtime.dynamic.polymorphic import PolymorphicGraph
    from trireme.runtime.executors import Mode
    from trireme.runtime.io_binding import DirectRun, Runs
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.prepare import Prepared
    from trireme.runtime.program import Program
    from trireme.support.dtypes import Array

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
        self.execution_options = whole.execution_options
        self.placement_options = whole.placement_options
        self.graph, self.states = program.plan.placement.source, prepared.states
        self.unmeasured, self._calibration = prepared.unmeasured, prepared.calibration
        self._mode, self._whole_graph, self._is_priced = mode, graph, False
        self._places = places
        self._keep(program, self._memory(program), mode)

    def price(self) -> None:
        """Have the estimates of its shapes, which runs do without."""
        if not self._is_priced:
            program = self._whole_graph.priced(self._program)
            self._keep(program, self._memory(program), self._mode)
            self._is_priced = True

    def _run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        if self._whole_graph.runs_at_once:
            return super()._run(feeds, out)
        with self._whole_graph.turn:
            return super()._run(feeds, out)

    def _direct_of(self, runs: Runs) -> DirectRun | None:
        direct = super()._direct_of(runs)
        if direct is None or self._whole_graph.runs_at_once:
            return direct
        turn = self._whole_graph.turn

        def in_turn(feeds: Mapping[str, Any]) -> dict[str, Array]:
            with turn:
                return direct(feeds)

        return in_turn

    def _memory(self, program: Program) -> ExecutionContext:
        places = None if self._places is None else self._places(program.plan.graph)
        return self._whole_graph.context(program, places)


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
