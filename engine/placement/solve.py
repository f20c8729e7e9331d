"""Solve one graph for one objective: the best placement the search finds, others, or a fixed one.

`place` is the front door; `shards` solves the graphs that its shards make. Pins are on the nodes.
Nothing here declines an uncertain gain: times are virtual times, to the last digit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.ir.selectors import pinned
from trireme.placement.objective import Objective, Scorer, check_objective
from trireme.placement.placement import Placement
from trireme.placement.pricing import FixedNodes, Pricing
from trireme.placement.search import Search


def solve(
    graph: Graph,
    costs: CostModel,
    objective: Objective = "makespan",
    pins: Mapping[int, str] | None = None,
    quick: bool = False,
) -> Placement:
    """Return the placement of least score that the search finds, with its lower bound.

    pins: node id -> device, beside the pins that nodes have
    quick: whether the search stops after one local search
    Errors: PlacementError, if a node can run on no device, a pin cannot be kept, or no placement
    that fits the devices' memory was found; PlanError, if a shape is not known
    """
    return next(_solutions(graph, costs, objective, pins, quick))


def solve_several(
    graph: Graph, costs: CostModel, objective: Objective = "makespan", count: int = 3
) -> list[Placement]:
    """Return the best placement and further good ones, at most `count`.

    Each has at least a twentieth of its nodes elsewhere than each of those before it.
    Errors: as `solve`
    """
    return list(itertools.islice(_solutions(graph, costs, objective, None), count))


def solve_fixed(
    graph: Graph,
    costs: CostModel,
    objective: Objective,
    fixed: FixedNodes | Placement,
    pins: Mapping[int, str] | None = None,
) -> Placement:
    """Return the placement with every node where it is fixed, but for pins: no search.

    Errors: as `solve`; PlacementError, if a node cannot be where it is fixed
    """
    pricing = Pricing.of(pinned(graph, pins), costs)
    check_objective(pricing.problem.machine, objective)
    assigned, tasks = pricing.assignment_of(fixed)
    return pricing.placement_of(Scorer(pricing.problem, objective), assigned, tasks=tasks)


def _solutions(
    graph: Graph,
    costs: CostModel,
    objective: Objective,
    pins: Mapping[int, str] | None,
    quick: bool = False,
) -> Iterator[Placement]:
    """Yield the placement that the search finds, then others that it met, by their scores."""
    pricing = Pricing.of(pinned(graph, pins), costs)
    problem = pricing.problem
    check_objective(problem.machine, objective)
    search = Search(problem, objective, quick)
    yield pricing.placement_of(search.scorer, search.best, search.tasks, search)
    given, least = [search.best], max(problem.n // 20, 1)
    seen = search.scorer.seen
    for assigned in sorted(seen, key=lambda a: (seen[a], a)):
        apart = min(sum(x != y for x, y in zip(assigned, g, strict=True)) for g in given)
        tasks = search.scorer.evaluate(assigned)[1] if apart >= least else []
        if apart >= least and not search.scorer.overfull(assigned, tasks):
            given.append(assigned)
            yield pricing.placement_of(search.scorer, assigned, tasks, search)
