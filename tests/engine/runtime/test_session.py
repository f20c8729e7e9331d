"""Sessions: what users feed and get, what they are told when it does not fit, faults, sharing."""

import contextlib
import random
import threading

import numpy as np
import pytest
from alarm import Interrupted, alarms, needs_timers
from toy_device import ToyDevice

from trireme import (
    CompileError,
    DeviceError,
    PlacementError,
    RunError,
    Session,
)
from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType, node_names
from trireme.ir.interpreter import run_reference
from trireme.placement.explain import explain
from trireme.placement.options import PlacementOptions
from trireme.profiling.trace import chrome_trace
from trireme.runtime.program.options import AS_GIVEN

F32 = TensorType((3, 8), "float32")


def two_branches(pins=("npu", "cpu")):
    """x -> tanh (pin 0) and relu (pin 1) -> add on the cpu; x is an output, too."""
    b = GraphBuilder("branches")
    x = b.input("x", F32)
    one = b.add("tanh", x, pin=pins[0], source="t:one")
    two = b.add("relu", x, pin=pins[1], source="t:two")
    y = b.add("add", one, two, pin="cpu", names=["y"], source="t:add")
    return b.finish(y, x)


def toys(**options):
    return [ToyDevice("cpu"), ToyDevice("npu", **options)]


def open_toys(graph=None, devices=None, **options):
    return Session(
        graph or two_branches(),
        devices=devices or toys(),
        execution_options=AS_GIVEN,
        calibration=Calibration(),
        **options,
    )


X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)


def test_run_gives_outputs_by_name():
    with open_toys() as session:
        outputs = session.run({"x": X})
        assert [v.name for v in session.inputs] == ["x"]
        assert [v.name for v in session.outputs] == ["y", "x"]
        assert session.inputs[0].type.shape == (3, 8)
    np.testing.assert_array_equal(outputs["x"], X)
    np.testing.assert_allclose(outputs["y"], np.tanh(X) + np.maximum(X, 0), rtol=1e-6)
    assert outputs["y"].tobytes() == run_reference(two_branches(), {"x": X})["y"].tobytes()


def test_outputs_survive_the_next_run():
    with open_toys() as session:
        first = session.run({"x": X})["y"].copy()
        kept = session.run({"x": X})["y"]
        session.run({"x": -X})
        np.testing.assert_array_equal(kept, first)


def test_out_arrays_are_written():
    with open_toys() as session:
        mine = np.empty((3, 8), np.float32)
        outputs = session.run({"x": X}, out={"y": mine})
        assert outputs["y"] is mine
        with pytest.raises(RunError, match="out"):
            session.run({"x": X}, out={"y": np.empty((3, 9), np.float32)})


@pytest.mark.parametrize(
    "feeds, words",
    [
        ({}, "missing: x"),
        ({"x": X, "z": X}, "not an input: z"),
        ({"z": X}, "missing: x"),
        ({"x": X[:2]}, r"float32\[2,8\], expected float32\[3,8\]"),
        ({"x": X.astype("float64")}, "astype"),
        ({"x": "abc"}, "string"),
    ],
)
def test_inputs_that_do_not_fit(feeds, words):
    with open_toys() as session:
        with pytest.raises(RunError, match=words):
            session.run(feeds)
        np.testing.assert_array_equal(session.run({"x": X})["x"], X)


def test_closed_session():
    session = open_toys()
    session.close()
    session.close()
    with pytest.raises(RunError, match="closed"):
        session.run({"x": X})


def test_a_device_that_does_not_exist_is_an_error():
    with pytest.raises(DeviceError, match="unknown device 'tpu'"):
        open_toys(devices=[ToyDevice("cpu"), "tpu"])


def test_fallback_is_in_the_report():
    graph = two_branches(pins=(None, "cpu"))
    with open_toys(graph, [ToyDevice("cpu"), "tpu"], fallback=True) as session:
        assert "unknown device" in session.dropped["tpu"]
        session.run({"x": X})


