"""A launch that never returns holds a thread of a stream; its items go to other devices."""

import time

import numpy as np
import pytest
from alarm import Stop, alarms, needs_timers
from failing_sessions import X, chain
from faults import Fault, inject
from opencl import need_opencl

from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.replicas import Replicas
from trireme.runtime.session.session import Session
from trireme.support.errors import FaultKind

GRAPH = chain(("a", "d"))
ITEMS = [{"x": X + k} for k in range(8)]
HOW = {
    "placement_options": PlacementOptions(pins={"a": "cpu", "d": "opencl"}),
    "execution_options": ExecutionOptions(device_options={"npu": {"float32": "float16"}}),
    "fallback": True,
}
SOON_S = 20
"""A second on a crowded machine."""


def pinned(device):
    return HOW | {"placement_options": PlacementOptions(pins={"a": "cpu", "d": device})}


def wanted():
    with Session(GRAPH, devices=["cpu"]) as session:
        return [session.run(one)["d"] for one in ITEMS]


def are_wanted(found, device):
    tolerance = 1e-5 if device == "opencl" else 2e-3
    for one, want in zip(found, wanted(), strict=True):
        np.testing.assert_allclose(one, want, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(found[-1], wanted()[-1])


def closes_soon(one):
    begun_s = time.monotonic()
    one.close()
    return time.monotonic() - begun_s < SOON_S


@pytest.mark.parametrize("depth", [1, None, 3])
@pytest.mark.parametrize("device", ["opencl", "npu"])
def test_a_stream(device, depth):
    need_opencl()
    with inject(Fault(device, "launch", 6, FaultKind.HANG)) as points:
        session = Session(GRAPH, devices=["cpu", device], **pinned(device))
        session.run(ITEMS[0])
        found = [one["d"] for one in session.stream(ITEMS, depth)]
        assert points.raised and session.devices[device].is_lost
        assert session.devices_out == {device}
        assert session.events[0].kind is FaultKind.HANG
        are_wanted(found, device)
        found = [one["d"] for one in session.stream(ITEMS, depth)]
        np.testing.assert_array_equal(found, wanted())
        assert closes_soon(session)


@pytest.mark.parametrize("device", ["opencl", "npu"])
def test_replicas(device):
    need_opencl()
    with inject(Fault(device, "launch", 6, FaultKind.HANG)) as points:
        replicas = Replicas(GRAPH, 2, devices=["cpu", device], **pinned(device))
        found = [one["d"] for one in replicas.stream(ITEMS)]
        assert points.raised
        lost = [one.devices[device].is_lost for one in replicas.sessions]
        assert sorted(lost) == [False, True]
        are_wanted(found, device)
        np.testing.assert_array_equal([one["d"] for one in replicas.stream(ITEMS)], wanted())
        assert closes_soon(replicas)


@pytest.mark.parametrize("what", [Session, Replicas])
def test_a_stream_that_is_not_read_to_the_end(what):
    need_opencl()
    with inject(Fault("opencl", "launch", 3, FaultKind.HANG)):
        more = () if what is Session else (2,)
        held = what(GRAPH, *more, devices=["cpu", "opencl"], **HOW)
        stream = held.stream(ITEMS)
        next(stream)
        assert closes_soon(stream) and closes_soon(held)


@needs_timers
def test_an_interrupt_does_not_wait_for_a_launch_that_hangs():
    need_opencl()
    with inject(Fault("opencl", "launch", 3, FaultKind.HANG)) as points, alarms(Stop) as set_alarm:
        session = Session(GRAPH, devices=["cpu", "opencl"], **HOW)
        stream = session.stream(ITEMS)
        next(stream)
        begun_s = time.monotonic()

        def fed_up():
            until_raised(points)
            set_alarm(0.1)
            list(stream)

        with pytest.raises(Stop):
            fed_up()
        assert time.monotonic() - begun_s < SOON_S
        assert closes_soon(session)


def until_raised(points):
    end_s = time.monotonic() + SOON_S
    while not points.raised:
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_items_that_fail_are_no_hang():
    """The task that failed is under way no more, however long the other plan takes to make."""
    need_opencl()
    with inject(Fault("opencl", "launch", 2)) as points:
        session = Session(GRAPH, devices=["cpu", "opencl"], **HOW)
        failover = session.faults.failover
        open_on = failover._open_on
        failover._open_on = lambda left: (time.sleep(3), open_on(left))[1]
        found = [one["d"] for one in session.stream(ITEMS)]
        assert points.raised and {one.action for one in session.events} == {"ran again"}
        assert not session.devices["opencl"].is_lost
        session.close()
    for one, want in zip(found, wanted(), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-5)
