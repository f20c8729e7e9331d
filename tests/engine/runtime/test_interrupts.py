"""Ctrl-C, closing, forking, dropping: whatever happens in the midst of a run, what follows is right
or is told, and nothing waits for ever."""

import contextlib
import gc
import os
import random
import threading
import time

import numpy as np
import pytest
from alarm import Interrupted, Stop, alarms, needs_timers
from toy_device import ToyDevice

from trireme.cost.calibration import Calibration
from trireme.devices.cpu.runtime.cores import all_cores
from trireme.devices.cpu.runtime.native import has_futex
from trireme.devices.npu.executable import NpuCall
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.replicas import Replicas
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError, TriremeError

T = TensorType((16, 32), "float16")
X = np.linspace(-2, 2, 512, dtype=np.float16).reshape(16, 32)
SETS = [["cpu", "npu"], ["cpu#1", "cpu#2"]]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
on_devices = pytest.mark.parametrize("names", SETS, ids=",".join)


def two_ways(names):
    """Two chains side by side, and their sum."""
    b = GraphBuilder("ways")
    x = b.input("x", T)
    one = two = x
    for _ in range(3):
        one = b.add("relu", b.add("neg", one, pin=names[0]), pin=names[0])
        two = b.add("abs", b.add("neg", two, pin=names[1]), pin=names[1])
    return b.finish(b.add("add", one, two, pin=names[0], names=["y"]))


def open_on(names, mode="parallel", **options):
    if "cpu#1" in names and (not has_futex() or len(all_cores()) < 2):
        pytest.skip("instances need Linux and two cores")
    return Session(
        two_ways(names),
        devices=names,
        threads=1,
        execution_options=AS_GIVEN,
        mode=mode,
        placement_options=PlacementOptions(sharding="off"),
        calibration=Calibration(),
        **options,
    )


def toys(**options):
    return Session(
        two_ways(["a", "b"]),
        devices=[ToyDevice(name, **options) for name in "ab"],
        execution_options=AS_GIVEN,
        mode="parallel",
        calibration=Calibration(),
    )


