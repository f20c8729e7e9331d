"""Place the bodies of control flow: each is a graph of its own over the same devices.

The host drives an `if`, a `loop` or a `scan`. What it runs in a turn is placed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from trireme.backend.device import Device
from trireme.cost.estimate import Source
from trireme.cost.model import NATIVE_TURN_S, TURN_S, BodyCost
from trireme.ir.graph import Graph, Node, node_names
from trireme.ops.repeats import bodies_of, pinned_inside, repeat_of
from trireme.passes.turns import turn_of, with_own_outputs
from trireme.placement.lock import Lock
from trireme.placement.placement import Placement
from trireme.support.errors import PlacementError, PlanError
from trireme.support.records import dataclass

Fixed = Lock | Placement | None
PlaceBody = Callable[[Graph, Fixed], Placement]
FixedBody = Callable[[str, str, Graph], Fixed]


def no_fixed_body(name: str, attribute: str, body: Graph) -> Fixed:
    """Return None: the search decides about every body."""
    return None


@dataclass(frozen=True)
class PlacedBodies:
    """The placements of the bodies of a graph, by body, and why others have none."""

    placements: Mapping[Graph, Placement] = field(default_factory=dict)
    refusals: Mapping[Graph, str] = field(default_factory=dict)

    def costs(self, devices: Mapping[str, Device]) -> dict[Graph, BodyCost]:
        """Return what one run of each placed body costs on these devices."""
        return {body: _cost(one, devices) for body, one in self.placements.items()}


def _cost(placed: Placement, devices: Mapping[str, Device]) -> BodyCost:
    """Return the seconds of a turn; native turns of one task pay no launch and no turn."""
    source: Source = next(iter(placed.sources), "device")
    used = set(placed.device_of.values())
    name = next(iter(used), "")
    if used and not placed.divided and devices[name].repeats_calls:
        return BodyCost(max(placed.makespan_s - placed.launch_s[name], 0.0), source, NATIVE_TURN_S)
    return BodyCost(placed.makespan_s, source, TURN_S)


def place_bodies(
    graph: Graph, place_body: PlaceBody, fixed_body: FixedBody = no_fixed_body
) -> PlacedBodies:
    """Return the placements of the bodies of all nodes that no device compiles.

    place_body: places a body, given where its nodes are to be; fixed_body: returns what is fixed of
        the body of a node, by its name, the attribute and the body as the node has it
    Errors: PlacementError, if what is fixed is of another body, or a pin in a body of known types
        cannot be honoured
    """
    names = node_names(graph)
    placements: dict[Graph, Placement] = {}
    refusals: dict[Graph, str] = {}
    for node in graph.nodes:
        keys = {body: key for key, body in bodies_of(node).items()}
        for original, prepared in turns_of(node).items():
            fixed = fixed_body(names[node.id], keys[original], original)
            if isinstance(fixed, Lock):
                fixed.fixed_nodes(prepared)  # an error of its own, before any of placing the body
            try:
                placements[original] = place_body(prepared, fixed)
            except (PlacementError, PlanError) as error:
                is_static = all(prepared.type(value).is_static for value in prepared.inputs)
                if is_static and pinned_inside(prepared) is not None:
                    raise
                refusals[original] = error.summary
    return PlacedBodies(placements, refusals)


def turns_of(node: Node) -> dict[Graph, Graph]:
    """Return, for each body of a node, the graph that is placed for it."""
    form = repeat_of(node.attrs)
    if form is not None:
        return {form.body: turn_of(form).graph}
    return {body: with_own_outputs(body, body.outputs) for body in bodies_of(node).values()}
