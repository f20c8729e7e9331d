"""Bundles: a recorded run is the same when run again, whatever ran before; edits are found."""

import random
from dataclasses import replace

import numpy as np
import pytest
from toy_graphs import devices, feeds_of, random_graph

from trireme.builder import GraphBuilder
from trireme.calibration import Calibration
from trireme.errors import RunError
from trireme.graph import TensorType
from trireme.replay import first_divergence, record, rerun
from trireme.session import Session

T = TensorType((3, 8), "float32")


def open_session(graph, toys=None, **modes):
    toys = toys or list(devices().values())
    return Session(graph, devices=toys, passes=(), calibration=Calibration(), **modes)


def counter():
    b = GraphBuilder("counter")
    step = b.input("step", T)
    old = b.add("variable", b.constant("zero", np.zeros((3, 8), np.float32)), state="total")
    return b.finish(b.add("assign", b.add("add", old, step), state="total", names=["total"]))


def test_states_of_earlier_runs_do_not_enter_a_bundle():
    feeds = {"step": np.ones((3, 8), np.float32)}
    with open_session(counter()) as session:
        session.run(feeds)
        session.run(feeds)
        recorded = record(session, feeds)
    with open_session(counter()) as session:
        assert first_divergence(recorded, rerun(session, feeds, recorded)) is None
        session.run(feeds)
        assert first_divergence(recorded, rerun(session, feeds, recorded)) is None


@pytest.mark.parametrize("execution", ["sunk", "interactive"])
@pytest.mark.parametrize("seed", range(4))
def test_a_parallel_run_is_repeated_in_its_order(seed, execution):
    print("seed", seed)
    graph = random_graph(random.Random(seed), 25)
    feeds = feeds_of(graph, seed)
    with open_session(graph, mode="parallel", execution=execution) as session:
        recorded = record(session, feeds, seed)
        assert sorted(recorded.order) == list(range(len(session.plan.tasks)))
    with open_session(graph, execution=execution) as session:
        assert first_divergence(recorded, rerun(session, feeds, recorded)) is None
        other = {name: array + 1 for name, array in feeds.items()}
        one, two = first_divergence(recorded, rerun(session, other, recorded))
        assert one.value == two.value and one.sha256 != two.sha256


def test_another_model_is_refused():
    graph = random_graph(random.Random(1), 10)
    feeds = feeds_of(graph, 1)
    with open_session(graph) as session:
        recorded = record(session, feeds)
        with pytest.raises(RunError, match="the model is not the one"):
            rerun(session, feeds, replace(recorded, graph_sha256="0" * 64))
