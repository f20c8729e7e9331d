"""The search finds what trying every choice finds, and is never slower than the usual ways."""

import itertools

import numpy as np
import pytest
from float_graphs import conv_net
from mixed_graphs import evaluator_of, random_machine, random_net, trial_of
from sweep import sweep

from trireme.quantiser.precision.evaluate import with_nodes
from trireme.quantiser.precision.search import search

SEEDS = range(20)
_FEW = 6
"""Units of a graph whose choices are all tried here."""
_SHARES = (0.2, 0.6)
"""Budgets, as places among the losses of all choices."""


def small_case(seed):
    """The first random graph from a seed on whose choices are few enough to try all of them."""
    while True:
        rng = np.random.default_rng(seed)
        trial, feeds = trial_of(random_net(rng, int(rng.integers(3, 6))))
        with evaluator_of(trial, feeds, "rk3588") as evaluator:
            if 4 <= len(evaluator.units) <= _FEW:
                return trial, feeds, random_machine(rng)
        seed += 1000


@pytest.mark.parametrize("seed", sweep(SEEDS, always=[0, 1]))
def test_the_search_is_optimal_on_small_graphs(seed, tmp_path):
    """Brute force over all choices, under the same objective: `place` and measured noise."""
    trial, feeds, text = small_case(seed)
    machine = tmp_path / "machine.toml"
    machine.write_text(text)
    with evaluator_of(trial, feeds, str(machine)) as every:
        for count in range(len(every.units) + 1):
            for units in itertools.combinations(every.units, count):
                every.point(every.settle(units))
        points = every.points
    losses = sorted({point.loss for point in points if np.isfinite(point.loss)})
    for share in _SHARES:
        limit = losses[int(share * len(losses))]
        best = min(point.latency_s for point in points if point.loss <= limit)
        with evaluator_of(trial, feeds, str(machine), -limit) as evaluator:
            found = search(evaluator, 0, exhaustive=0)
        assert found.best.loss <= limit
        assert found.best.latency_s == pytest.approx(best, rel=1e-9), f"seed {seed}, {share}"
        usual = [evaluator.point(taken) for taken in found.usual.values()]
        assert all(best <= one.latency_s for one in usual if one.loss <= limit)


def test_few_units_are_searched_through():
    rng = np.random.default_rng(4)
    trial, feeds = trial_of(random_net(rng, 2))
    with evaluator_of(trial, feeds, "rk3588") as evaluator:
        found = search(evaluator, 0)
        assert found.is_exhaustive and len(evaluator.units) <= 6
        assert {point.taken for point in evaluator.points} >= {frozenset()}


def test_one_switched_graph_shows_what_each_mixed_graph_computes():
    """The measured noise of a choice is that of its own graph, but where integers are made of
    other integers: a switched graph goes through floats there, which rounds otherwise."""
    rng = np.random.default_rng(3)
    trial, feeds = trial_of(conv_net(3))
    equal = 0
    with evaluator_of(trial, feeds, "rk3588") as evaluator:
        for _ in range(8):
            units = [unit for unit in evaluator.units if rng.random() < 0.6]
            made = evaluator.emitted(evaluator.settle(units))
            noise, _ = evaluator.meter.of_graph(made)
            if any(n.op == "quantize" and made.type(n.used[0]).quant for n in made.nodes):
                continue
            equal += 1
            found = evaluator.meter.noise(evaluator.settle(units))
            assert found == pytest.approx(noise, rel=1e-9), f"seed 3, {units}"
        assert evaluator.meter.noise(frozenset()) == 0
    assert equal >= 4


def test_what_mixed_graphs_share_changes_none_of_them():
    rng = np.random.default_rng(5)
    trial, feeds = trial_of(random_net(rng, 5))
    with evaluator_of(trial, feeds, "rk3588") as evaluator:
        for _ in range(3):
            taken = evaluator.settle(unit for unit in evaluator.units if rng.random() < 0.7)
            made, alone = evaluator.emitted(taken), with_nodes(trial, taken)("min_max").graph
            assert str(made) == str(alone)
            for one, other in zip(made.values.values(), alone.values.values(), strict=True):
                assert one.type == other.type
                assert one.data is None or np.array_equal(one.data, other.data), "seed 5"


def test_placements_are_bounded_and_repeatable():
    trial, feeds = trial_of(random_net(np.random.default_rng(11), 6))
    chosen = []
    for _ in range(2):
        with evaluator_of(trial, feeds, "rk3588", 28.0, most=30) as evaluator:
            found = search(evaluator, 7, exhaustive=0)
            chosen.append((found.best, evaluator.placements))
    assert chosen[0] == chosen[1] and chosen[0][1] <= 30 + 3
