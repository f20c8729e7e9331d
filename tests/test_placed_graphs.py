"""Random graphs under random placements on the real devices equal the interpreter.

Quantised graphs bit for bit, float graphs within a tolerance; and for one placement serial,
parallel and any order that the waits allow give the same bits.
"""

import random

import numpy as np
from forced import pinned_at_random
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import random_feeds, random_graph

from trireme.calibrating.calibration import Calibration
from trireme.interpret import run_reference
from trireme.plan_check import check_plan
from trireme.session import Session


def any_order(tasks, rng):
    done, left = [], set(range(len(tasks)))
    while left:
        ready = [i for i in sorted(left) if set(tasks[i].waits) <= set(done)]
        done.append(rng.choice(ready))
        left.discard(done[-1])
    return done


def outputs_of(graph, devices, feeds, seed):
    """The outputs of a session in parallel mode, after checking every other order against it."""
    pinned = pinned_at_random(graph, devices, seed)
    with Session(
        pinned, devices=list(devices.values()), passes=(), calibration=Calibration()
    ) as session:
        check_plan(session.plan)
        first = session.run(feeds)
        session.runs.mode = "serial"
        rng = random.Random(seed)
        others = [session.run(feeds)]
        others += [
            session.run_in_order(feeds, any_order(session.plan.tasks, rng)) for _ in range(2)
        ]
        for other in others:
            for name, array in first.items():
                assert array.tobytes() == other[name].tobytes(), f"{name} depends on the order"
        return first


@settings(
    max_examples=25, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(seed=st.integers(0, 10_000), size=st.integers(1, 16))
def test_quantised_graphs_are_bit_exact(devices, seed, size):
    print("seed", seed, "size", size)
    graph = random_graph(seed, size, quantised=True)
    feeds = random_feeds(graph, seed)
    want = run_reference(graph, feeds)
    for name, array in outputs_of(graph, devices, feeds, seed).items():
        np.testing.assert_array_equal(array, want[name])


@settings(
    max_examples=25, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(seed=st.integers(0, 10_000), size=st.integers(1, 16))
def test_float_graphs_agree(devices, seed, size):
    print("seed", seed, "size", size)
    graph = random_graph(seed, size)
    feeds = random_feeds(graph, seed)
    want = run_reference(graph, feeds)
    for name, array in outputs_of(graph, devices, feeds, seed).items():
        largest = np.abs(want[name]).max(initial=1e-6)
        np.testing.assert_allclose(array, want[name], atol=1e-4 * largest, rtol=0)
