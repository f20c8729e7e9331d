"""Prove a placement, or better it, with the exact solver."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from trireme.cost.model import CostModel
from trireme.placement.objective import Objective, Scorer
from trireme.placement.place import Pricing
from trireme.placement.placement import Placement
from trireme.placement.problem import Assignment
from trireme.placement.proof import ROUNDING, Proof
from trireme.placement.prove import prove_prices
from trireme.placement.prove_makespan import prove_makespan
from trireme.placement.stages import Tasks
from trireme.support.errors import PlacementError


def proven(
    placement: Placement, costs: CostModel, limit_s: float = 60.0, workers: int = 1
) -> tuple[Placement, list[str]]:
    """Return the best placement that the solver finds, with its bound, and what to say of it.

    The solver knows no memory limits: its bound holds all the same, and what does not fit is not
    taken.
    Errors: PlacementError, if there is no solver, or it has no model of the objective
    """
    pricing = Pricing.of(placement.source, costs)
    objective = cast(Objective, placement.score.objective)
    scorer = Scorer(pricing.problem, objective)
    if placement.score.value == 0.0:
        return placement, ["proof: nothing takes less than nothing"]
    proof = _proof(scorer, *pricing.kept(placement), limit_s, workers)
    best = placement
    fits = not scorer.overfull(proof.assigned, proof.tasks)
    if fits and proof.value < placement.score.value * (1 - 1e-9):
        best = pricing.placed(scorer, proof.assigned, tasks=proof.tasks)
    bound = max(placement.score.lower_bound, min(proof.bound, best.score.value))
    gained = placement.score.value - best.score.value
    score = replace(best.score, lower_bound=bound, bound_from="the exact solver")
    best = replace(best, score=score, candidates={**placement.candidates, "proof": proof.value})
    return best, [_sentence(best, proof, gained)]


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
