"""Session(measure=True): placements are tried on this machine, and the fastest is kept."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from placing import place_plain
from toy_device import ToyDevice
from toy_graphs import feeds_of
from zoo import zoo_path

from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.placement.explain import explain
from trireme.placement.lockfile import load_lock
from trireme.placement.options import PlacementOptions
from trireme.placement.pricing import FixedNodes
from trireme.placement.singles import alone_on, solve_singles
from trireme.placement.solve import solve_several
from trireme.runtime.models import autotune as measure
from trireme.runtime.models.autotune import LEAST_CALLS, Timed, distinct, time_programs
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.errors import PlacementError
from trireme.tools.cli import main


def branches():
    b = GraphBuilder("branches")
    x = b.input("x", TensorType((4000,), "float32"))
    return b.finish(b.add("add", b.add("exp", x), b.add("tanh", x)))


def toys(**slow_gpu):
    """A gpu that is predicted to be ten times faster."""
    return [
        ToyDevice("cpu"),
        ToyDevice("gpu", memory="host", flops=1e10, bandwidth=1e10, **slow_gpu),
    ]


def opened(graph, devices, **options):
    return Session(
        graph, devices=devices, execution_options=AS_GIVEN, calibration=Calibration(), **options
    )


def test_what_is_slower_than_predicted_is_not_kept():
    graph, feeds = branches(), None
    with opened(graph, toys(delay_s=5e-3)) as session:
        assert session.placement.nodes_on("gpu")
    with opened(graph, toys(delay_s=5e-3), measure=True) as session:
        placement, feeds = session.placement, feeds_of(graph, 0)
        assert not placement.nodes_on("gpu"), placement
        assert sum(one.kept for one in placement.measured) == 1
        assert "slower when measured" in placement.unused["gpu"]
        assert all(str(one) in str(explain(placement)) for one in placement.measured)
        assert placement.score.lower_bound <= min(one.value for one in placement.candidates)
        for name, array in session.run(feeds).items():
            assert array.tobytes() == run_reference(graph, feeds)[name].tobytes()
    with opened(graph, toys(), placement=placement) as session:
        assert not session.placement.nodes_on("gpu")


def test_each_placement_is_tried_once():
    graph = branches()
    costs = CostModel({toy.spec.name: toy for toy in toys()}, Calibration())
    every = [
        place_plain(graph, costs),
        *solve_several(graph, costs),
        *solve_singles(graph, costs).values(),
    ]
    assert 2 <= len(distinct(every)) < len(every)
    with opened(graph, toys(), measure=True) as session:
        assert len(session.placement.measured) == len(distinct(every))


def test_what_cannot_be_tried_is_told():
    graph = branches()
    with opened(graph, toys(fail_compile=True), measure=True) as session:
        lines = session.placement.measured
        assert any("told to fail" in one.text for one in lines) and not session.dropped
        assert not session.placement.nodes_on("gpu")
    with opened(graph, [ToyDevice("cpu")], measure=True) as session:
        assert "no other placement" in session.placement.measured[0].text


def test_states_are_left_alone():
    b = GraphBuilder("count")
    x = b.input("x", TensorType((2,), "float32"))
    zero = b.constant("zero", np.zeros(2, np.float32))
    total = b.add("add", b.add("variable", zero, state="total"), x)
    b.add("assign", total, state="total")
    with opened(b.finish(total), toys(), measure=True) as session:
        assert "would write states" in session.placement.measured[0].text
        assert (session.run({"x": np.ones(2, np.float32)})[session.outputs[0].name] == 1).all()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (PlacementOptions(objective="throughput"), "nothing of throughput"),
        (PlacementOptions(sharding=["exp_1=cpu,gpu:rows"]), "the shards are asked for"),
    ],
)
def test_nothing_is_measured_against_what_was_asked_for(options, what):
    with pytest.raises(PlacementError, match=what):
        opened(branches(), toys(), measure=True, placement_options=options)


def test_the_last_round_is_the_one_in_which_time_runs_out():
    """However slow the runs are, one round counts, of one run each once time is over."""

    class Slow:
        runs = calls = 0

        def __init__(self, session):
            self.session = session

        def __getattr__(self, name):
            return getattr(self.session, name)

        def run(self, feeds):
            self.calls += 1
            return self.session.run(feeds)

    graph = branches()
    with opened(graph, toys()) as session:
        slow = Slow(session)
        one = Timed(slow)
        assert time_programs([one], feeds_of(graph, 0), 50, 1e-3, limit_s=0.0) == "wall"
        assert len(one.wall_s) == 1 and slow.calls == 2
        time_programs([one], feeds_of(graph, 0), 2, 1e-9)
        assert len(one.wall_s) == 3 and slow.calls == 2 + 3 * LEAST_CALLS


def test_simulated_devices_are_compared_by_virtual_time():
    devices = toys()
    devices[1].spec = replace(devices[1].spec, clock="virtual")
    with opened(branches(), devices, measure=True) as session:
        assert all(", virtual " in one.text for one in session.placement.measured)


def test_the_command_line_measures_and_locks(tmp_path, capsys):
    model, lock = str(zoo_path("ad01_int8.tflite")), str(tmp_path / "lock.toml")
    assert main(["place", model, "--devices", "npu,cpu", "--measure", "--lock", lock]) == 0
    assert " <- kept" in capsys.readouterr().out and load_lock(Path(lock)).measured
    assert main(["explain", model, "--devices", "npu,cpu", "--measure"]) == 0
    assert " <- kept" in capsys.readouterr().out


def test_a_measured_lock_is_checked_by_holding_it(tmp_path, capsys):
    """Predictions would place it otherwise; only what cannot be held any more is a difference."""
    model, path = str(zoo_path("ad01_int8.tflite")), tmp_path / "lock.toml"
    given = ["place", model, "--devices", "npu,cpu"]
    assert main([*given, "--lock", str(path)]) == 0
    text = path.read_text()
    here, there = ("npu", "cpu") if 'device = "npu"' in text else ("cpu", "npu")
    text = text.replace(f'device = "{here}"', f'device = "{there}"')
    path.write_text(text)
    assert main([*given, "--check", str(path)]) == 1
    path.write_text(text.replace("measured = false", "measured = true"))
    assert main([*given, "--check", str(path)]) == 0
    assert "fastest when measured" in capsys.readouterr().out
    path.write_text(path.read_text().replace('op = "', 'op = "not_', 1))
    assert main([*given, "--check", str(path)]) == 1


@pytest.mark.parametrize(
    ("first", "second", "mixed"),
    [
        ([0.96] * 7, [0.96] * 7, True),
        ([0.98] * 7, None, False),
        ([0.96] * 7, [0.98] * 7, False),
        ([0.5] * 5 + [1.2] * 2, [0.96] * 7, False),
        ([0.96] * 7, [1.5, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9], True),
    ],
)
def test_a_mixture_must_be_faster_for_sure_and_again(monkeypatch, first, second, mixed):
    """Seconds of the mixture in the rounds of both matches, where the device alone takes one."""
    graph, devices = branches(), {toy.spec.name: toy for toy in toys()}
    costs = CostModel(devices, Calibration())
    one, other = (node.id for node in graph.nodes[:2])
    where = {node.id: "cpu" for node in graph.nodes}
    placements = [
        place_plain(graph, costs, fixed=FixedNodes({**where, **moved}, {}))
        for moved in ({one: "gpu"}, {}, {one: "gpu", other: "gpu"})
    ]
    assert [alone_on(placement) for placement in placements] == [False, True, False]
    entrants = [Timed(SimpleNamespace(placement=placement)) for placement in placements]
    for entrant, wall_s in zip(entrants, (first, [1.0] * 7, [2.0] * 7), strict=True):
        entrant.wall_s = wall_s

    def again(pair, *args, **kwargs):
        pair[0].wall_s, pair[1].wall_s = second, [1.0] * 7

    monkeypatch.setattr(measure, "time_programs", again)
    assert measure._best(entrants, {}, "wall") == (0 if mixed else 1)
