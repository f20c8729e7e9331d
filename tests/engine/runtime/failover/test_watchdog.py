"""A device that hangs: runs go on without it, nobody waits for it, its memory is not reused."""

import pathlib
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from opencl import need_opencl

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.options import ExecutionOptions
from trireme.runtime.session import Session
from trireme.support.errors import DeviceError, FaultKind
from trireme.testing.faults import Fault, inject

X = np.random.default_rng(4).standard_normal((8, 64)).astype(np.float32)
HALF = ExecutionOptions(device_options={"npu": {"float32": "float16"}})


def graph():
    b = GraphBuilder("two")
    x = b.input("x", TensorType(X.shape, "float32"))
    return b.finish(b.add("tanh", b.add("sigmoid", x, names=["a"]), names=["b"]))


def opened(device, mode="serial"):
    """A session with a task on the device and another on the cpu."""
    pins = PlacementOptions(pins={"a": device, "b": "cpu"})
    return Session(
        graph(),
        devices=[device, "cpu"],
        placement_options=pins,
        execution_options=HALF,
        fallback=True,
        mode=mode,
    )


@pytest.fixture(scope="module")
def want():
    with Session(graph()) as session:
        return session.run({"x": X})["b"]


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize("point", ["launch", "wait"])
@pytest.mark.parametrize("device", ["opencl", "npu"])
def test_a_hang_is_a_lost_device(device, point, mode, want):
    need_opencl()
    out = {"b": np.zeros_like(X)}
    with inject(Fault(device, point, 2, FaultKind.HANG)) as points:
        with opened(device, mode) as session:
            session.run({"x": X})
            begun = time.monotonic()
            session.run({"x": X}, out)
            assert 0.9 < time.monotonic() - begun < 20
            np.testing.assert_array_equal(out["b"], want)
            (ran, taken) = session.events
            assert (ran.device, ran.kind, ran.action) == (device, FaultKind.HANG, "ran again")
            assert ran.node and taken.action == "taken out" and session.devices[device].is_lost
            calls = points.calls[device, "launch"]
            begun = time.monotonic()
            for _ in range(3):
                np.testing.assert_array_equal(session.run({"x": X})["b"], want)
            assert points.calls[device, "launch"] == calls
            closing = time.monotonic()
        assert time.monotonic() - closing < 2


def test_other_sessions_go_on_meanwhile(want):
    need_opencl()
    with inject(Fault("opencl", "wait", 2, FaultKind.HANG)), opened("opencl") as session:
        session.run({"x": X})
        request = session.run_async({"x": X})
        with Session(graph(), devices=["cpu"]) as other:
            while not request.done():
                np.testing.assert_array_equal(other.run({"x": X})["b"], want)
        np.testing.assert_array_equal(request.result()["b"], want)


def test_all_devices_hang():
    """The last device that hangs is an error of its own, and none is asked twice."""
    need_opencl()
    faults = [
        Fault("npu", "launch", 2, FaultKind.HANG),
        Fault("opencl", "launch", 1, FaultKind.HANG),
    ]
    pins = PlacementOptions(pins={"a": "npu"})
    with inject(*faults):
        session = Session(
            graph(),
            devices=["npu", "opencl"],
            placement_options=pins,
            execution_options=HALF,
            fallback=True,
        )
        with session:
            if session.plan.tasks[-1].device == "opencl":
                pytest.skip("the plan has opencl beside the npu")
            session.run({"x": X})
            for kind in (FaultKind.HANG, FaultKind.LOST):
                with pytest.raises(DeviceError) as caught:
                    session.run({"x": X})
                assert caught.value.causes[-1].kind is kind


def test_the_process_ends_though_a_device_hangs():
    need_opencl()
    script = """
        import sys, time
        sys.path[:0] = sys.argv[1:]
        from test_watchdog import *
        block = inject(Fault("npu", "launch", 2, FaultKind.HANG))
        block.__enter__()
        session = opened("npu")
        for _ in range(3):
            session.run({"x": X})
        print(session.devices_out, time.time(), flush=True)
    """
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(script),
        str(pathlib.Path(__file__).parent),
        *sys.path,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not done.returncode, done.stderr
    ended, (out, last) = time.time(), done.stdout.rsplit(maxsplit=1)
    assert "npu" in out
    assert ended - float(last) < 2.5


def test_threads_end_with_a_session():
    need_opencl()
    before = threading.active_count()
    with opened("opencl") as session:
        session.run({"x": X})
    assert threading.active_count() <= before + 1
