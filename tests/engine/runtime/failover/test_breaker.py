"""Devices that fail often are passed over, and come back when a canary gives the right bits."""

from contextlib import contextmanager

import numpy as np
import pytest
from failing_sessions import HALF, X, chain, failing, sums
from opencl import need_opencl

from trireme.placement.explain import explain
from trireme.placement.options import PlacementOptions
from trireme.runtime.session import Session
from trireme.support.errors import DeviceError, FaultKind
from trireme.support.fault_events import FaultEvent, event_lines
from trireme.testing.faults import Fault, inject


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def with_clock(session, clock):
    for breaker in session._failover.breakers.values():
        breaker.clock = clock


@pytest.mark.parametrize("kind", [FaultKind.LAUNCH_FAILED, FaultKind.CHECKSUM])
def test_three_faults_take_a_device_out_and_a_canary_brings_it_back(kind):
    need_opencl()
    clock = Clock()
    faults = [Fault("cpu", "wait", nth, kind) for nth in (2, 3, 4, 5)]
    with failing(*faults) as (session, points):
        with_clock(session, clock)
        good = session.run({"x": X})["d"]
        for _ in range(3):
            session.run({"x": X})
        assert session.devices_out == {"cpu"}
        calls = points.calls["cpu", "launch"]
        fallback = session.run({"x": X})["d"]
        clock.now += 29
        session.run({"x": X})
        assert points.calls["cpu", "launch"] == calls
        clock.now += 2
        session.run({"x": X})
        session._failover.wait()
        assert points.calls["cpu", "launch"] == calls + 1 and session.devices_out == {"cpu"}
        session.run({"x": X})
        assert points.calls["cpu", "launch"] == calls + 1
        clock.now += 31
        np.testing.assert_array_equal(session.run({"x": X})["d"], fallback)
        session._failover.wait()
        assert not session.devices_out
        np.testing.assert_array_equal(session.run({"x": X})["d"], good)
        actions = [event.action for event in session.events]
        assert actions == [*["ran again"] * 3, "taken out", "brought back"]


def test_faults_far_apart_take_nothing_out():
    need_opencl()
    clock = Clock()
    with failing(*(Fault("cpu", "launch", nth) for nth in range(1, 9))) as (session, _):
        with_clock(session, clock)
        for _ in range(8):
            session.run({"x": X})
            clock.now += 31
        assert not session.devices_out and len(session.events) == 8


def test_a_device_that_gives_other_bits_stays_out():
    need_opencl()
    clock = Clock()
    with failing(*(Fault("cpu", "launch", nth) for nth in (2, 3, 4))) as (session, _):
        with_clock(session, clock)
        for _ in range(4):
            session.run({"x": X})
        canary = session._failover._canary
        canary.outputs["d"][0, 0] += 1
        clock.now += 31
        session.run({"x": X})
        session._failover.wait()
        assert session.devices_out == {"cpu"}


def test_a_lost_device_is_never_asked_again():
    need_opencl()
    clock = Clock()
    with failing(Fault("cpu", "launch", 2, FaultKind.LOST)) as (session, points):
        with_clock(session, clock)
        for _ in range(5):
            session.run({"x": X})
            clock.now += 100
        assert session.devices_out == {"cpu"} and points.calls["cpu", "launch"] == 2


@contextmanager
def two_sessions(*faults):
    """Two sessions of different models on the same devices."""
    devices = ["cpu", "opencl"]
    with (
        inject(*faults) as points,
        Session(chain(), devices=devices, fallback=True) as one,
        Session(chain(("a", "d")), devices=devices, fallback=True) as other,
    ):
        yield one, other, points


