"""Prove how good a placement can be, where its price is a sum over nodes, launches and copies.

First by paths (`prove_paths`): that bounds every placement, mostly to the rounding, and finds one.
Where a gap is left, the model of stages (`prove_stages`) has as much time again.
"""

from __future__ import annotations

import time

from trireme.placement.coarsen import Contraction
from trireme.placement.messages import price_bound
from trireme.placement.prices import Prices
from trireme.placement.problem import Assignment, Problem
from trireme.placement.proof import ROUNDING, Proof
from trireme.placement.prove_paths import relax
from trireme.placement.prove_stages import SerialModel
from trireme.placement.stages import Tasks, rules

Found = tuple[float, Assignment, Tasks]
"""A price, and the placement that has it."""


def prove_prices(
    problem: Problem, prices: Prices, known: Assignment, limit_s: float = 60.0, workers: int = 1
) -> Proof:
    """Return the proven least of a total price, starting from a known assignment.

    Chains are contracted first where no cut inside them can be cheaper than one around them.
    """
    begun = time.perf_counter()
    contraction = Contraction(problem, prices, 0.0)
    small = contraction.small
    cheap = Prices(
        [
            [sum(prices.own[i][d] for i in group) for d in small.devices]
            for group in contraction.groups
        ],
        prices.launch,
        prices.copy,
    )
    best = _settled(problem, prices, known)
    bound = price_bound(problem, prices, best[1], best[0], None)[0]
    relaxed = None
    if bound < best[0] * (1 - ROUNDING):
        relaxed = relax(small, cheap, best[0], limit_s)
    if relaxed is not None:
        bound = max(bound, relaxed.bound)
        best = min(best, _settled(problem, prices, contraction.expand(relaxed.assigned)))
    if bound < best[0] * (1 - ROUNDING):
        _, narrow, tasks = _settled(small, cheap, contraction.shrink(best[1]))
        proof = SerialModel(small, cheap, narrow, tasks, bound).solve(limit_s, workers)
        best = min(best, _settled(problem, prices, contraction.expand(proof.assigned)))
        bound = max(bound, proof.bound)
    value, assigned, tasks = best
    bound = min(bound, value)
    status = "optimal" if bound >= value * (1 - ROUNDING) else "feasible"
    return Proof(status, value, bound, assigned, tasks, time.perf_counter() - begun)


def _settled(problem: Problem, prices: Prices, assigned: Assignment) -> Found:
    """Return the price of an assignment with the tasks that cost it least."""
    ways = rules(problem, assigned, launch=prices.launch)
    value, tasks = min((prices.total(problem, assigned, tasks), tasks) for tasks in ways)
    return value, assigned, tasks
