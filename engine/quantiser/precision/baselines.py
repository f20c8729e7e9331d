"""The usual ways to choose what stays float. None of them looks at the machine.

The search starts from them, so that its answer is never slower than any of them at the same loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trireme.quantiser.precision.evaluate import MixedEvaluator, Units
from trireme.quantiser.scheme import is_product

ALL, ENDS, GREEDY = "all integers", "first and last product float", "greedy by sensitivity"
ALL_HALF = "all float16"


def sensitivities(evaluator: MixedEvaluator) -> dict[int, float]:
    """Return the output's noise over its signal if one unit alone is chosen, by unit."""
    return {unit: evaluator.meter.noise(frozenset({unit})) for unit in evaluator.flips}


def baselines(evaluator: MixedEvaluator, sensitivity: Mapping[int, float]) -> dict[str, Units]:
    """Return the choice of each usual way, placed and measured.

    "greedy by sensitivity" leaves the most sensitive units float, one after another, until the
    budget is met. "all float16" is there where a device is faster in float16.
    """
    every = evaluator.settle(evaluator.units)
    ends = evaluator.settle(set(evaluator.units) - set(_ends(evaluator)))
    found = {ALL: every, ENDS: ends, GREEDY: _greedy(evaluator, sensitivity)}
    halves = [unit for unit in evaluator.flips if unit < 0]
    if halves:
        found[ALL_HALF] = evaluator.settle(halves)
    for taken in found.values():
        evaluator.point(taken)
    return found


def _ends(evaluator: MixedEvaluator) -> Sequence[int]:
    """Return the first and the last product."""
    graph = evaluator.graph
    products = [unit for unit in evaluator.units if is_product(graph.node(unit))]
    return products[:1] + products[-1:]


def _greedy(evaluator: MixedEvaluator, sensitivity: Mapping[int, float]) -> Units:
    order = sorted(evaluator.units, key=lambda unit: (-sensitivity[unit], unit))
    left = set(evaluator.units)
    for unit in order:
        taken = evaluator.settle(left)
        if evaluator.meets(taken):
            return taken
        left.discard(unit)
    return evaluator.settle(left)
