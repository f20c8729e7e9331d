"""Random graphs under random placements on the real devices equal the interpreter.

Quantised graphs bit for bit, float graphs within a tolerance; and for one placement serial,
parallel and any order that the waits allow give the same bits.
"""

import random

import numpy as np
import pytest
from forced import pinned_at_random
from plan_verifier import check_plan
from random_graphs import random_feeds, random_graph
from sweep import sweep

from trireme.cost.calibration import Calibration
from trireme.ir.interpreter import run_reference
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session

seeds = pytest.mark.parametrize("seed", sweep(range(25), always=range(0, 25, 5)))


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
        pinned,
        devices=list(devices.values()),
        execution_options=AS_GIVEN,
        calibration=Calibration(),
        placement_options=PlacementOptions(objective="serial"),
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


@seeds
def test_quantised_graphs_are_bit_exact(devices, seed):
    print("seed", seed)
    graph = random_graph(seed, 1 + 7 * seed % 16, quantised=True)
    feeds = random_feeds(graph, seed)
    want = run_reference(graph, feeds)
    for name, array in outputs_of(graph, devices, feeds, seed).items():
        np.testing.assert_array_equal(array, want[name])


@seeds
def test_float_graphs_agree(devices, seed):
    print("seed", seed)
    graph = random_graph(seed, 1 + 7 * seed % 16)
    feeds = random_feeds(graph, seed)
    want = run_reference(graph, feeds)
    for name, array in outputs_of(graph, devices, feeds, seed).items():
        largest = np.abs(want[name]).max(initial=1e-6)
        np.testing.assert_allclose(array, want[name], atol=1e-4 * largest, rtol=0)
