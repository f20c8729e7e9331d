"""Find the fastest choice of precisions within a budget, and the front around it.

Two sources of choices: the usual ways, and moves from the best choice so far. Every choice that
counts is placed by `place` and measured, so the joint model of precision and device decides only
which moves are tried, and in which order.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from trireme.quantiser.precision.baselines import baselines, sensitivities
from trireme.quantiser.precision.evaluate import MixedEvaluator, MixedPoint, Units, flipped
from trireme.quantiser.precision.joint import JointModel
from trireme.quantiser.precision.meter import noise_of
from trireme.quantiser.precision.prices import ModePrices, precision_of
from trireme.quantiser.select import half_of

MOST_PLACEMENTS = 160
"""The placements that a search asks for at most."""
EXHAUSTIVE = 6
"""So many units or fewer are searched through: all choices are placed and measured."""
_TRIED = 16
"""The moves of one round that are placed: those of the least predicted latency."""
_PAIRS = 24
"""Units of either precision, the best to flip, whose pairs are moves too."""
_BEYOND = 4.0
"""A choice of so many times the noise of one that broke the budget is taken to break it too."""
_HOPELESS = 1.6
"""A move predicted to have so many times the noise allowed is not measured."""
_MEASURED = 48
"""The moves of one round that are measured at most."""
_FROM_OTHERS = 3
"""A round that starts from another choice than the best tries so many times fewer moves."""


@dataclass(frozen=True)
class SearchResult:
    """The fastest choice within the budget, if any, the usual ways, and whether all were tried."""

    best: MixedPoint | None
    usual: Mapping[str, Units]
    sensitivity: Mapping[int, float]
    is_exhaustive: bool


def search(evaluator: MixedEvaluator, seed: int, exhaustive: int = EXHAUSTIVE) -> SearchResult:
    """Return the fastest choice within the budget that was found.

    The nodes' noises and the usual ways are measured whatever the evaluator's time limit is.

    exhaustive: the most units of two precisions, of as many choices as which all are tried
    """
    sensitivity = sensitivities(evaluator)
    usual = baselines(evaluator, sensitivity)
    is_exhaustive = evaluator.choices <= 2**exhaustive
    if is_exhaustive:
        for units in every_choice(evaluator.flips):
            if evaluator.is_late:
                break
            evaluator.point(evaluator.settle(units))
        is_exhaustive = not evaluator.was_stopped
    else:
        _MixSearch(evaluator, sensitivity, seed).run()
    return SearchResult(fastest(evaluator), usual, sensitivity, is_exhaustive)


def fastest(evaluator: MixedEvaluator) -> MixedPoint | None:
    """Return the fastest choice tried that keeps the budget; of equals that of least loss."""
    limit = evaluator.meter.budget.limit
    kept = [point for point in evaluator.points if point.loss <= limit]
    return min(kept, key=_rank, default=None)


def _rank(point: MixedPoint) -> tuple[float, float, list[int]]:
    return point.latency_s, point.loss, sorted(point.taken)


def every_choice(units: Collection[int]) -> Iterator[tuple[int, ...]]:
    """Yield all choices of units, none of which holds a node twice."""
    for count in range(len(units) + 1):
        for chosen in itertools.combinations(units, count):
            if not {half_of(unit) for unit in chosen}.intersection(chosen):
                yield chosen


class _MixSearch:
    def __init__(
        self, evaluator: MixedEvaluator, sensitivity: Mapping[int, float], seed: int
    ) -> None:
        self.evaluator, self.sensitivity = evaluator, sensitivity
        self.rng = random.Random(seed)
        prices = ModePrices(evaluator.trial, evaluator.method, evaluator.target.costs)
        self.model = JointModel(prices)
        self.broke = float("inf")

    def run(self) -> None:
        """Place and measure choices until no move helps or the placements are used up."""
        evaluator = self.evaluator
        evaluator.point(evaluator.settle(()))
        started: set[Units] = set()
        while evaluator.may_place:
            best = self._next(started)
            if best is None:
                return
            started.add(best)
            self._improve(best)

    def _next(self, started: set[Units]) -> Units | None:
        """Return the choice to move on from: the best, then the next best that are near it."""
        limit = self.evaluator.meter.budget.limit
        ranked = sorted(self.evaluator.points, key=_rank)
        kept = [point.taken for point in ranked if point.loss <= limit][:3]
        broken = [point for point in ranked if point.loss > limit]
        kept += [point.taken for point in sorted(broken, key=lambda p: p.noise)[:2]]
        return next((taken for taken in kept if taken not in started), None)

    def _summed(self, units: Iterable[int]) -> float:
        return sum(self.sensitivity.get(unit, 0.0) for unit in units)

    def _improve(self, start: Units) -> None:
        """Place and measure the moves of one choice that promise most."""
        evaluator = self.evaluator
        evaluator.meter.start_from(start)
        best = fastest(evaluator)
        share = 1 if best is not None and start == best.taken else _FROM_OTHERS
        tried = 0
        for taken in self._ranked(start)[: _MEASURED // share]:
            if tried == _TRIED // share or not evaluator.may_place:
                return
            if self._breaks(taken):
                continue
            tried += 1
            latency_s = evaluator.latency_s(taken)
            if best is None or latency_s <= best.latency_s or not evaluator.meets(taken):
                evaluator.point(taken)

    def _ranked(self, start: Units) -> list[Units]:
        """Return the moves of a choice that may keep the budget, that of least latency first.

        Both are predicted from the choice: latency by the joint model, noise by the sum.
        """
        evaluator = self.evaluator
        nodes = {max(unit, half_of(unit)) for unit in evaluator.flips}
        near = self.model.around({node: precision_of(node, start) for node in nodes})
        known = {point.taken for point in evaluator.points}
        predicted: dict[Units, float] = {}
        for taken in {evaluator.settle(units) for units in self._moves(start)} - known - {start}:
            differs = {max(unit, half_of(unit)) for unit in taken ^ start} & nodes
            if not self._is_hopeless(start, taken):
                predicted[taken] = near.seconds_of({n: precision_of(n, taken) for n in differs})
        return sorted(predicted, key=lambda taken: (predicted[taken], sorted(taken)))

    def _is_hopeless(self, start: Units, taken: Units) -> bool:
        """Whether a move is predicted to have much more noise than a budget of noise allows."""
        budget, meter = self.evaluator.meter.budget, self.evaluator.meter
        if not budget.is_snr:
            return False
        noise = meter.noise(start) + self._summed(taken - start) - self._summed(start - taken)
        return noise > _HOPELESS * noise_of(budget.limit)

    def _breaks(self, taken: Units) -> bool:
        """Whether a choice breaks the budget, or has much more noise than one that did."""
        meter = self.evaluator.meter
        if meter.budget.is_snr:
            return not self.evaluator.meets(taken)
        noise = meter.noise(taken)
        if noise > _BEYOND * self.broke:
            return True
        if not self.evaluator.meets(taken):
            self.broke = min(self.broke, noise)
            return True
        return False

    def _moves(self, taken: Units) -> Iterator[set[int]]:
        """Yield the units of each move: one flipped, a run of neighbours flipped, two swapped."""
        units = self.evaluator.flips
        now = set(taken).intersection(units)
        for unit in units:
            yield flipped(now, {unit})
        for run in self._runs(now):
            yield flipped(now, run)
        absent = [unit for unit in units if unit not in now]
        present = [unit for unit in units if unit in now]
        for one, other in itertools.product(self._few(absent), self._few(present)):
            yield flipped(now, {one, other})
        for few in (absent, present):
            for one, other in itertools.combinations(self._few(few)[:8], 2):
                yield flipped(now, {one, other})

    def _few(self, units: list[int]) -> list[int]:
        """Return some units, at random where there are many."""
        return sorted(self.rng.sample(units, _PAIRS)) if len(units) > _PAIRS else units

    def _runs(self, now: set[int]) -> Iterator[set[int]]:
        """Yield runs of units that follow one another in graph order and are alike."""
        for _, run in itertools.groupby(
            self.evaluator.flips, key=lambda unit: (unit < 0, unit in now)
        ):
            whole = list(run)
            for count in {len(whole), len(whole) // 2}:
                if count > 1:
                    yield set(whole[:count])
                    yield set(whole[-count:])
