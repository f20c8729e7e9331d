"""A run that a device fails is repeated without it: the same bits, nothing of the failed run."""

import itertools
import logging

import numpy as np
import pytest
from failing_sessions import HALF, SEED, SHAPE, X, chain, failing, open_mixed, sums, without
from faults import Fault, inject
from opencl import need_opencl

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.explain import explain
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import DeviceError, FaultKind, RunError
from trireme.support.fault_events import FaultEvent, event_lines


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize("point", ["launch", "wait"])
@pytest.mark.parametrize("device", ["cpu", "opencl", "npu"])
def test_the_result_is_that_of_a_session_without_the_device(device, point, mode):
    need_opencl()
    want = without(chain(), device)["d"]
    with open_mixed(chain(), mode=mode) as session:
        good = session.run({"x": X})["d"]
    for nth in (1, 2):
        with inject(Fault(device, point, nth)) as points, open_mixed(chain(), mode=mode) as session:
            found = [session.run({"x": X})["d"] for _ in range(4)]
            assert points.raised
            (event,) = session.events
            assert (event.device, event.action) == (device, "ran again")
            assert event.node and device not in event.to
            kinds = {"launch": FaultKind.LAUNCH_FAILED, "wait": FaultKind.WAIT_FAILED}
            assert event.kind is kinds[point]
            assert session.devices_out == {device}
        is_fallback = [np.array_equal(one, want) for one in found]
        is_whole = [np.array_equal(one, good) for one in found]
        assert all(a or b for a, b in zip(is_fallback, is_whole, strict=True))
        assert all(is_fallback[is_fallback.index(True) :]) and sum(is_fallback) >= 3


def test_there_is_one_warning_for_a_fault(caplog):
    need_opencl()
    caplog.set_level(logging.WARNING)
    with failing(Fault("cpu", "launch", 2)) as (session, _):
        told = []
        session.on_event(told.append)
        for _ in range(3):
            session.run({"x": X})
        assert tuple(told) == session.events
    assert len(caplog.records) == 1 and "repeated on opencl" in caplog.text


def test_all_devices_fail():
    need_opencl()
    faults = [Fault(device, "launch", nth) for device in ("cpu", "opencl") for nth in range(1, 9)]
    with failing(*faults) as (session, _), pytest.raises(DeviceError, match="no other") as caught:
        session.run({"x": X})
    causes = caught.value.causes
    assert sorted(one.device for one in causes) == ["cpu", "opencl"]
    assert caught.value.kind is FaultKind.LAUNCH_FAILED and caught.value.node
    assert {event.action for event in session.events} == {"failed"} and not session.devices_out


@pytest.mark.parametrize("is_fed", [False, True])
@pytest.mark.parametrize("device", ["opencl", "npu"])
def test_the_repeated_run_fills_the_arrays_of_out(device, is_fed):
    """Outputs of 64 KiB are written in place, before the fault; one may be an input's array."""
    need_opencl()
    b = GraphBuilder("two")
    x = b.input("x", TensorType(SHAPE, "float32"))
    y = b.add("tanh", x, names=["a"])
    graph = b.finish(y, b.add("exp", b.add("sigmoid", x, names=["b"]), names=["c"]))
    pins = PlacementOptions(pins={"a": "cpu", "b": device, "c": "cpu"})
    how = dict(devices=["cpu", device], placement_options=pins, execution_options=HALF)
    with Session(graph, devices=["cpu"]) as session:
        want = session.run({"x": X})
    for point in ("launch", "wait"):
        with failing(Fault(device, point, 1), graph=graph, **how) as (session, points):
            fed = X.copy()
            out = {"a": fed if is_fed else np.zeros_like(X), "c": np.zeros_like(X)}
            found = session.run({"x": fed}, out)
            assert points.raised and found.keys() == out.keys()
            for name, array in out.items():
                assert found[name] is array
                np.testing.assert_array_equal(array, want[name])


@pytest.mark.parametrize("kind", [FaultKind.LAUNCH_FAILED, FaultKind.LOST])
def test_later_runs_pass_the_device_over_until_the_session_is_opened_anew(kind):
    need_opencl()
    with failing(Fault("cpu", "launch", 2, kind)) as (session, points):
        for _ in range(5):
            session.run({"x": X})
        assert session.devices_out == {"cpu"} and points.calls["cpu", "launch"] == 2
        assert [event.action for event in session.events] == ["ran again"]
    with Session(chain(), devices=["cpu", "opencl"], fallback=True) as session:
        session.run({"x": X})
        assert not session.devices_out and not session.events


