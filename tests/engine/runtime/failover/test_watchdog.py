"""A device that hangs: runs go on without it, nobody waits for it, its memory is not reused."""

import math
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from faults import Fault, inject
from opencl import need_opencl

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.loop.task_watch import TaskWatch
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import DeviceError, FaultKind

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
    """A plain run gives up its own wait; a launch that hangs needs a run that has a deadline."""
    need_opencl()
    within_s = 60 if point == "launch" else None
    out = {"b": np.zeros_like(X)}
    with inject(Fault(device, point, 2, FaultKind.HANG)) as points:
        with opened(device, mode) as session:
            session.run({"x": X})
            begun = time.monotonic()
            session.run({"x": X}, out, timeout_s=within_s)
            assert 0.9 < time.monotonic() - begun < 20
            np.testing.assert_array_equal(out["b"], want)
            (ran,) = session.events
            assert (ran.device, ran.kind, ran.action) == (device, FaultKind.HANG, "ran again")
            assert ran.node and session.devices[device].is_lost
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
                    session.run({"x": X}, timeout_s=60)
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
            session.run({"x": X}, timeout_s=60)
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
    assert ended - float(last) < 60  # the hang lasts for ever; a busy machine took 3 s


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize("device", ["opencl", "npu"])
def test_a_plain_run_stays_on_its_thread(device, mode, monkeypatch):
    """The hand-over to another thread took 30 us, most of a small run."""
    need_opencl()
    handed = []
    with opened(device, mode) as session:
        watched = session.ready.latest().watched
        beside = watched._run_beside
        monkeypatch.setattr(watched, "_run_beside", lambda *a: (handed.append(1), beside(*a)))
        session.run({"x": X})
        assert handed == [1]
        watched._least_s = 1e-3
        for _ in range(3):
            session.run({"x": X})
        assert handed == [1]
        session.run({"x": X}, timeout_s=60)
        assert handed == [1, 1]
        watched._least_s = 1.0
        session.run({"x": X})
        assert handed == [1, 1, 1]


def test_tasks_that_wait_in_a_queue_have_the_time_of_those_before_them():
    need_opencl()
    b = GraphBuilder("many")
    y = b.input("x", TensorType(X.shape, "float32"))
    for k in range(6):
        y = b.add("tanh", y, names=[f"y{k}"])
    how = ExecutionOptions(execution="interactive")
    with Session(b.finish(y), devices=["opencl"], execution_options=how) as session:
        watch = TaskWatch(session.plan, least_s=0.0)
        assert len(session.plan.tasks) > 6
        total_s = sum(task.estimate_s for task in session.plan.tasks)
        assert watch.limit_s((2,)) == pytest.approx(20 * total_s)
        assert watch.limit_s(range(len(session.plan.tasks))) == pytest.approx(20 * total_s)


def test_an_event_of_the_driver_is_given_up_and_its_semaphore_is_not_used_again():
    need_opencl()
    import pyopencl as cl

    from trireme.devices.opencl import timed_wait

    with Session(graph(), devices=["opencl"]) as session:
        context = session.devices["opencl"].context.handle
        event = cl.UserEvent(context)
        begun = time.monotonic()
        abandoned = len(timed_wait._ABANDONED)
        assert not timed_wait.wait_for(event, 0.05)
        assert 0.05 <= time.monotonic() - begun < 5
        assert len(timed_wait._ABANDONED) == abandoned + 1
        event.set_status(0)
        for _ in range(3):
            assert timed_wait.wait_for(event, 10)
        with ThreadPoolExecutor(1) as pool:
            endless = cl.UserEvent(context)
            waits = pool.submit(timed_wait.wait_for, endless, math.inf)
            time.sleep(0.02)
            assert not waits.done()
            endless.set_status(0)
            assert waits.result(10)
        later = cl.UserEvent(context)
        assert not timed_wait.wait_for(later, 0.01)
        later.set_status(0)


def test_an_interrupt_ends_a_wait_for_the_driver():
    need_opencl()
    import pyopencl as cl

    from trireme.devices.opencl import timed_wait

    with Session(graph(), devices=["opencl"]) as session:
        event = cl.UserEvent(session.devices["opencl"].context.handle)
        main = threading.main_thread().ident
        # a process that a shell began in the background ignores the signal
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGINT]).start()
            with pytest.raises(KeyboardInterrupt):
                timed_wait.wait_for(event, 20)
        finally:
            signal.signal(signal.SIGINT, before)
        event.set_status(0)
        assert timed_wait.wait_for(event, 10)


def test_threads_end_with_a_session():
    need_opencl()
    before = threading.active_count()
    with opened("opencl") as session:
        session.run({"x": X})
    assert threading.active_count() <= before + 1