def within_20_s(work):
    """Run a function in a thread of its own and return what it returns."""
    made = []
    thread = threading.Thread(target=lambda: made.append(work()), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it hangs"
    return made[0]


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_a_launch_lost_to_an_interrupt_does_not_write_into_the_next_run(mode, monkeypatch):
    """The interrupt comes when the NPU has its task, and before anybody has the event."""
    launch, run, lost = NpuCall.launch, NpuCall._run, []

    def interrupted(self, profile=False):
        event = launch(self, profile)
        if not lost:
            lost.append(event)
            raise KeyboardInterrupt
        return event

    def slowly(self):
        if len(lost) == 1:
            lost.append(time.sleep(0.1))
        run(self)

    with open_on(["cpu", "npu"], mode) as session:
        want = session.run({"x": X})["y"]
        monkeypatch.setattr(NpuCall, "launch", interrupted)
        monkeypatch.setattr(NpuCall, "_run", slowly)
        with pytest.raises(KeyboardInterrupt):
            session.run({"x": X * 2})
        assert lost[0].is_over
        for _ in range(3):
            np.testing.assert_array_equal(session.run({"x": X})["y"], want)


@pytest.mark.parametrize("raised", [Stop, Interrupted])
@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_an_interrupt_that_left_a_condition_s_lock_free_is_what_comes_out(mode, kind, raised):
    """Its `with` then fails of the lock, in the midst of the interrupt."""

    def launch():
        lock = threading.Condition(kind())
        with lock:
            lock.release()
            raise raised

    device = ToyDevice("a")
    with Session(
        two_ways(["a", "a"]), devices=[device], execution_options=AS_GIVEN, mode=mode
    ) as session:
        want = session.run({"x": X})["y"]
        device.on_launch = launch
        with pytest.raises(raised):
            session.run({"x": X})
        device.on_launch = lambda: None
        np.testing.assert_array_equal(session.run({"x": X})["y"], want)


@pytest.mark.parametrize("method", ["_share", "_finish", "_release"])
def test_a_runner_that_was_interrupted_runs_again(method, monkeypatch):
    """Between two calls nobody knows who holds which task, so it starts afresh."""
    with toys() as session:
        want = session.run({"x": X})["y"]
        runner = session.runs.runner
        for at in range(6):
            inner, calls = getattr(type(runner), method), []

            def once(self, *given, inner=inner, calls=calls, at=at):
                signalled = not threading.current_thread().name.startswith("trireme")
                calls.extend([0] * signalled)
                if signalled and len(calls) == at + 1:
                    raise KeyboardInterrupt
                return inner(self, *given)

            with monkeypatch.context() as patch:
                patch.setattr(type(runner), method, once)
                with contextlib.suppress(KeyboardInterrupt):
                    within_20_s(lambda: _swallow(session))
            np.testing.assert_array_equal(within_20_s(lambda: session.run({"x": X})["y"]), want)


def _swallow(session):
    with contextlib.suppress(KeyboardInterrupt):
        session.run({"x": X * 3})


@needs_timers
@on_devices
def test_interrupts_at_any_moment_leave_right_results(names):
    rng = random.Random(5)
    print("seed 5")
    with alarms(Stop) as set_alarm, open_on(names) as session:
        want = [session.run({"x": X * k})["y"] for k in range(3)]
        for _ in range(60):
            with contextlib.suppress(Stop):
                set_alarm(rng.uniform(1e-5, 2e-3))
                while True:
                    session.run({"x": X * 7})
            k = rng.randrange(3)
            got = within_20_s(lambda k=k: session.run({"x": X * k})["y"])
            np.testing.assert_array_equal(got, want[k])


@needs_timers
@on_devices
def test_a_stream_that_was_interrupted_is_closed_and_another_is_right(names):
    rng = random.Random(5)
    print("seed 5")

    with alarms(Stop) as set_alarm, open_on(names) as session:
        want = [session.run({"x": X * k})["y"] for k in range(3)]
        for _ in range(40):
            stream = session.stream({"x": X * (k % 3)} for k in range(2000))
            with contextlib.suppress(Stop, RunError):
                set_alarm(rng.uniform(1e-5, 4e-3))
                for k, outputs in enumerate(stream):
                    np.testing.assert_array_equal(outputs["y"], want[k % 3])
            set_alarm(0)
            within_20_s(stream.close)
            got = within_20_s(lambda: list(session.stream({"x": X * k} for k in range(3))))
            for one, right in zip(got, want, strict=True):
                np.testing.assert_array_equal(one["y"], right)


def test_closing_is_not_kept_waiting_by_threads_that_run():
    session, errors = toys(), []

    def run_on():
        try:
            while True:
                session.run({"x": X})
        except TriremeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=run_on, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    within_20_s(session.close)
    for thread in threads:
        thread.join(20)
    assert errors == ["the session is closed"] * 4


@pytest.mark.parametrize("what", ["stream", "session"])
def test_a_stream_closed_by_another_thread_says_so_or_ends(what):
    rng = random.Random(5)
    for _ in range(20):
        session, said = toys(), []
        stream = session.stream({"x": X} for _ in range(10**6))

        def read(stream=stream, said=said):
            try:
                for _ in stream:
                    pass
                said.append("closed")
            except RunError as error:
                said.append(str(error))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        time.sleep(rng.uniform(0, 0.01))
        within_20_s(stream.close if what == "stream" else session.close)
        reader.join(20)
        assert said and "closed" in said[0]
        session.close()


def test_a_stream_is_read_by_one_thread_at_a_time():
    gate, entered = threading.Event(), threading.Event()

    def feeds():
        entered.set()
        gate.wait(20)
        yield {"x": X}

    with toys() as session:
        stream = session.stream(feeds())
        reader = threading.Thread(target=lambda: next(stream), daemon=True)
        reader.start()
        assert entered.wait(20)
        with pytest.raises(RunError, match="is being read already"):
            next(stream)
        gate.set()
        reader.join(20)
        assert list(stream) == []


def test_feeds_may_close_their_own_stream():
    with toys() as session:

        def feeds():
            for k in range(100):
                if k == 5:
                    stream.close()
                yield {"x": X}

        stream = session.stream(feeds())
        with contextlib.suppress(RunError):
            list(stream)
        assert stream.closed
        assert len(list(session.stream({"x": X} for _ in range(3)))) == 3


def in_child(work):
    """Fork, run a function in the child, and return its exit status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "the child hangs"


@needs_fork
@on_devices
def test_a_forked_child_runs_a_session_whose_parent_is_at_work(names):
    with open_on(names) as session:
        want = session.run({"x": X})["y"]
        stop = threading.Event()

        def run_on():
            while not stop.is_set():
                session.run({"x": X})

        thread = threading.Thread(target=run_on, daemon=True)
        thread.start()

        def child():
            right = all(np.array_equal(session.run({"x": X})["y"], want) for _ in range(3))
            right &= len(list(session.stream([{"x": X}] * 3))) == 3
            session.close()
            return right

        for _ in range(4):
            time.sleep(0.003)
            assert in_child(child) == 0
        stop.set()
        thread.join(20)
        np.testing.assert_array_equal(session.run({"x": X})["y"], want)


@needs_fork
def test_a_stream_is_its_own_process_s():
    def child():
        try:
            next(stream)
        except RunError as error:
            session.close()
            return "another process" in str(error)

    with open_on(["cpu", "npu"]) as session:
        stream = session.stream({"x": X} for _ in range(20))
        next(stream)
        assert in_child(child) == 0
        assert len(list(stream)) == 19


@pytest.mark.parametrize("used", ["run", "stream"])
@on_devices
def test_a_dropped_session_gives_its_threads_back(names, used):
    def threads():
        gc.collect()
        return sum(thread.name.startswith("trireme") for thread in threading.enumerate())

    before = threads()
    for _ in range(3):
        session = open_on(names)
        if used == "run":
            session.run({"x": X})
        else:
            next(session.stream({"x": X} for _ in range(50)))
        del session
    end = time.monotonic() + 20
    while threads() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threads() <= before


def test_a_stream_keeps_its_session():
    want = open_on(["cpu", "npu"]).run({"x": X})["y"]
    stream = open_on(["cpu", "npu"]).stream({"x": X} for _ in range(20))
    gc.collect()
    for outputs in stream:
        np.testing.assert_array_equal(outputs["y"], want)
    dealt = Replicas(
        two_ways(["cpu", "cpu"]), 2, execution_options=AS_GIVEN, calibration=Calibration()
    ).stream({"x": X} for _ in range(20))
    gc.collect()
    assert len(list(dealt)) == 20
