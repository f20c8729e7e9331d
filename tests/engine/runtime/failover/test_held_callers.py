"""A launch that never returns holds its caller; all others go on, and the caller may come back."""

import gc
import logging
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from faults import Fault, inject
from opencl import need_opencl

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.loop import watchdog
from trireme.runtime.loop.task_watch import LEAST_S
from trireme.runtime.loop.watchdog import WATCHER, Watcher
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import DeviceError, FaultKind

X = np.random.default_rng(4).standard_normal((8, 64)).astype(np.float32)
HALF = ExecutionOptions(device_options={"npu": {"float32": "float16"}})
WITHIN_S, TASKS = 60, (0,)


def graph(rows=X.shape[0]):
    b = GraphBuilder("two")
    x = b.input("x", TensorType((rows, X.shape[1]), "float32"))
    return b.finish(b.add("tanh", b.add("sigmoid", x, names=["a"]), names=["b"]))


def sums():
    b = GraphBuilder("sums")
    x = b.input("x", TensorType(X.shape, "float32"))
    zero = b.constant("zero", np.zeros(X.shape, np.float32))
    y = b.add("add", b.add("variable", zero, state="sum"), x, names=["y"])
    b.add("assign", y, state="sum")
    return b.finish(b.add("tanh", y, names=["a"]))


@pytest.fixture
def _short(monkeypatch):
    """All plain runs stay on their callers' threads, however busy the machine is."""
    monkeypatch.setattr(watchdog, "_LONG_S", 1e6)


def opened(graph, device, mode="serial", others=("cpu",), **more):
    return Session(
        graph,
        devices=[device, *others],
        placement_options=PlacementOptions(pins={"a": device}),
        execution_options=HALF,
        fallback=True,
        mode=mode,
        **more,
    )


def until(is_so):
    end_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize("device", ["opencl", "npu"])
def test_other_callers_run_and_the_first_comes_back(device, mode):
    need_opencl()
    with Session(graph(), devices=["cpu"]) as session:
        want = session.run({"x": X})["b"]
    with ThreadPoolExecutor(3) as pool:
        with inject(Fault(device, "launch", 2, FaultKind.HANG)) as points:
            session = opened(graph(), device, mode)
            session.run({"x": X})
            held = pool.submit(session.run, {"x": X})
            until(lambda: points.raised)
            others = [pool.submit(session.run, {"x": X}) for _ in range(2)]
            for one in others:
                np.testing.assert_array_equal(one.result(WITHIN_S)["b"], want)
            hangs = session.events[0]
            assert (hangs.device, hangs.kind, hangs.action) == (device, FaultKind.HANG, "hangs")
            assert hangs.node and session.devices[device].is_lost
            assert session.devices_out == {device}
            begun_s = time.monotonic()
            session.run({"x": X})
            assert time.monotonic() - begun_s < 20
        np.testing.assert_array_equal(held.result(WITHIN_S)["b"], want)
        np.testing.assert_array_equal(session.run({"x": X})["b"], want)
        session.close()


def run_beside_a_held_caller(session, points, want):
    """A caller hangs, others run meanwhile; then the first comes back. Outputs are `want`."""
    with ThreadPoolExecutor(3) as pool:
        held = pool.submit(session.run, {"x": X})
        try:
            until(lambda: any(one.kind is FaultKind.HANG for one in points.raised))
            others = [pool.submit(session.run, {"x": X}) for _ in range(2)]
            for one in others:
                np.testing.assert_array_equal(one.result(WITHIN_S)["b"], want)
            assert not held.done()
        finally:
            points.over.set()
        np.testing.assert_array_equal(held.result(WITHIN_S)["b"], want)
    np.testing.assert_array_equal(session.run({"x": X})["b"], want)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("device, buckets", [("opencl", None), ("npu", {"n": [8]})])
def test_other_callers_of_open_shapes_run(device, buckets):
    need_opencl()
    with Session(graph("n"), devices=["cpu"], buckets=buckets) as session:
        want = session.run({"x": X})["b"]
    with inject(Fault(device, "launch", 2, FaultKind.HANG)) as points:
        session = opened(graph("n"), device, buckets=buckets)
        session.run({"x": X})
        run_beside_a_held_caller(session, points, want)
        assert session.events[0].action == "hangs" and session.devices[device].is_lost
        session.close()


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("rows", [8, "n"])
def test_other_callers_run_while_the_plan_without_a_device_hangs(rows):
    """The caller that hangs has the turns of the session and of that plan."""
    need_opencl()
    buckets = None if rows == 8 else {"n": [8]}
    with Session(graph(rows), devices=["cpu"], buckets=buckets) as session:
        want = session.run({"x": X})["b"]
    faults = [
        Fault("npu", "launch", 2, FaultKind.LOST),
        Fault("opencl", "launch", 3, FaultKind.HANG),
    ]
    with inject(*faults) as points:
        session = Session(
            graph(rows),
            devices=["npu", "opencl", "cpu"],
            placement_options=PlacementOptions(pins={"a": "npu", "b": "opencl"}),
            execution_options=HALF,
            fallback=True,
            buckets=buckets,
        )
        for _ in range(2):
            session.run({"x": X})
        run_beside_a_held_caller(session, points, want)
        assert session.devices_out == {"npu", "opencl"} and session.devices["opencl"].is_lost
        session.close()


