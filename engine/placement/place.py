"""`place`: a device for every node, a lower bound, and the reasons. The only way to a placement.

A graph and a cost model come in; `solve` searches, `shards` shares single nodes and regions between
devices, `uncertainty` declines what the estimates cannot tell, `prove` proves. A Placement goes out
to `plan`. The same graph on the same machine is always placed alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import cast

from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.ir.selectors import pinned, pins_called
from trireme.placement.bodies import place_bodies
from trireme.placement.lock import Lock
from trireme.placement.objective import Objective
from trireme.placement.options import PlacementOptions
from trireme.placement.placement import Placement, Shard
from trireme.placement.pricing import FixedNodes
from trireme.placement.prove import prove
from trireme.placement.shards.choose import shard_as, shard_as_asked, shard_where_it_gains
from trireme.placement.singles import DecidesNoNode, solve_single
from trireme.placement.solve import solve, solve_fixed
from trireme.placement.uncertainty import prefer_single_device
from trireme.support.arguments import checked
from trireme.support.errors import PlacementError


@checked(PlacementError)
def place(
    graph: Graph, costs: CostModel, options: PlacementOptions = PlacementOptions()
) -> Placement:
    """Return the placement of a static graph over the cost model's devices.

    Errors: PlacementError, if a node can run on no device, a pin or a fixed placement cannot be
    kept, a shard cannot be made, or no placement that fits the devices' memory was found;
    PlanError, if a shape is not known; ModelFileError, if a lock cannot be read
    """
    return _with_bodies(graph, costs, replace(options, fixed=options.read_fixed()))


def _with_bodies(
    graph: Graph, costs: CostModel, options: PlacementOptions, is_body: bool = False
) -> Placement:
    """Return the placement of a graph and of the bodies in it.

    is_body: whether a graph around it may be what `single_device` decides
    """
    inner = replace(options, pins={}, fixed=None, sharding="off", prove_s=None)
    bodies = place_bodies(
        graph,
        lambda body, held: _with_bodies(body, costs, replace(inner, fixed=held), is_body=True),
        partial(_fixed_body, cast(FixedNodes | Placement | Lock | None, options.fixed)),
    )
    costs = costs.with_bodies(bodies.costs(costs.devices))
    try:
        placed = _placed(graph, costs, options)
    except DecidesNoNode:
        inside = (one.uses(str(options.single_device)) for one in bodies.placements.values())
        if not is_body and not any(inside):
            raise
        placed = _placed(graph, costs, replace(options, single_device=None))
    return replace(placed, bodies=bodies.placements, unplaced=bodies.refusals)


def _fixed_body(
    fixed: FixedNodes | Placement | Lock | None, name: str, attribute: str, body: Graph
) -> Lock | Placement | None:
    """Return where the nodes of a body are fixed; None where the search decides."""
    if isinstance(fixed, Lock):
        return fixed.of_body(name, attribute)
    return fixed.bodies.get(body) if isinstance(fixed, Placement) else None


def _placed(graph: Graph, costs: CostModel, options: PlacementOptions) -> Placement:
    """Return the placement of a graph whose bodies are priced."""
    fixed = options.read_fixed()
    pins = pins_called(graph, options.pins, costs.devices)
    if fixed is not None:
        return _fixed(graph, costs, options.goal, fixed, pins)
    graph = pinned(graph, pins)
    if options.single_device is not None:
        return solve_single(graph, costs, options.single_device, options.goal)
    placed = solve(graph, costs, options.goal, quick=options.quick)
    placed = replace(placed, price_pins=_price_pins(placed, costs))
    if options.sharding not in ("auto", "off"):
        texts = [options.sharding] if isinstance(options.sharding, str) else options.sharding
        placed = shard_as_asked(placed, costs, texts)
    return _decided(placed, costs, options)


def _decided(placed: Placement, costs: CostModel, options: PlacementOptions) -> Placement:
    """Return the placement proven, with one device where that is as good, and sharded where that
    gains. What shards were asked for stands.
    """
    if options.prove_s is not None:
        placed = prove(placed, costs, options.prove_s)
    if placed.shards or options.sharding not in ("auto", "off"):
        return placed
    if options.multi_device == "significant":
        placed = prefer_single_device(placed, costs)
    if options.sharding == "off" or options.prove_s is not None:
        return placed
    return shard_where_it_gains(placed, costs, options.multi_device)


def _fixed(
    graph: Graph,
    costs: CostModel,
    objective: Objective,
    fixed: FixedNodes | Placement | Lock,
    pins: Mapping[int, str],
) -> Placement:
    """Return the placement with nodes where they are fixed, shards included.

    Errors: PlacementError, if what is fixed is of another graph
    """
    if isinstance(fixed, Placement):
        if {node.id for node in graph.nodes} != {node.id for node in fixed.source.nodes}:
            graph = shard_as(graph, [one.text for one in fixed.shards], costs.devices)
        placed = solve_fixed(graph, costs, objective, fixed, pins)
        return replace(placed, shards=fixed.shards)
    if isinstance(fixed, FixedNodes):
        return solve_fixed(graph, costs, objective, fixed, pins)
    graph = shard_as(graph, fixed.shards, costs.devices)
    placed = solve_fixed(graph, costs, objective, fixed.fixed_nodes(graph), pins)
    done = tuple(Shard(text, "it is in the lock") for text in fixed.shards)
    return replace(placed, shards=done)


def _price_pins(placed: Placement, costs: CostModel) -> Callable[[], float] | None:
    """Return what prices the pins of a placement, once, when it is first called.

    None where nothing is pinned. A session that nobody asks to explain itself never calls it.
    """
    if not any(node.pin for node in placed.source.nodes):
        return None
    return cache(partial(_cost_of_pins, placed, costs))


def _cost_of_pins(placed: Placement, costs: CostModel) -> float:
    """Return how much more a placement scores than the one found without any pin."""
    graph = placed.source
    free = replace(graph, nodes=tuple(replace(node, pin=None) for node in graph.nodes))
    objective = cast(Objective, placed.score.objective)
    return max(placed.score.value - solve(free, costs, objective).score.value, 0.0)
