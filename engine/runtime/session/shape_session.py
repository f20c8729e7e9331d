"""A session of some shapes of a program that serves all, and the placements of its regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from trireme.cost.model import CostModel
from trireme.ir.bind_shapes import shape_advice
from trireme.ir.graph import Graph
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.placement.placement import Placement
from trireme.placement.reference_share import uses_reference
from trireme.runtime.models.prepare import HOW_TO_AVOID, Prepared, with_reference_note
from trireme.runtime.program.contexts import ContextCount
from trireme.runtime.session.program_runner import ProgramRunner
from trireme.runtime.session.program_session import ProgramSession
from trireme.runtime.session.runners import ReadyModel
from trireme.runtime.shapes.polymorphic import polymorphic_device
from trireme.runtime.shapes.resizable import ShapeRun
from trireme.support.errors import InternalError

if TYPE_CHECKING:
    from trireme.backend.device import Buffer
    from trireme.runtime.loop.executors import Mode
    from trireme.runtime.program.options import ExecutionOptions
    from trireme.runtime.program.program import Program
    from trireme.runtime.shapes.polymorphic import PolymorphicGraph

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
    from trireme.runtime.shapes.resizable import ShapeRun

    if isinstance(region, ShapeRun):
        region = region.session
    if not isinstance(region, ProgramSession):
        raise InternalError(f"an instance is a {type(region).__name__}")
    if isinstance(region, ShapeSession):
        region.price()
    return region


class PlacedRegions:
    """Places what runs the regions of a graph with open shapes; asked: of each placement."""

    def __init__(self, prepared: Prepared, asked: PlacementOptions) -> None:
        self._prepared = prepared
        self._costs = CostModel(prepared.devices, prepared.calibration)
        self._asked = replace(asked, single_device=polymorphic_device(prepared.devices))
        self._told = False

    def of(self, regions: Sequence[object]) -> list[Placement]:
        """Return the placement of each region, priced at its sizes; numpy's regions have none."""
        found = []
        for one in regions:
            if isinstance(one, ShapeRun):
                found.append(self._priced(one.static_graph))
            elif isinstance(one, ShapeSession):  # its own estimates are those of usual sizes
                found.append(self._priced(one.graph))
            elif isinstance(one, ProgramSession):
                found.append(one.placement)
        return found

    def note_references(self, regions: Sequence[object]) -> None:
        """Warn, for the first run, where numpy references take much of its predicted time.

        Nodes that the host runs between the regions have no prediction.
        """
        if self._told:
            return
        self._told = True
        own = (one.placement for one in regions if isinstance(one, ProgramSession))
        if any(map(uses_reference, own)):
            advice = shape_advice(self._prepared.graph.input_values())
            fix = f"nodes of fixed sizes have more kernels: {advice}" if advice else HOW_TO_AVOID
            with_reference_note(self._prepared, self.of(regions), fix)

    def _priced(self, graph: Graph) -> Placement:
        return place(graph, self._costs, self._asked)