@pytest.mark.usefixtures("_short")
def test_a_session_closes_while_a_caller_is_held():
    need_opencl()
    with ThreadPoolExecutor(1) as pool:
        with inject(Fault("opencl", "launch", 2, FaultKind.HANG)) as points:
            session = opened(graph(), "opencl")
            session.run({"x": X})
            held = pool.submit(session.run, {"x": X})
            until(lambda: points.raised)
            begun_s = time.monotonic()
            session.close()
            assert time.monotonic() - begun_s < 20
        with pytest.raises(DeviceError):
            held.result(WITHIN_S)


@pytest.mark.usefixtures("_short")
def test_states_are_those_of_the_runs_that_ended():
    """The run that is held writes nothing until it comes back, and then it writes once."""
    need_opencl()
    with ThreadPoolExecutor(1) as pool:
        with inject(Fault("opencl", "launch", 2, FaultKind.HANG)) as points:
            session = opened(sums(), "opencl")
            session.run({"x": X})
            held = pool.submit(session.run, {"x": 2 * X})
            until(lambda: points.raised)
            session.run({"x": 4 * X})
            np.testing.assert_allclose(session.get_state()["sum"], 5 * X, rtol=1e-6)
        held.result(WITHIN_S)
        np.testing.assert_allclose(session.get_state()["sum"], 7 * X, rtol=1e-6)
        session.close()


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("timeout_s", [None, 60])
def test_a_run_that_failed_is_no_hang(timeout_s):
    """Its last task began and did not end; the plan without the device takes seconds to make."""
    need_opencl()
    with inject(Fault("opencl", "launch", 2)), opened(graph(), "opencl") as session:
        failover = session.faults.failover
        open_on = failover._open_on

        def open_slowly(left):
            time.sleep(4 * LEAST_S)
            return open_on(left)

        failover._open_on = open_slowly
        session.run({"x": X})
        for _ in range(2):
            session.run({"x": X}, timeout_s=timeout_s)
        assert [one.action for one in session.events] == ["ran again"]
        assert not session.devices["opencl"].is_lost


class _Looked:
    def __init__(self, fails=False):
        self.count, self._fails = 0, fails

    def look(self):
        self.count += 1
        if self._fails:
            raise ValueError("broken")


def test_the_watcher_outlives_errors_and_ends_with_what_it_looks_at(caplog):
    watcher, bad, good = Watcher(), _Looked(fails=True), _Looked()
    with caplog.at_level(logging.CRITICAL, logger="trireme"):
        assert watcher.add(bad) and watcher.add(good)
        until(lambda: good.count > 1 and bad.count > 1)
    thread = watcher._thread
    watcher.drop(bad)
    watcher.drop(good)
    thread.join(WITHIN_S)
    assert not thread.is_alive() and watcher._thread is None
    assert watcher.add(good) and watcher._thread is not thread
    watcher.drop(good)


def test_a_session_is_looked_at_from_its_first_short_run_until_it_closes(_short):
    need_opencl()
    session = opened(graph(), "opencl")
    assert session.ready.latest().watched not in WATCHER._watched
    session.run({"x": X})
    assert session.ready.latest().watched in WATCHER._watched
    session.close()
    assert session.ready.latest().watched not in WATCHER._watched
    until(lambda: WATCHER._thread is None or WATCHER._watched)


def test_runs_go_to_another_thread_where_no_watcher_starts(_short, monkeypatch):
    need_opencl()
    with opened(graph(), "opencl") as session:
        monkeypatch.setattr(WATCHER, "add", lambda one: False)
        for _ in range(2):
            session.run({"x": X})
        assert session.ready.latest().watched._least_s == float("inf")


def test_a_pause_of_the_process_is_no_hang(_short):
    """After it the first look may find any task overdue; that run ends before the second."""
    need_opencl()
    with opened(graph(), "opencl") as session:
        session.run({"x": X})
        watched = session.ready.latest().watched
        WATCHER.drop(watched)
        with session._contexts.alone():
            watched._is_here = True
            watched.watch.begin((0,))
            watched.watch._begun[0] = TASKS, time.monotonic() - 100
            watched.look()
            assert watched.lost is None
            watched.watch.end((0,))
            watched.look()
        watched._is_here = False
        watched.watch._begun[0] = TASKS, time.monotonic() - 100
        for _ in range(3):  # an interrupt may leave tasks of a run that is over
            watched.look()
        assert watched.lost is None
        watched.watch.reset()


def test_a_session_that_nobody_holds_is_collected(_short):
    need_opencl()
    session = opened(graph(), "opencl")
    session.run({"x": X})
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
