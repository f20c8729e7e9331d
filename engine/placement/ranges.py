"""Place a graph over the range of a symbol: which placement is best where, and where it flips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from trireme.cost.model import CostModel
from trireme.ir.bind_shapes import bind_shapes, shapes_at
from trireme.ir.graph import Graph
from trireme.passes.pipeline import optimise
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.placement.placement import Placement
from trireme.support.errors import ShapeError

GRID = 2
"""Sizes that are tried are this times as large, from the least to the most."""


@dataclass(frozen=True)
class PlacedRange:
    """Sizes of a symbol with one placement.

    low, high: the least and the largest size
    nodes: nodes by device, at both ends the same
    at_low, at_high: the placements at both ends, with their predicted seconds
    """

    low: int
    high: int
    nodes: Mapping[str, int]
    at_low: Placement
    at_high: Placement


def place_over(
    graph: Graph, costs: CostModel, options: PlacementOptions, symbol: str, low: int, high: int
) -> list[PlacedRange]:
    """Return the ranges of a symbol's sizes, low to high, each with one placement.

    The other symbols of the graph are bound. Sizes are tried on a grid, and the size at which two
    neighbours differ is found by halving, so a range narrower than the grid may be missed.
    Errors: ShapeError, if there is no such symbol or range; those of `place`
    """
    if not 0 <= low <= high:
        raise ShapeError(f"symbol {symbol}: no range from {low} to {high}")
    placed: dict[int, Placement] = {}

    def at(size: int) -> Placement:
        if size not in placed:
            bound = optimise(bind_shapes(graph, shapes_at(graph, {symbol: size})))
            placed[size] = place(bound, costs, options)
        return placed[size]

    found: list[PlacedRange] = []
    start = low
    for here, there in _neighbours(low, high):
        while not _same(at(here), at(there)):
            end = _last_like(here, there, at)
            found.append(_range(start, end, at))
            start = here = end + 1
    return [*found, _range(start, high, at)]


def _neighbours(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of sizes: low and twice as much, and so on, to the most."""
    here = low
    while here < high:
        there = min(max(here * GRID, here + 1), high)
        yield here, there
        here = there


def _last_like(here: int, there: int, at: Callable[[int], Placement]) -> int:
    """Return a size that is placed like `here` whose next size is not."""
    while there - here > 1:
        middle = (here + there) // 2
        if _same(at(here), at(middle)):
            here = middle
        else:
            there = middle
    return here


def _range(low: int, high: int, at: Callable[[int], Placement]) -> PlacedRange:
    nodes = Counter(_devices(at(low)).values())
    return PlacedRange(low, high, dict(sorted(nodes.items())), at(low), at(high))


def _devices(placement: Placement) -> dict[tuple[str, str, int], str]:
    """Return the device of each node, by what the node is in the model."""
    found: dict[tuple[str, str, int], str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for node in placement.source.nodes:
        name = node.op, node.source
        found[(*name, seen[name])] = placement.device_of[node.id]
        seen[name] += 1
    return found


def _same(one: Placement, other: Placement) -> bool:
    """Whether nodes that both graphs have are on the same devices."""
    mine, theirs = _devices(one), _devices(other)
    return all(mine[node] == theirs[node] for node in mine.keys() & theirs.keys())