def test_profiles_and_explanations_tell_what_happened():
    need_opencl()
    with failing(Fault("cpu", "launch", 2)) as (session, _):
        for _ in range(2):
            session.run({"x": X})
        told = "cpu failed, the run was repeated on opencl (launch failed at "
        explained = explain(session.placement, events=session.events)
        assert told in str(explained) and told in explained.summary()
        profile = session.profile({"x": X}, runs=1, warmup=0)
        assert told in str(profile)
        for shown in (explained, profile):
            assert shown.to_json()["events"] == [session.events[0].to_json()]


def test_pages_have_the_last_events():
    event = FaultEvent("npu", FaultKind.LOST, "", "ran again")
    lines = event_lines([event] * 7)
    assert len(lines) == 6 and "2 earlier ones" in lines[0] and "npu failed" in lines[-1]


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
@pytest.mark.parametrize("device", ["cpu", "opencl"])
@pytest.mark.parametrize("nth", range(1, 7))
def test_no_state_write_of_a_failed_run_is_seen(device, nth, schedule):
    need_opencl()
    how = ExecutionOptions(schedule=schedule)
    pins = PlacementOptions(pins={"z": "opencl", "y": "cpu"})
    want = X.copy()
    with inject(Fault(device, "launch", nth)):
        opened = Session(
            sums(),
            devices=["cpu", "opencl"],
            fallback=True,
            placement_options=pins,
            execution_options=how,
        )
        with opened as session:
            for _ in range(4):
                found = session.run({"x": X})["z"]
                np.testing.assert_allclose(found, np.tanh(want), rtol=1e-5)
                np.testing.assert_array_equal(session.get_state()["sum"], want)
                want = want + X
            assert [event.action for event in session.events] in (["ran again"], [])


@pytest.mark.parametrize("buckets", [None, {"n": [4, 8]}])
@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_open_shapes(device, buckets):
    need_opencl()
    graph = chain(("a", "b"), ("n", 8))
    feeds = [{"x": np.random.default_rng(n).standard_normal((n, 8), np.float32)} for n in (3, 7, 5)]
    left = {"cpu": "opencl", "opencl": "cpu"}[device]
    with Session(graph, devices=[left], buckets=buckets) as session:
        want = [session.run(one)["b"] for one in feeds]
    for point, nth in itertools.product(["compile", "launch"], range(1, 6)):
        with inject(Fault(device, point, nth)) as points:
            opened = Session(graph, devices=[device, left], fallback=True, buckets=buckets)
            with opened as session:
                for one, expected in zip(feeds, want, strict=True):
                    found = session.run(one)["b"]
                    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
                    if session.events and session.events[-1].action == "ran again":
                        assert points.raised


def test_tied_states_of_open_shapes():
    need_opencl()
    b = GraphBuilder("grow")
    x = b.input("x", TensorType((1, 4), "float32"))
    past = b.input("past", TensorType(("n", 4), "float32"))
    present = b.add("concat", past, b.add("tanh", x), axis=0, names=["present"])
    axes = b.constant("axes", np.array([0]))
    graph = b.finish(present, b.add("reduce_sum", present, axes, keepdims=0, names=["y"]))
    rows = np.random.default_rng(SEED).standard_normal((6, 1, 4)).astype(np.float32)
    for nth in range(1, 6):
        with inject(Fault("cpu", "launch", nth)):
            opened = Session(
                graph, devices=["cpu", "opencl"], fallback=True, states={"past": "present"}
            )
            with opened as session:
                for k, row in enumerate(rows):
                    found = session.run({"x": row})["y"]
                    want = np.tanh(rows[: k + 1, 0]).sum(axis=0)
                    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)
                    assert session.get_state()["past"].shape == (k + 1, 4)


def test_users_errors_are_no_faults():
    need_opencl()
    with Session(chain(), devices=["cpu", "opencl"], fallback=True) as session:
        for _ in range(2):
            with pytest.raises(RunError):
                session.run({"x": X[:3]})
            with pytest.raises(RunError):
                session.run({"x": X}, {"no": X})
            with pytest.raises(RunError):
                session.run({"x": X}, 3)
            session.run({"x": X})
        assert not session.events


def test_the_device_that_is_to_run_all_is_lost():
    """The plan without it had it as its single device still, and was refused."""
    need_opencl()
    with Session(chain(), devices=["cpu"]) as session:
        want = session.run({"x": X})["d"]
    alone = PlacementOptions(single_device="opencl")
    lost = Fault("opencl", "launch", 1, FaultKind.LOST)
    how = dict(devices=["cpu", "opencl"], fallback=True, placement_options=alone)
    for fault in (lost, Fault("opencl", "alloc", 1)):
        with inject(fault) as points, Session(chain(), **how) as session:
            for _ in range(2):
                np.testing.assert_array_equal(session.run({"x": X})["d"], want)
            assert points.raised
