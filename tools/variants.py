"""Variants of a described machine: the best placement of each, and where it flips between two.

`trireme whatif` asks for them and prints them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.devices.described import Soc
from trireme.ir.graph import Graph, node_names
from trireme.placement.objective import Objective, Scorer
from trireme.placement.options import PlacementOptions, Sharding
from trireme.placement.place import place
from trireme.placement.placement import Placement
from trireme.placement.pricing import Pricing
from trireme.placement.shards.choose import shard_as
from trireme.placement.shards.spec import parse
from trireme.support.errors import PlacementError, RunError
from trireme.tools.figures import VariedFigure
from trireme.tools.progress import Progress

_MOST = 400
_WORTH = 1e-3
"""A placement changes where that gains more than this share; else the one before is kept."""
_NARROW = 1e-3
"""How narrow, as a share, the bracket of a crossing is made."""


@dataclass(frozen=True)
class Variant:
    """One machine: the values of the axes, the placement, and its score in seconds or joules.

    where: for each node of the model its device, or those that share it
    found_at: values of the axes at which this placement was found; another variant's, where moving
        to the placement found here gains next to nothing
    """

    values: tuple[float, ...]
    placement: Placement
    where: tuple[str, ...]
    score: float
    found_at: tuple[float, ...]

    @property
    def shards(self) -> list[str]:
        """Return what is sharded, in the form that `--shard` takes."""
        return [one.text for one in self.placement.shards]

    def to_json(self) -> dict[str, Any]:
        """Return the variant as plain data."""
        return {
            "values": self.values,
            "score": self.score,
            "where": self.where,
            "shards": self.shards,
        }


@dataclass(frozen=True)
class Flip:
    """Between two neighbours on an axis: the nodes that move, and what moving gains.

    gain: seconds or joules at the second neighbour; infinite where the first placement cannot be
        there
    crossing: the value between the neighbours at which both placements score the same; None where
        one of them is the better at both, or cannot be
    """

    axis: str
    others: tuple[str, ...]
    low: float
    high: float
    moves: Mapping[str, tuple[str, ...]]
    gain: float
    crossing: float | None
    before: Variant
    after: Variant

    def to_json(self) -> dict[str, Any]:
        """Return the flip as plain data; no gain where the placement before is impossible there."""
        data = {key: value for key, value in vars(self).items() if key not in ("before", "after")}
        return {**data, "gain": self.gain if self.gain < math.inf else None}


def variants(
    graph: Graph,
    soc: Soc,
    axes: Sequence[VariedFigure],
    objective: Objective,
    progress: Progress,
    asked: Sharding = "auto",
) -> tuple[list[Variant], list[Flip]]:
    """Return the best placement for every combination of the axes' values, and the flips.

    asked: what to shard
    Errors: RunError, if there are too many, two axes vary one figure, or a figure cannot have a
    value; those of `place`
    """
    found: dict[tuple[int, ...], Variant] = {}
    flips: list[Flip] = []
    _check_apart(axes)
    places = list(itertools.product(*(range(len(axis.values)) for axis in axes)))
    if len(places) > _MOST:
        raise RunError(f"{len(places)} variants are more than {_MOST}", fix="fewer --steps")
    machines = [_machine(soc, axes, at) for at in places]
    names = list(node_names(graph).values())
    for number, (at, machine) in enumerate(zip(places, machines, strict=True)):
        progress("placing variants", number, len(places))
        costs = CostModel(dict(machine.devices()), Calibration())
        values = tuple(axis.values[i] for axis, i in zip(axes, at, strict=True))
        near = {a: found[_before(at, a)] for a in range(len(axes)) if at[a]}
        held = {a: held_score(graph, costs, objective, one) for a, one in near.items()}
        placed = place(graph, costs, PlacementOptions(objective=objective, sharding=asked))
        where = where_nodes_are(graph, placed)
        one = Variant(values, placed, where, placed.score.value, values)
        found[at] = one = _steady(one, near, held)
        for a, before in near.items():
            moves = _moves(names, before.where, one.where)
            if moves:
                others = tuple(axes[b].text(values[b]) for b in range(len(axes)) if b != a)
                crossing = _Crossing(graph, soc, axes, a, objective, before, one).value()
                flips.append(
                    Flip(
                        axes[a].figure,
                        others,
                        before.values[a],
                        values[a],
                        moves,
                        held[a] - one.score,
                        crossing,
                        before,
                        one,
                    )
                )
    return list(found.values()), flips


@dataclass(frozen=True)
class _Crossing:
    """Two placements of neighbours on an axis, both held while the axis takes values between."""

    graph: Graph
    soc: Soc
    axes: Sequence[VariedFigure]
    axis: int
    objective: Objective
    before: Variant
    after: Variant

    def value(self) -> float | None:
        """Return the value at which both score the same, to a thousandth, by bisection; None where
        the difference does not change its sign between the neighbours.
        """
        low, high = self.before.values[self.axis], self.after.values[self.axis]
        if not (self.lead(low) <= 0 < self.lead(high)):
            return None
        while abs(high - low) > _NARROW * max(abs(low), abs(high)):
            middle = math.sqrt(low * high) if low * high > 0 else (low + high) / 2
            low, high = (middle, high) if self.lead(middle) <= 0 else (low, middle)
        return high

    def lead(self, value: float) -> float:
        """Return how much less the second placement scores at a value of the axis."""
        values = list(self.after.values)
        values[self.axis] = value
        costs = CostModel(dict(_machine_of(self.soc, self.axes, values).devices()), Calibration())
        one, other = (
            held_score(self.graph, costs, self.objective, side)
            for side in (self.before, self.after)
        )
        return one - other if one != other else 0.0


def _steady(one: Variant, near: Mapping[int, Variant], held: Mapping[int, float]) -> Variant:
    """Return a variant, placed as the neighbour is whose placement takes least here, unless its own
    gains by more than a trifle over that.
    """
    best = min(near, key=lambda a: held[a], default=None)
    if best is None or one.where == near[best].where or held[best] > one.score * (1 + _WORTH):
        return one
    return replace(near[best], values=one.values, score=held[best])


def _check_apart(axes: Sequence[VariedFigure]) -> None:
    for one, other in itertools.combinations(axes, 2):
        both = [name for name in one.names if name in other.names]
        if both:
            raise RunError(f"--vary {one.figure} and --vary {other.figure} both vary {both[0]}")


def _machine(soc: Soc, axes: Sequence[VariedFigure], at: Sequence[int]) -> Soc:
    """Return the machine at a place of the grid."""
    return _machine_of(soc, axes, [axis.values[i] for axis, i in zip(axes, at, strict=True)])


def _machine_of(soc: Soc, axes: Sequence[VariedFigure], values: Sequence[float]) -> Soc:
    """Return the machine with the axes at these values."""
    changes: dict[str, float] = {}
    for axis, value in zip(axes, values, strict=True):
        changes.update(axis.changes(soc, value))
    return soc.varied(changes)


def _before(at: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*at[:axis], at[axis] - 1, *at[axis + 1 :])


def held_score(graph: Graph, costs: CostModel, objective: Objective, one: Variant) -> float:
    """Return what a variant's placement scores on another machine; infinite if it cannot be."""
    try:
        if one.shards:
            fixed = PlacementOptions(objective=objective, fixed=one.placement)
            return place(graph, costs, fixed).score.value
        pricing = Pricing.of(graph, costs)
        assigned, _ = pricing.assignment_of(one.placement)
    except PlacementError:
        return math.inf
    scorer = Scorer(pricing.problem, objective)
    score, tasks = scorer.evaluate(assigned)
    return math.inf if scorer.overfull(assigned, tasks) else score


def where_nodes_are(graph: Graph, placed: Placement) -> tuple[str, ...]:
    """Return the device of each node of a graph, or how devices share it: "cpu+npu by rows"."""
    where = {node: choice.device for node, choice in placed.choices.items()}
    made = graph
    for one in placed.shards:
        request = parse(made, one.text, placed.specs)
        shared = f"{'+'.join(request.devices)} by {request.kind}"
        where.update(dict.fromkeys(request.nodes, shared))
        made = shard_as(made, [one.text], placed.specs)
    return tuple(where[node.id] for node in graph.nodes)


def _moves(
    names: Sequence[str], old: Sequence[str], new: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return "from -> to" and the nodes that move so."""
    found: dict[str, list[str]] = {}
    for name, one, two in zip(names, old, new, strict=True):
        if one != two:
            found.setdefault(f"{one} -> {two}", []).append(name)
    return {way: tuple(moved) for way, moved in found.items()}