def test_no_device_left():
    with pytest.raises(DeviceError, match="none of the devices"):
        open_toys(devices=["tpu"], fallback=True)
    with pytest.raises(DeviceError, match="no device was asked for"):
        Session(two_branches(), devices=[])


def test_a_device_listed_twice():
    with pytest.raises(DeviceError, match="twice"):
        open_toys(devices=[ToyDevice("cpu"), ToyDevice("cpu")])


def test_compile_failure_is_an_error_or_in_the_report():
    graph = two_branches(pins=(None, "cpu"))
    fast = {"flops": 1e15, "bandwidth": 1e15, "launch_s": 0.0, "link_bandwidth": 1e15}
    slow = ToyDevice("cpu", flops=1.0, bandwidth=1.0)
    with pytest.raises(CompileError, match="told to fail"):
        open_toys(graph, [slow, ToyDevice("npu", fail_compile=True, **fast)])
    devices = [slow, ToyDevice("npu", fail_compile=True, **fast)]
    with open_toys(graph, devices, fallback=True) as session:
        assert "told to fail" in session.dropped["npu"]
        assert not session.placement.nodes_on("npu")
        session.run({"x": X})


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_a_fault_at_run_time_comes_out_and_the_session_lives(mode):
    devices = toys()
    with open_toys(devices=devices, mode=mode) as session:
        devices[1].fail_launch = True
        with pytest.raises(DeviceError, match="told to fail"):
            session.run({"x": X})
        devices[1].fail_launch = False
        np.testing.assert_array_equal(session.run({"x": X})["x"], X)


def test_parallel_overlaps_devices():
    """Two branches of 50 ms on two devices: the toy refuses two tasks at once on one device.

    The cost model believes them cheap; two runs show the runner that they are not.
    """
    devices = [ToyDevice("cpu", delay_s=0.05), ToyDevice("npu", delay_s=0.05)]
    with open_toys(devices=devices) as session:
        spans = session.profile({"x": X}, runs=1, warmup=3).last_run
        one, two = (
            next(s for s in spans if session.plan.tasks[s.task].device == name)
            for name in ("cpu", "npu")
        )
        assert one.start_s < two.end_s and two.start_s < one.end_s


def test_threads_may_share_a_session():
    with open_toys() as session:
        want = {k: session.run({"x": X * k})["y"] for k in range(8)}
        wrong = []

        def work(k):
            for _ in range(20):
                if not np.array_equal(session.run({"x": X * k})["y"], want[k]):
                    wrong.append(k)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


@needs_timers
def test_a_signal_at_any_moment_leaves_a_session_usable():
    """A handler that raises, as Ctrl-C's does: later runs and `close` must not wait for ever."""
    b = GraphBuilder("tiny")
    graph = b.finish(b.add("neg", b.input("x", TensorType((4,), "float32")), names=["y"]))
    rng, x = random.Random(5), np.ones(4, np.float32)
    print("seed 5")
    with alarms() as set_alarm:
        session = Session(graph, threads=1, calibration=Calibration())
        for _ in range(500):
            with contextlib.suppress(Interrupted):
                set_alarm(rng.uniform(2e-5, 1e-4))
                while True:
                    session.run({"x": x})
            later = threading.Thread(target=session.run, args=({"x": x},), daemon=True)
            later.start()
            later.join(20)
            assert not later.is_alive(), "a lock was left taken"
        assert session.run({"x": x})["y"][0] == -1
        session.close()


def test_given_devices_stay_open_and_own_ones_close():
    given = toys()
    open_toys(devices=given).close()
    assert not any(device.closed for device in given)


