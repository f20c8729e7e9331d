"""The search finds what trying every choice finds, and is never slower than the usual ways."""

import itertools

import numpy as np
import pytest
from float_graphs import conv_net
from mixed_graphs import evaluator_of, random_machine, random_net, trial_of
from sweep import sweep

from trireme.ir.interpreter import run_reference
from trireme.quantiser.measure import Noise
from trireme.quantiser.precision.evaluate import with_nodes
from trireme.quantiser.precision.search import every_choice, search

SEEDS = range(20)
_FEW = 6
"""Units of a graph whose choices are all tried here."""
_MOST_CHOICES = 108
"""Choices of three precisions that are all tried here."""
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


@pytest.mark.parametrize("seed", sweep(SEEDS, always=[0, 1]))
def test_the_search_is_optimal_with_three_precisions(seed, tmp_path):
    """Brute force over integers, float16 and float32 of every node, and `place` for each."""
    trial, feeds, machine = half_case(seed, tmp_path)
    with evaluator_of(trial, feeds, machine, with_halves=True) as every:
        for units in every_choice(every.flips):
            every.point(every.settle(units))
        points = every.points
    assert any(point.halves for point in points) and any(point.integers for point in points)
    losses = sorted({point.loss for point in points if np.isfinite(point.loss)})
    for share in _SHARES:
        limit = losses[int(share * len(losses))]
        best = min(point.latency_s for point in points if point.loss <= limit)
        with evaluator_of(trial, feeds, machine, -limit, with_halves=True) as evaluator:
            found = search(evaluator, 0, exhaustive=0)
        assert found.best.loss <= limit
        assert found.best.latency_s == pytest.approx(best, rel=1e-9), f"seed {seed}, {share}"
        usual = [evaluator.point(taken) for taken in found.usual.values()]
        assert all(best <= one.latency_s for one in usual if one.loss <= limit)


def half_case(seed, folder):
    """The first small graph and machine from a seed on with some choices of float16."""
    while True:
        rng = np.random.default_rng(seed)
        trial, feeds = trial_of(random_net(rng, int(rng.integers(2, 5))))
        path = folder / f"{seed}.toml"
        path.write_text(random_machine(rng, with_halves=True))
        with evaluator_of(trial, feeds, str(path), with_halves=True) as evaluator:
            if 18 <= evaluator.choices <= _MOST_CHOICES and evaluator.flips[-1] < 0:
                return trial, feeds, str(path)
        seed += 1000


def test_the_switched_graph_shows_float16_too():
    """Float16 of a choice is what its own graph means, and costs less noise than integers."""
    rng = np.random.default_rng(5)
    trial, feeds = trial_of(conv_net(5))
    with evaluator_of(trial, feeds, "rk3588", with_halves=True) as evaluator:
        halves = [unit for unit in evaluator.flips if unit < 0]
        assert len(halves) >= len(evaluator.units)
        for _ in range(4):
            chosen = evaluator.settle(unit for unit in halves if rng.random() < 0.6)
            made = evaluator.emitted(chosen)
            assert {made.type(o).dtype for n in made.nodes for o in n.outputs} >= {"float16"}
            noise = Noise()
            for one in feeds:
                noise.add(*(run_reference(graph, one)["y"] for graph in (evaluator.graph, made)))
            found = noise.noise / noise.signal
            assert evaluator.meter.noise(chosen) == pytest.approx(found, rel=0.01), "seed 5"
        whole = evaluator.meter.noise(evaluator.settle(evaluator.units))
        assert 0 < evaluator.meter.noise(evaluator.settle(halves)) < whole / 100
