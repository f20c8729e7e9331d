"""How many replicas a load needs: against a search of every number, and what must hold of any."""

import numpy as np
import pytest

from trireme.serving.capacity.arrivals import Arrivals
from trireme.serving.capacity.plan import SIMULATED, Setup, plan_capacity
from trireme.serving.capacity.queueing import ReplicaQueue, simulate
from trireme.serving.capacity.times import drawn, sizes_up_to, steady
from trireme.support.errors import RunError

SEED = 3


def setup(service, threads=1, cores=None, **options):
    replica = ReplicaQueue(service, **options)
    return Setup(replica, threads, cores or threads * replica.calls)


def p99(one, load, replicas):
    times = Arrivals(load.qps / replicas, load.burstiness, load.seed).times(SIMULATED)
    return simulate(times, one.replica).percentile_s(99)


@pytest.mark.parametrize("qps", [20.0, 330.0])
@pytest.mark.parametrize("limit", [0.015, 0.03, 0.1])
@pytest.mark.parametrize("batch", [1, 8])
def test_one_replica_less_is_too_few(qps, limit, batch):
    load = Arrivals(qps, seed=SEED)
    one = setup(lambda size: 0.008 + 0.002 * size, most_batch=batch)
    found = plan_capacity([one], load, limit).best
    assert p99(one, load, found.replicas) <= limit
    assert found.replicas == 1 or p99(one, load, found.replicas - 1) > limit


def test_the_fewest_cores_come_first():
    quick = setup(lambda size: 0.006, threads=2)
    slow = setup(lambda size: 0.010)
    batches = setup(lambda size: 0.010 + 0.001 * size, most_batch=16, delay_s=0.002)
    plan = plan_capacity([quick, slow, batches], Arrivals(400.0, seed=SEED), 0.05)
    assert plan.best.setup is batches
    assert [one.cores for one in plan.found] == sorted(one.cores for one in plan.found)
    assert plan.found[0].answers.batch > 1
    assert str(batches) == "1 call of 1 thread, batches of up to 16 after 2.00 ms"


def test_bursts_need_more():
    one = setup(lambda size: 0.01)
    needs = [
        plan_capacity([one], Arrivals(200.0, burst, SEED), 0.05).best.replicas
        for burst in (0.0, 1.0, 8.0)
    ]
    assert needs == sorted(needs)
    assert needs[0] < needs[-1]


def test_a_limit_below_one_call_is_refused_with_its_time():
    plan = plan_capacity([setup(lambda size: 0.02)], Arrivals(1.0), 0.01)
    assert plan.best is None
    assert plan.found[0].reason == "a call alone takes 20.0 ms"


@pytest.mark.parametrize(("limit", "percent"), [(0.0, 99), (1.0, 0), (1.0, 100), (np.inf, 99)])
def test_a_limit_that_is_none_is_an_error(limit, percent):
    with pytest.raises(RunError, match="expected"):
        plan_capacity([], Arrivals(1.0), limit, percent)


def test_times_between_known_sizes():
    assert sizes_up_to(12) == [1, 2, 4, 8, 12]
    assert sizes_up_to(1) == [1]
    assert steady({1: 1.0, 4: 2.5})(2) == pytest.approx(1.5)
    service = drawn({1: np.array([1.0]), 4: np.array([2.0, 3.0])}, SEED)
    assert {service(3) for _ in range(50)} == {2.0, 3.0}
