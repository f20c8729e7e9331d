"""Prove how soon a run can end, or better the placement: by paths, then by the model of tasks.

Of small graphs, mostly up to 20 nodes, the optimum is proven in seconds. Where the model of tasks
would be too large, it is one of some placements only: a polisher, and the bound is that of paths.
"""

from __future__ import annotations

import time
from dataclasses import replace

from trireme.placement.bounds import Forest, LoadBound, critical_s
from trireme.placement.coarsen import Contraction
from trireme.placement.makespan import makespan_s
from trireme.placement.prices import time_prices
from trireme.placement.problem import Assignment, Problem
from trireme.placement.proof import PATIENCE, ROUNDING, Proof
from trireme.placement.prove_paths import relax_makespan
from trireme.placement.prove_tasks import TaskModel
from trireme.placement.stages import Tasks, rules

_WHOLE = 60
"""Nodes up to which chains stay as they are."""


def prove_makespan(
    problem: Problem,
    known: Assignment,
    limit_s: float = 60.0,
    workers: int = 1,
    tasks: Tasks | None = None,
) -> Proof:
    """Return the best makespan found and the bound proven, from a known assignment.

    tasks: of the known assignment; those of the best rule where not given
    Chains of a large problem are contracted. That may cost a little, for resources may balance
    better where a chain is cut, so there only the bound by paths is one.
    """
    begun = time.perf_counter()
    ways = [*rules(problem, known), *([] if tasks is None else [tasks])]
    value, tasks = min((makespan_s(problem, known, way), way) for way in ways)
    least = min(value, max(critical_s(problem), LoadBound(Forest(problem)).seconds))
    large = problem.n > _WHOLE
    relaxed = relax_makespan(problem, value, limit_s / 3 if large else limit_s * PATIENCE)
    if relaxed is not None:
        least = min(value, max(least, relaxed.bound))
    if large:
        found = _polished(problem, known, least, limit_s, workers)
    else:
        found = TaskModel(problem, known, tasks, least).solve(limit_s, workers)
    if found.value > value:
        found = replace(found, value=value, assigned=known, tasks=tasks)
    status = "optimal" if found.bound >= found.value * (1 - ROUNDING) else "feasible"
    return replace(found, status=status, seconds=time.perf_counter() - begun)


def _polished(
    problem: Problem, known: Assignment, least: float, limit_s: float, workers: int
) -> Proof:
    """Return the best that the model of tasks finds with chains contracted, bounded by `least`."""
    contraction = Contraction(problem, time_prices(problem), 0.0)
    small, narrow = contraction.small, contraction.shrink(known)
    tasks = min(rules(small, narrow), key=lambda tasks: makespan_s(small, narrow, tasks))
    proof = TaskModel(small, narrow, tasks, 0.0).solve(limit_s, workers)
    wide = [(d, sorted(i for j in mine for i in contraction.groups[j])) for d, mine in proof.tasks]
    assigned = contraction.expand(proof.assigned)
    value = makespan_s(problem, assigned, wide)
    return replace(proof, value=value, bound=least, assigned=assigned, tasks=wide)