def test_profile_has_both_clocks_and_every_byte():
    with open_toys() as session:
        profile = session.profile({"x": X}, runs=3, warmup=1)
        assert len(profile.wall_s) == 3
        assert profile.predicted_s > 0 and profile.virtual_s > 0
        assert profile.copied_bytes == {"host>npu": X.nbytes, "npu>host": X.nbytes}
        assert {row.memory for row in profile.memory} == {"host", "npu"}
        assert all(row.seconds > 0 for row in profile.tasks)
        assert "npu>host" in str(profile)
        trace = chrome_trace(profile)["traceEvents"]
        names = {e["args"]["name"] for e in trace if e["name"] == "thread_name"}
        assert {"npu", "cpu", "host>npu"} <= names
        complete = [e for e in trace if e["ph"] == "X"]
        assert len(complete) >= 3 * len(session.plan.tasks)
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in complete)
        layers = {e["name"]: e["args"] for e in complete if "kernel" in e["args"]}
        assert set(layers) == set(node_names(session.graph).values())
        assert all(args["op"] and args["shapes"] for args in layers.values())
        starts, ends = ([e for e in trace if e["ph"] == phase] for phase in "sf")
        assert len(starts) == len(ends) > 0
        assert all(a["ts"] <= b["ts"] + 1e-6 for a, b in zip(starts, ends, strict=True))


def test_explain_prices_what_a_pin_changes():
    """Forcing an alternative by a pin gives exactly the run time that explain stated."""
    graph = two_branches(pins=(None, None))
    with open_toys(graph) as session:
        explanation = explain(session.placement)
        assert "t:one" in str(explanation)
        for node, alternatives in explanation.nodes:
            for other in (a for a in alternatives[1:] if a.run_s is not None):
                pins = {n.id: session.placement.choices[n.id].device for n in graph.nodes}
                pins[node.id] = other.device
                with open_toys(pinned(graph, pins)) as forced:
                    assert forced.placement.makespan_s == pytest.approx(other.run_s, rel=1e-9)


def pinned(graph, pins):
    from dataclasses import replace

    return replace(graph, nodes=tuple(replace(n, pin=pins[n.id]) for n in graph.nodes))


@pytest.mark.parametrize(
    ("pins", "where"),
    [
        ({"op:tanh": "npu", "op:relu": "cpu"}, ["npu", "cpu", None]),
        ({"*": "npu"}, ["npu", "npu", "npu"]),
        ({"*": "npu", "op:tanh": "cpu"}, ["cpu", "npu", "npu"]),
        ({"op:tanh": "cpu", "*": "npu"}, ["npu", "npu", "npu"]),
        ({"tanh..y": "cpu", "op:relu": "npu", "y": "npu"}, ["cpu", "npu", "npu"]),
    ],
)
def test_nodes_are_where_pins_say(pins, where):
    """By name, stretch, op or all; the later pin holds; every value as the reference has it."""
    b = GraphBuilder("branches")
    x = b.input("x", F32)
    one, two = b.add("tanh", x, names=["tanh"]), b.add("relu", x, names=["relu"])
    graph = b.finish(b.add("add", one, two, names=["y"]))
    with open_toys(graph, placement_options=PlacementOptions(pins=pins)) as session:
        for node, device in zip(session.graph.nodes, where, strict=True):
            assert node.pin == device
            assert device in (None, session.placement.choices[node.id].device)
        found = session.run({"x": X})["y"]
    assert found.tobytes() == run_reference(graph, {"x": X})["y"].tobytes()


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        ({"op:softmax": "cpu"}, "no node is of op 'softmax'"),
        ({"w": "cpu"}, "no node is called 'w'"),
        ({"y": "gpu"}, "'gpu' is not among the devices cpu, npu"),
    ],
)
def test_pins_of_nothing_are_refused(pins, said):
    with pytest.raises(PlacementError, match=said):
        open_toys(placement_options=PlacementOptions(pins=pins))


def test_a_pin_that_a_device_refuses_is_an_error():
    npu = ToyDevice("npu", ops={"tanh"})
    with pytest.raises(PlacementError, match="no device can run relu") as error:
        open_toys(
            two_branches(pins=(None, None)),
            [ToyDevice("cpu"), npu],
            placement_options=PlacementOptions(pins={"op:relu": "npu"}),
        )
    assert "pinned to npu" in str(error.value)


def test_constant_output():
    b = GraphBuilder("constant")
    x = b.input("x", F32)
    c = b.constant("c", np.arange(3, dtype=np.float32))
    graph = b.finish(c, b.add("relu", x))
    with open_toys(graph) as session:
        np.testing.assert_array_equal(session.run({"x": X})["c"], np.arange(3))