def test_a_device_that_is_out_is_out_for_all_sessions_and_comes_back_for_all():
    need_opencl()
    clock = Clock()
    with two_sessions(*(Fault("cpu", "launch", nth) for nth in (3, 4, 5))) as (one, other, points):
        with_clock(one, clock)
        good = [session.run({"x": X})["d"] for session in (one, other)]
        for _ in range(3):
            one.run({"x": X})
        assert one.devices_out == other.devices_out == {"cpu"}
        assert [event.action for event in other.events] == ["taken out"]
        assert other.events[0].to == ("opencl",)
        calls = points.calls["cpu", "launch"]
        other.run({"x": X})
        assert points.calls["cpu", "launch"] == calls
        with Session(chain(), devices=["cpu", "opencl"], fallback=True) as late:
            late.run({"x": X})
            assert late.devices_out == {"cpu"} and points.calls["cpu", "launch"] == calls
        clock.now += 31
        other.run({"x": X})
        other._failover.wait()
        assert points.calls["cpu", "launch"] == calls + 1
        assert not one.devices_out and not other.devices_out
        assert one.events[-1].action == other.events[-1].action == "brought back"
        for session, want in zip((one, other), good, strict=True):
            np.testing.assert_array_equal(session.run({"x": X})["d"], want)
        assert points.calls["cpu", "launch"] == calls + 3


def test_a_session_whose_devices_are_all_out_tries_them():
    """Each session leaves the last device in; together they may have taken all out."""
    need_opencl()
    faults = [Fault("cpu", "launch", 1, FaultKind.LOST), Fault("npu", "launch", 1, FaultKind.LOST)]
    how = dict(fallback=True, execution_options=HALF)
    a = PlacementOptions(pins={"a": "cpu"})
    b = PlacementOptions(pins={"a": "npu"})
    with (
        inject(*faults),
        Session(chain(), devices=["cpu", "opencl"], **how) as one,
        Session(chain(), devices=["npu", "opencl"], placement_options=b, **how) as two,
        Session(chain(), devices=["cpu", "npu"], placement_options=a, **how) as both,
    ):
        one.run({"x": X})
        two.run({"x": X})
        assert not both.devices_out
        with pytest.raises(DeviceError) as caught:
            both.run({"x": X})
        assert {cause.kind for cause in caught.value.causes} == {FaultKind.LOST}


def test_profiles_and_explanations_tell_what_happened():
    need_opencl()
    with failing(Fault("cpu", "launch", 2, FaultKind.LOST)) as (session, _):
        for _ in range(2):
            session.run({"x": X})
        explained = explain(session.placement, events=session.events)
        for shown in (str(explained), explained.summary()):
            assert "cpu failed, the run was repeated on opencl (lost at " in shown
            assert "cpu is taken out, runs are on opencl" in shown
        data = explained.to_json()["events"]
        assert [one["action"] for one in data] == ["ran again", "taken out"]
    with failing(Fault("cpu", "launch", 2)) as (session, _):
        for _ in range(2):
            session.run({"x": X})
        profile = session.profile({"x": X}, runs=1, warmup=0)
        assert "cpu failed, the run was repeated on opencl" in str(profile)
        assert profile.to_json()["events"] == [session.events[0].to_json()]


def test_pages_have_the_last_events():
    event = FaultEvent("npu", FaultKind.LOST, "", "ran again")
    lines = event_lines([event] * 7)
    assert len(lines) == 6 and "2 earlier ones" in lines[0] and "npu failed" in lines[-1]


def test_breakers_are_forgotten_with_the_last_session():
    need_opencl()
    with failing(Fault("cpu", "launch", 1, FaultKind.LOST)) as (session, _):
        session.run({"x": X})
        assert session.devices_out == {"cpu"}
    with Session(chain(), devices=["cpu", "opencl"], fallback=True) as session:
        session.run({"x": X})
        assert not session.devices_out and not session.events


def test_the_canary_puts_states_back():
    need_opencl()
    clock, want = Clock(), X.copy()
    pins = PlacementOptions(pins={"z": "opencl", "y": "cpu"})
    with inject(*(Fault("opencl", "launch", nth) for nth in (2, 3, 4))):
        opened = Session(sums(), devices=["cpu", "opencl"], fallback=True, placement_options=pins)
        with opened as session:
            with_clock(session, clock)
            for k in range(8):
                session.run({"x": X})
                if session._failover._trying:
                    session._failover.wait()
                np.testing.assert_array_equal(session.get_state()["sum"], want)
                want = want + X
                clock.now += 31 if k > 3 else 0
            assert session.events[-1].action == "brought back"
