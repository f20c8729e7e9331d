"""Prove a placement, or better it, with the exact solver."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from trireme.cost.model import CostModel
from trireme.placement.objective import Objective, Scorer
from trireme.placement.placement import Placement
from trireme.placement.pricing import Pricing
from trireme.placement.problem import Assignment
from trireme.placement.proof import ROUNDING, Proof
from trireme.placement.prove_makespan import prove_makespan
from trireme.placement.prove_prices import prove_prices
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
    proof = _proof(scorer, *pricing.assignment_of(placement), limit_s, workers)
    best = placement
    fits = not scorer.overfull(proof.assigned, proof.tasks)
    if fits and proof.value < placement.score.value * (1 - 1e-9):
        found = pricing.placement_of(scorer, proof.assigned, tasks=proof.tasks)
        best = replace(found, splits=placement.splits, price_pins=placement.price_pins)
    bound = max(placement.score.lower_bound, min(proof.bound, best.score.value))
    gained = placement.score.value - best.score.value
    score = replace(best.score, lower_bound=bound, bound_from="the exact solver")
    candidates = {**placement.candidates, "proof": proof.value}
    best = replace(best, score=score, candidates=candidates)
    return replace(best, proof=_sentence(best, proof, gained))


def _proof(
    scorer: Scorer, known: Assignment, tasks: Tasks | None, limit_s: float, workers: int
) -> Proof:
    if scorer.objective == "throughput":
        raise PlacementError(
            "the exact solver has no model of throughput",
            fix="--prove with --objective makespan, serial or energy",
        )
    if scorer.objective == "makespan":
        return prove_makespan(scorer.problem, known, limit_s, workers, tasks)
    return prove_prices(scorer.problem, scorer.prices, known, limit_s, workers)


def _sentence(best: Placement, proof: Proof, gained: float) -> str:
    score = best.score
    found = f"{score.text(gained)} better than the search's" if gained > 0 else "the search's"
    end = f"within {score.gap:.1%} of the least possible"
    if score.gap <= ROUNDING:
        end = "optimal"
    return f"proof: {found} placement is {end}, after {proof.seconds:.1f} s"
