"""Each device alone: it has every node that it can run; the rest is where that costs least.

No placement may be worse than these. `uncertainty` compares a mixture with them; `place --measure`
and `bench --singles` run them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.placement.objective import Objective, Scorer, check_objective
from trireme.placement.placement import Placement
from trireme.placement.pricing import Pricing
from trireme.placement.problem import Assignment, Problem
from trireme.placement.search import Search
from trireme.placement.stages import Tasks
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Single:
    """The best placement with all on one device that it can run, as the search knows placements."""

    device: str
    value: float
    assigned: Assignment
    tasks: Tasks


class DecidesNoNode(PlacementError):
    """A device that is to have every node it can run would have none, or has no choice to make."""


def solve_single(
    graph: Graph, costs: CostModel, device: str, objective: Objective = "makespan"
) -> Placement:
    """Return the best placement with all on one device that it can run and no pin forbids.

    Errors: as `solve`; DecidesNoNode
    """
    pricing = Pricing.of(graph, costs)
    check_objective(pricing.problem.machine, objective)
    names = [pricing.problem.machine.names[d] for d in _deciding_devices(pricing)]
    if device not in names:
        raise DecidesNoNode(
            f"{device} alone is no placement: it decides no node",
            facts=[f"these do: {', '.join(names) or 'none'}"],
        )
    return _placed(pricing, _single(pricing, device, objective), objective)


def solve_singles(
    graph: Graph, costs: CostModel, objective: Objective = "makespan"
) -> dict[str, Placement]:
    """Return, by device, the best placement with all on it that it can run and no pin forbids.

    Left out are devices that would have nothing, or more than their memory holds.
    Errors: as `solve`, of the graph without a choice
    """
    pricing = Pricing.of(graph, costs)
    check_objective(pricing.problem.machine, objective)
    found = {}
    for one in singles(pricing, objective):
        try:
            found[one.device] = _placed(pricing, one, objective)
        except PlacementError as error:
            _log.info("%s alone is no placement: %s", one.device, error)
    return found


def singles(pricing: Pricing, objective: Objective) -> Iterator[Single]:
    """Yield each device alone of `_deciding_devices`; some may not fit their memory."""
    for d in _deciding_devices(pricing):
        yield _single(pricing, pricing.problem.machine.names[d], objective)


def _deciding_devices(pricing: Pricing) -> list[int]:
    """Return the devices that have a node to run and could leave it to another; if there is no
    such, those that can run anything.
    """
    problem = pricing.problem
    free = [
        able
        for node, able in zip(pricing.graph.nodes, problem.able, strict=True)
        if node.pin is None
    ]
    return choosing(problem) or [d for d in problem.devices if any(d in able for able in free)]


def _placed(pricing: Pricing, one: Single, objective: Objective) -> Placement:
    return pricing.placement_of(Scorer(pricing.problem, objective), one.assigned, tasks=one.tasks)


def _single(pricing: Pricing, device: str, objective: Objective) -> Single:
    d = pricing.problem.machine.names.index(device)
    return Single(device, *_best(_on_device_only(pricing, d), objective))


def _best(problem: Problem, objective: Objective) -> tuple[float, Assignment, Tasks]:
    """Return the score, assignment and tasks of a search; of the only assignment, without one."""
    if all(len(able) == 1 for able in problem.able):
        assigned = tuple(able[0] for able in problem.able)
        value, tasks = Scorer(problem, objective).evaluate(assigned)
        return value, assigned, tasks
    search = Search(problem, objective)
    return search.value, search.best, search.tasks


def is_single(problem: Problem, assigned: Assignment) -> bool:
    """Whether a device has all nodes that it can run, or no node has a choice."""
    return not choosing(problem) or any(
        all(where == d or d not in able for where, able in zip(assigned, problem.able, strict=True))
        for d in choosing(problem)
    )


def alone_on(placement: Placement) -> bool:
    """Whether a placement has all nodes that a device can run on that device."""
    return any(
        all(name in (choice.device, *choice.refusals) for choice in placement.choices.values())
        for name in placement.specs
        if placement.nodes_on(name)
    )


def choosing(problem: Problem) -> list[int]:
    """Return the devices with a node that another could run as well."""
    return [d for d in problem.devices if any(d in a and len(a) > 1 for a in problem.able)]


def _on_device_only(pricing: Pricing, device: int) -> Problem:
    """Return the problem in which nodes that a device can run have no other choice."""
    rows = [
        [s if d == device else None for d, s in enumerate(row)] if device in able else row
        for row, able in zip(pricing.problem.seconds, pricing.problem.able, strict=True)
    ]
    return pricing.problem.with_seconds(rows)
