"""In a profile a simulator works twice; what runs beside it is timed while it puts back results."""

import numpy as np
import pytest
from npu import Int8Builder

from trireme.backend.capabilities import ThreadedCall
from trireme.devices.npu.executable import NpuCall
from trireme.ir.interpreter import run_reference
from trireme.placement.options import PlacementOptions
from trireme.runtime.session.session import Session


def graph_and_feeds(keeps_state=False):
    """A product and a map of int8; a state that is written, if asked for."""
    b = Int8Builder(np.random.default_rng(5))
    y = b.conv(b.feed(1, 9, 9, 8), 24, activation="relu")
    y = b.op("sigmoid", y)
    if keeps_state:
        b.add("assign", y, state="last")
    graph = b.finish(y)
    return graph, {graph.values[value].name: array for value, array in b.feeds.items()}


@pytest.fixture
def simulated(monkeypatch):
    """A list that grows by one with each simulation."""
    found = []
    simulate = NpuCall._simulate

    def counted(self):
        found.append(self)
        simulate(self)

    monkeypatch.setattr(NpuCall, "_simulate", counted)
    return found


def run_and_check(session, graph, feeds):
    for name, array in session.run(feeds).items():
        assert array.tobytes() == run_reference(graph, feeds)[name].tobytes()


@pytest.mark.parametrize(("runs", "warmup"), [(1, 0), (1, 2), (7, 0), (7, 2)])
def test_two_runs_of_a_profile_simulate(simulated, runs, warmup):
    graph, feeds = graph_and_feeds()
    with Session(
        graph, devices=["npu", "cpu"], placement_options=PlacementOptions(pins={"op:conv": "npu"})
    ) as session:
        tasks = sum(task.device == "npu" for task in session.plan.tasks)
        assert tasks
        profile = session.profile(feeds, runs=runs, warmup=warmup)
        assert len(simulated) == 2 * tasks
        assert profile.runs == runs and len(profile.wall_s) == 1
        assert profile.simulating_s > 0
        assert 0 < profile.best_virtual_s <= profile.virtual_s * 1.001


def test_after_a_profile_every_run_simulates(simulated):
    graph, feeds = graph_and_feeds()
    with Session(
        graph, devices=["npu", "cpu"], placement_options=PlacementOptions(pins={"op:conv": "npu"})
    ) as session:
        run_and_check(session, graph, feeds)
        session.profile(feeds, runs=3)
        simulated.clear()
        for seed in range(2):
            rng = np.random.default_rng(seed)
            others = {
                name: rng.integers(-99, 99, array.shape).astype(array.dtype)
                for name, array in feeds.items()
            }
            run_and_check(session, graph, others)
        assert len(simulated) >= 2


def test_with_states_every_run_of_a_profile_simulates(simulated):
    graph, feeds = graph_and_feeds(keeps_state=True)
    with Session(
        graph, devices=["npu", "cpu"], placement_options=PlacementOptions(pins={"op:conv": "npu"})
    ) as session:
        profile = session.profile(feeds, runs=3, warmup=1)
        assert len(simulated) >= 8 and len(profile.wall_s) == 3


def test_an_error_ends_the_repeating(simulated, monkeypatch):
    graph, feeds = graph_and_feeds()
    with Session(
        graph, devices=["npu", "cpu"], placement_options=PlacementOptions(pins={"op:conv": "npu"})
    ) as session:

        def fails():
            raise RuntimeError("interrupted")

        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="interrupted"):
            patched.setattr(session.runs, "profiled", fails)
            session.profile(feeds, runs=3)
        simulated.clear()
        run_and_check(session, graph, feeds)
        assert simulated


def test_the_cpu_is_watched_right_behind_plain_runs(monkeypatch):
    """Its choice of threads is made anew, in runs one behind another, before the first."""
    graph, feeds = graph_and_feeds()
    pins = {"op:conv": "npu", "op:sigmoid": "cpu"}
    with Session(
        graph, devices=["npu", "cpu"], placement_options=PlacementOptions(pins=pins)
    ) as session:
        done = []
        plain, watched = session.runs.run, session.runs.profiled
        monkeypatch.setattr(session.runs, "run", lambda: done.append("plain") or plain())
        monkeypatch.setattr(session.runs, "profiled", lambda: done.append("watched") or watched())
        chosen = [call for call in session.ready.latest().calls if isinstance(call, ThreadedCall)]
        assert chosen
        for call in chosen:
            monkeypatch.setattr(call, "use_single_thread", lambda alone: done.append(alone))
        session.profile(feeds, runs=3, warmup=0)
    settled = done.index(None)
    first = done.index("watched")
    assert done[:settled] == ["plain"] and first - settled >= 40
    assert done[first:] == ["watched", "plain", "watched", "watched"]
