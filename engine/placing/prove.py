"""Prove how good a placement can be, where its price is a sum over nodes, launches and copies."""

from __future__ import annotations

from dataclasses import replace

from trireme.placing.contract import Contraction
from trireme.placing.prices import Prices
from trireme.placing.problem import Assignment, Problem
from trireme.placing.proof import Proof
from trireme.placing.prove_stages import SerialModel
from trireme.placing.stages import rules


def prove_prices(
    problem: Problem, prices: Prices, known: Assignment, limit_s: float = 60.0, workers: int = 1
) -> Proof:
    """Return the proven least of a total price, starting from a known assignment.

    Chains are contracted first where no cut inside them can be cheaper than one around them. A
    placement of more stages than the model has pays for their launches, which bounds it too.
    """
    contraction = Contraction(problem, prices, 0.0)
    small = contraction.small
    narrow = contraction.shrink(known)
    cheap = Prices(
        [[sum(prices.own[i][d] for i in group) for d in small.devices]
         for group in contraction.groups], prices.launch, prices.copy,
    )  # fmt: skip
    tasks = min(rules(small, narrow), key=lambda tasks: cheap.total(small, narrow, tasks))
    proof = SerialModel(small, cheap, narrow, tasks).solve(limit_s, workers)
    wide = [(d, sorted(i for j in mine for i in contraction.groups[j])) for d, mine in proof.tasks]
    return replace(proof, assigned=contraction.expand(proof.assigned), tasks=wide)
