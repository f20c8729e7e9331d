"""Faults of devices, injected at each point: the results are right, or the error is typed."""

import threading

import numpy as np
import pytest
from faults import Fault, inject

from trireme.backend.registry import kind_named
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.runtime.session.session import Session
from trireme.support.errors import DeviceError, FaultKind

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)
POINTS = {
    "open": FaultKind.UNAVAILABLE,
    "compile": FaultKind.COMPILE_FAILED,
    "launch": FaultKind.LAUNCH_FAILED,
    "wait": FaultKind.WAIT_FAILED,
}


def graph():
    b = GraphBuilder("faults")
    x = b.input("x", TensorType((3, 8), "float32"))
    return b.finish(b.add("neg", b.add("relu", x), names=["y"]))


WANT = run_reference(graph(), {"x": X})["y"]


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_without_fallback_is_typed(point):
    with inject(Fault("cpu", point)) as points:
        with (
            pytest.raises(DeviceError, match="injected") as caught,
            Session(graph(), devices=["cpu"]) as session,
        ):
            session.run({"x": X})
        assert caught.value.kind is POINTS[point] and caught.value.device == "cpu"
        assert len(points.raised) == 1


@pytest.mark.parametrize("point", ["open", "compile"])
def test_a_device_that_fails_while_loading_is_left_out(point, caplog):
    pytest.importorskip("pyopencl")
    before = threading.active_count()
    with (
        inject(Fault("cpu", point)),
        Session(graph(), devices=["cpu", "opencl"], fallback=True) as session,
    ):
        assert "injected" in session.dropped["cpu"] and "left out" in caplog.text
        found = session.run({"x": X})["y"]
    with Session(graph(), devices=["opencl"]) as alone:
        np.testing.assert_array_equal(found, alone.run({"x": X})["y"])
    assert threading.active_count() <= before + 1


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("point", ["launch", "wait"])
def test_one_run_fails_and_the_next_is_right(point, nth):
    with inject(Fault("cpu", point, nth, FaultKind.CHECKSUM)), Session(graph()) as session:
        for run in range(1, 5):
            out = {"y": np.full_like(WANT, 7)}
            if run == nth:
                with pytest.raises(DeviceError) as caught:
                    session.run({"x": X}, out)
                assert caught.value.kind is FaultKind.CHECKSUM
                assert (out["y"] == 7).all()
            else:
                session.run({"x": X}, out)
                np.testing.assert_array_equal(out["y"], WANT)


def test_a_lost_device_stays_lost_and_a_slow_one_is_right():
    with inject(Fault("cpu", "launch", 2, FaultKind.LOST)), Session(graph()) as session:
        session.run({"x": X})
        for _ in range(3):
            with pytest.raises(DeviceError) as caught:
                session.run({"x": X})
            assert caught.value.kind is FaultKind.LOST
    with inject(Fault("cpu", "launch", delay_s=0.01)) as points, Session(graph()) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], WANT)
        assert points.raised


def test_nothing_is_left_after_the_block():
    kind = kind_named("cpu")
    with inject(Fault("cpu", "launch")):
        assert kind_named("cpu") is not kind
    assert kind_named("cpu") is kind
    with Session(graph()) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], WANT)
