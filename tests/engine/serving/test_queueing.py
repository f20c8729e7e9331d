"""Simulated queues beside the closed forms of queueing theory."""

from math import factorial

import numpy as np
import pytest

from trireme.serving.capacity.arrivals import Arrivals
from trireme.serving.capacity.queueing import ReplicaQueue, simulate
from trireme.support.errors import RunError

SEED = 5
COUNT = 200_000


@pytest.mark.parametrize("load", [0.3, 0.6, 0.85])
def test_one_server_with_fixed_times_waits_as_pollaczek_and_khinchine_say(load):
    answers = simulate(Arrivals(load, seed=SEED).times(COUNT), ReplicaQueue(lambda n: 1.0))
    wanted = load / (2 * (1 - load)) + 1
    assert answers.latencies_s.mean() == pytest.approx(wanted, rel=0.05), f"seed {SEED}"
    assert answers.busy == pytest.approx(load, rel=0.02)
    assert answers.batch == 1


@pytest.mark.parametrize(("calls", "load"), [(1, 0.7), (2, 1.5), (4, 3.2)])
def test_random_times_wait_as_erlang_says(calls, load):
    rng = np.random.default_rng(SEED + 1)  # not the numbers that arrivals draw
    replica = ReplicaQueue(lambda n: rng.exponential(), calls=calls)
    answers = simulate(Arrivals(load, seed=SEED).times(COUNT), replica)
    last = load**calls / factorial(calls) * calls / (calls - load)
    waits = last / (sum(load**k / factorial(k) for k in range(calls)) + last)
    assert answers.latencies_s.mean() == pytest.approx(1 + waits / (calls - load), rel=0.05)
    p99 = answers.percentile_s(99)
    assert (answers.latencies_s <= p99).mean() == pytest.approx(0.99, abs=1e-4)


def test_a_queue_that_is_full_refuses_as_erlang_says():
    """Without a place to wait, Erlang's formula B says how many are lost."""
    rng = np.random.default_rng(SEED + 1)  # not the numbers that arrivals draw
    replica = ReplicaQueue(lambda n: rng.exponential(), calls=3, most_waiting=0)
    answers = simulate(Arrivals(2.5, seed=SEED).times(COUNT), replica)
    terms = [2.5**k / factorial(k) for k in range(4)]
    assert answers.refused / COUNT == pytest.approx(terms[-1] / sum(terms), rel=0.03)
    assert answers.refused + len(answers.latencies_s) == COUNT
    assert answers.percentile_s(99) == np.inf


def test_batches_fill_while_a_call_is_under_way():
    replica = ReplicaQueue(lambda n: 1.0 + 0.1 * n, most_batch=8)
    answers = simulate(Arrivals(3.0, seed=SEED).times(COUNT), replica)
    assert 3 < answers.batch < 8
    alone = simulate(Arrivals(0.001, seed=SEED).times(1000), replica)
    assert alone.batch == pytest.approx(1, abs=0.01)
    assert alone.percentile_s(50) == pytest.approx(1.1)


def test_a_delay_gathers_what_comes_within_it():
    times = np.array([0.0, 0.1, 0.2, 5.0])
    answers = simulate(times, ReplicaQueue(lambda n: 1.0, most_batch=4, delay_s=0.5))
    np.testing.assert_allclose(answers.latencies_s, [1.5, 1.4, 1.3, 1.5])
    full = simulate(times, ReplicaQueue(lambda n: 1.0, most_batch=2, delay_s=0.5))
    np.testing.assert_allclose(full.latencies_s, [1.1, 1.0, 1.9, 1.5])


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 4.0])
def test_arrivals_have_their_rate_and_burstiness(burstiness):
    gaps = np.diff(Arrivals(50.0, burstiness, SEED).times(COUNT))
    assert gaps.mean() == pytest.approx(0.02, rel=0.02)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(burstiness, abs=0.03 * (1 + burstiness))


@pytest.mark.parametrize("given", [(0.0, 1.0), (-1.0, 1.0), (np.inf, 1.0), (1.0, -1.0)])
def test_a_load_that_is_none_is_an_error(given):
    with pytest.raises(RunError, match="expected"):
        Arrivals(*given)
