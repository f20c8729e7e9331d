"""Prove a placement, or better it, with the exact solver: an optional extra."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from trireme.cost.model import CostModel
from trireme.placement.bounds import makespan_bound
from trireme.placement.candidate import Candidate
from trireme.placement.exact_makespan import MakespanModel
from trireme.placement.exact_price import PriceModel
from trireme.placement.messages import price_bound
from trireme.placement.objective import LINEAR, Objective, Scorer
from trireme.placement.placement import Placement
from trireme.placement.pricing import Pricing
from trireme.placement.problem import Assignment
from trireme.placement.proof import ROUNDING, Proof
from trireme.placement.stages import Tasks
from trireme.support.errors import PlacementError


def prove(
    placement: Placement, costs: CostModel, limit_s: float = 60.0, workers: int = 1
) -> Placement:
    """Return the best placement that the solver finds; `proof` says how good it is.

    The solver knows no memory limits: its bound holds all the same, and what does not fit is not
    taken.
    Errors: PlacementError, if there is no solver, or it has no model of the objective
    """
    pricing = Pricing.of(placement.source, costs)
    objective = cast(Objective, placement.score.objective)
    scorer = Scorer(pricing.problem, objective)
    if placement.score.value == 0.0:
        return replace(placement, proof="proof: nothing takes less than nothing")
    assigned, tasks = pricing.assignment_of(placement)
    proof = prove_assignment(scorer, assigned, tasks, limit_s, workers)
    best = placement
    fits = not scorer.overfull(proof.assigned, proof.tasks)
    if fits and proof.value < placement.score.value * (1 - 1e-9):
        found = pricing.placement_of(scorer, proof.assigned, tasks=proof.tasks)
        best = replace(found, shards=placement.shards, price_pins=placement.price_pins)
    bound = max(placement.score.lower_bound, min(proof.bound, best.score.value))
    gained = placement.score.value - best.score.value
    origin = "the exact solver" if proof.seconds else placement.score.bound_from
    score = replace(best.score, lower_bound=bound, bound_from=origin)
    candidates = (*placement.candidates, Candidate("proof", "proof", proof.value))
    best = replace(best, score=score, candidates=candidates)
    return replace(best, proof=_sentence(best, proof, gained))


def prove_assignment(
    scorer: Scorer,
    known: Assignment,
    tasks: Tasks | None = None,
    limit_s: float = 60.0,
    workers: int = 1,
) -> Proof:
    """Return the best score found and the bound proven, starting from a known assignment.

    tasks: of the known assignment, where they may be better than those of the best rule
    Errors: as `prove`
    """
    if scorer.objective == "throughput":
        raise PlacementError(
            "the exact solver has no model of throughput",
            fix="--prove with --objective makespan, serial or energy",
        )
    problem = scorer.problem
    value, ruled = scorer.evaluate(known)
    if tasks is None or value < scorer.value(known, tasks):
        tasks = ruled
    value = scorer.value(known, tasks)
    if scorer.objective in LINEAR:
        least, _ = price_bound(problem, scorer.prices, known, value, None)
    else:
        least, _ = makespan_bound(problem, value)
    if least >= value * (1 - ROUNDING):
        return Proof("optimal", value, least, known, tasks, 0.0)
    if scorer.objective in LINEAR:
        found = PriceModel(problem, scorer.prices, known, tasks, least).solve(limit_s, workers)
    else:
        found = MakespanModel(problem, known, tasks, least).solve(limit_s, workers)
    again, ruled = scorer.evaluate(found.assigned)
    better = replace(found, value=again, tasks=ruled) if again < found.value else found
    status = "optimal" if better.bound >= better.value * (1 - ROUNDING) else "feasible"
    return replace(better, status=status, bound=min(better.bound, better.value))


def _sentence(best: Placement, proof: Proof, gained: float) -> str:
    score = best.score
    found = f"{score.text(gained)} better than the search's" if gained > 0 else "the search's"
    end = f"within {score.gap:.1%} of the least possible"
    if score.gap <= ROUNDING:
        end = "optimal"
    return f"proof: {found} placement is {end}, after {proof.seconds:.1f} s"
