"""Place the bodies of control flow: each is a graph of its own over the same devices.

The host drives an `if`, a `loop` or a `scan`. What it runs in a turn is placed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trireme.cost.model import BodyCost, CostModel
from trireme.ir.graph import Graph, Node
from trireme.ops.control import bodies_of, repeat_of
from trireme.passes.turns import turn_of, with_own_outputs
from trireme.placement.placement import Placement
from trireme.support.errors import PlacementError, PlanError

PlaceBody = Callable[[Graph], Placement]


@dataclass(frozen=True)
class PlacedBodies:
    """The placements of the bodies of a graph, by body, and why others have none."""

    placements: Mapping[Graph, Placement] = field(default_factory=dict)
    refusals: Mapping[Graph, str] = field(default_factory=dict)

    def costs(self) -> dict[Graph, BodyCost]:
        """Return what one run of each placed body costs."""
        return {
            body: BodyCost(one.makespan_s, next(iter(one.sources), "device"))
            for body, one in self.placements.items()
        }


def place_bodies(graph: Graph, costs: CostModel, place_body: PlaceBody) -> PlacedBodies:
    """Return the placements of the bodies of all nodes that no device compiles."""
    placements: dict[Graph, Placement] = {}
    refusals: dict[Graph, str] = {}
    for node in graph.nodes:
        for original, prepared in turns_of(node).items():
            try:
                placements[original] = place_body(prepared)
            except (PlacementError, PlanError) as error:
                refusals[original] = error.summary
    return PlacedBodies(placements, refusals)


def turns_of(node: Node) -> dict[Graph, Graph]:
    """Return, for each body of a node, the graph that is placed for it."""
    form = repeat_of(node.attrs)
    if form is not None:
        return {form.body: turn_of(form).graph}
    return {body: with_own_outputs(body, body.outputs) for body in bodies_of(node).values()}
