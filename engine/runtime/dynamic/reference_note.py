"""Warn of numpy references in a run of open shapes, once it is known what runs its regions."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.cost.model import CostModel
from trireme.ir.bind_shapes import shape_advice
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.placement.reference_share import uses_reference
from trireme.runtime.dynamic.resizable import ShapeRun
from trireme.runtime.prepare import HOW_TO_AVOID, Prepared, with_reference_note
from trireme.runtime.program_session import ProgramSession


def note_references(prepared: Prepared, asked: PlacementOptions, regions: Sequence[object]) -> None:
    """Warn where nodes on the numpy reference take much of the predicted time of a run.

    asked: of each placement
    regions: what ran each; nodes that the host runs between them have no prediction
    """
    placements = [one.placement for one in regions if isinstance(one, ProgramSession)]
    if not any(map(uses_reference, placements)):
        return
    costs = CostModel(prepared.devices, prepared.calibration)
    graphs = (one.static_graph for one in regions if isinstance(one, ShapeRun))
    placements += [place(graph, costs, asked) for graph in graphs]
    advice = shape_advice(prepared.graph.input_values())
    fix = f"nodes of fixed sizes have more kernels: {advice}" if advice else HOW_TO_AVOID
    with_reference_note(prepared, placements, fix)
