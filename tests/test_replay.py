"""Bundles: a recorded run is the same when run again, whatever ran before; edits are found."""

import random
from dataclasses import replace

import numpy as np
import pytest
from toy_device import ToyDevice
from toy_graphs import devices, feeds_of, random_graph

from trireme.builder import GraphBuilder
from trireme.calibrating.calibration import Calibration
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


def test_a_run_with_pins_is_repeated_without_them(tmp_path):
    """What is recorded is the model and its placement, however the placement came to be."""
    graph = random_graph(random.Random(5), 12)
    graph = replace(graph, nodes=tuple(replace(node, pin=None) for node in graph.nodes))
    feeds, name = feeds_of(graph, 5), list(devices())[-1]
    free = [n.op for n in graph.nodes if devices()[name].unsupported_reason(graph, n) is None]
    with open_session(graph, pins={f"op:{free[0]}": name}) as session:
        recorded = record(session, feeds)
        placement = session.placement
        assert placement.nodes_on(name)
    with open_session(graph, placement=placement) as session:
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


class OnceWrong(ToyDevice):
    """A device whose first launch is off by a little, as if tasks had raced in it."""

    def compile(self, graphs):
        made = super().compile(graphs)
        for executable in made:
            executable.bind = lambda args, scratch, e=executable: _OnceWrong(
                type(e).bind(e, args, scratch), args
            )
        return made


class _OnceWrong:
    def __init__(self, call, args):
        self.call, self.args, self.launches = call, args, 0

    def launch(self, profile=False):
        event = self.call.launch(profile)
        self.launches += 1
        if self.launches == 1:
            last = self.args[-1]
            last.handle[last.offset : last.offset + last.nbytes].view(np.float32)[0] += 0.5
        return event


def test_what_is_recorded_is_the_run_itself_and_not_its_repetition():
    """Only the run that was recorded went wrong: it returned what no later run does."""
    b = GraphBuilder("chain")
    x = b.input("x", T)
    graph = b.finish(b.add("neg", b.add("exp", x, pin="one"), pin="one", names=["y"]))
    feeds = {"x": np.ones((3, 8), np.float32)}
    with open_session(graph, [OnceWrong("one")]) as session:
        recorded = record(session, feeds)
        one, two = first_divergence(recorded, rerun(session, feeds, recorded))
    assert one.value == two.value == "y (returned)" and one.sha256 != two.sha256


def test_another_model_is_refused():
    graph = random_graph(random.Random(1), 10)
    feeds = feeds_of(graph, 1)
    with open_session(graph) as session:
        recorded = record(session, feeds)
        with pytest.raises(RunError, match="the model is not the one"):
            rerun(session, feeds, replace(recorded, graph_sha256="0" * 64))
