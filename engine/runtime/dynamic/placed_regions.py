"""The placements of a run of open shapes, and a warning of numpy references in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trireme.cost.model import CostModel
from trireme.ir.bind_shapes import shape_advice
from trireme.ir.graph import Graph
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.placement.placement import Placement
from trireme.placement.reference_share import uses_reference
from trireme.runtime.dynamic.polymorphic import polymorphic_device
from trireme.runtime.dynamic.resizable import ShapeRun
from trireme.runtime.prepare import HOW_TO_AVOID, Prepared, with_reference_note
from trireme.runtime.program_session import ProgramSession
from trireme.runtime.shape_session import ShapeSession


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
