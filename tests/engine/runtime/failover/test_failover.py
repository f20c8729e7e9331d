"""A run that a device fails is repeated without it: the same bits, nothing of the failed run."""

import itertools
import logging
from contextlib import contextmanager

import numpy as np
import pytest
from opencl import need_opencl

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.explain import explain
from trireme.placement.options import PlacementOptions
from trireme.runtime.options import ExecutionOptions
from trireme.runtime.session import Session
from trireme.runtime.streams.replicas import Replicas
from trireme.support.errors import DeviceError, FaultKind, RunError
from trireme.support.fault_events import FaultEvent, event_lines
from trireme.testing.faults import Fault, inject

SEED = 15
SHAPE = (64, 256)
ALL = ["npu", "opencl", "cpu"]
X = np.random.default_rng(SEED).standard_normal(SHAPE).astype(np.float32)


def chain(names=("a", "b", "c", "d"), shape=SHAPE):
    """Four nodes, of which a placement with pins makes four tasks."""
    b = GraphBuilder("chain")
    value = b.input("x", TensorType(shape, "float32"))
    ops = itertools.cycle(["sigmoid", "tanh", "exp", "softmax"])
    for name in names:
        value = b.add(next(ops), value, names=[name])
    return b.finish(value)


HALF = ExecutionOptions(device_options={"npu": {"float32": "float16"}})
PINS = PlacementOptions(pins={"a": "cpu", "b": "opencl", "c": "npu", "d": "cpu"})


def open_mixed(graph, **more):
    more.setdefault("execution_options", HALF)
    return Session(graph, devices=ALL, placement_options=PINS, fallback=True, **more)


@contextmanager
def failing(*faults, graph=None, devices=("cpu", "opencl"), **more):
    """A session that may fail over, and the points of its devices."""
    graph = chain() if graph is None else graph
    with (
        inject(*faults) as points,
        Session(graph, devices=list(devices), fallback=True, **more) as session,
    ):
        yield session, points


def without(graph, device, **more):
    """The outputs of a session that never had the device: pins to it are gone."""
    pins = {name: where for name, where in PINS.pins.items() if where != device}
    left = [name for name in ALL if name != device]
    options = PlacementOptions(pins=pins)
    more.setdefault("execution_options", HALF)
    with Session(graph, devices=left, placement_options=options, **more) as session:
        return session.run({"x": X})


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
        is_fallback = [np.array_equal(one, want) for one in found]
        is_whole = [np.array_equal(one, good) for one in found]
        assert all(a or b for a, b in zip(is_fallback, is_whole, strict=True))
        assert any(is_fallback) and sum(is_whole) >= 3


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
    out = {"d": np.full(SHAPE, 7, np.float32)}
    with failing(*faults) as (session, _), pytest.raises(DeviceError, match="no other") as caught:
        session.run({"x": X}, out)
    causes = caught.value.causes
    assert sorted(one.device for one in causes) == ["cpu", "opencl"]
    assert caught.value.kind is FaultKind.LAUNCH_FAILED and caught.value.node
    assert {event.action for event in session.events} == {"failed"}
    assert (out["d"] == 7).all()


@pytest.mark.parametrize("device", ALL)
def test_a_bound_buffer_is_whole_or_untouched(device):
    """Outputs of 64 KiB are written in place where nothing can fail; here a task may."""
    need_opencl()
    b = GraphBuilder("two")
    x = b.input("x", TensorType(SHAPE, "float32"))
    y = b.add("tanh", x, names=["a"])
    graph = b.finish(y, b.add("exp", b.add("sigmoid", y, names=["b"]), names=["c"]))
    pins = PlacementOptions(pins={"a": "cpu", "b": device, "c": "cpu"})
    how = dict(devices=ALL, placement_options=pins, execution_options=HALF)
    never = [Fault(one, "wait", 10**9) for one in ALL]
    with failing(*never, graph=graph, **how) as (session, points):
        session.run({"x": X})
        counts = {one: points.calls[one, "wait"] for one in ALL}
    faults = [Fault(one, "wait", counts[one] + nth) for one in ALL for nth in range(1, 40)]
    with failing(*faults, graph=graph, **how) as (session, _):
        bound = session.bind({"x": X.copy()}, {"a": np.zeros(SHAPE, np.float32)})
        before = {name: array.copy() for name, array in bound.run().items()}
        bound.inputs["x"][...] = -X
        for _ in range(3):
            with pytest.raises(DeviceError):
                bound.run()
            for name, array in bound.outputs.items():
                np.testing.assert_array_equal(array, before[name])


def sums():
    """A running sum; the state is written before a later task of another device."""
    b = GraphBuilder("sums")
    x = b.input("x", TensorType(SHAPE, "float32"))
    zero = b.constant("zero", np.zeros(SHAPE, np.float32))
    y = b.add("add", b.add("variable", zero, state="sum"), x, names=["y"])
    b.add("assign", y, state="sum")
    return b.finish(b.add("tanh", y, names=["z"]))


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


ITEMS = [{"x": X + k} for k in range(8)]


def on_opencl(*faults, **more):
    """A session of two tasks, the second of which the faults' device runs."""
    pins = PlacementOptions(pins={"a": "cpu", "d": "opencl"})
    graph = chain(("a", "d"))
    return failing(*faults, graph=graph, placement_options=pins, **more)


@pytest.mark.parametrize("depth", [1, None])
@pytest.mark.parametrize(
    "point, kind", [("launch", None), ("wait", None), ("wait", FaultKind.HANG)]
)
def test_items_of_a_stream_go_to_other_devices(point, kind, depth):
    """An array that the caller fills again meanwhile does not change what an item is."""
    need_opencl()
    with Session(chain(("a", "d")), devices=["cpu"]) as session:
        left = [session.run(one)["d"] for one in ITEMS]
    with on_opencl() as (session, _):
        whole = [session.run(one)["d"] for one in ITEMS]
    buffer = {"x": np.empty_like(X)}

    def fed():
        for one in ITEMS:
            buffer["x"][...] = one["x"]
            yield buffer

    with on_opencl(Fault("opencl", point, 4, kind)) as (session, points):
        session.run(ITEMS[0])
        with session.stream(fed(), depth) as stream:
            found = [one["d"] for one in stream]
        assert points.raised and session.events[0].action == "ran again"
        moved = [np.array_equal(one, want) for one, want in zip(found, left, strict=True)]
        kept = [np.array_equal(one, want) for one, want in zip(found, whole, strict=True)]
        assert all(a or b for a, b in zip(moved, kept, strict=True)) and any(moved)
        assert session.devices_out == ({"opencl"} if kind else frozenset())
        assert session.devices["opencl"].is_lost is bool(kind)


def test_items_of_replicas_go_to_other_devices():
    need_opencl()
    pins = PlacementOptions(pins={"a": "cpu", "d": "opencl"})
    with inject(Fault("opencl", "launch", 3)) as points:
        replicas = Replicas(
            chain(("a", "d")),
            2,
            devices=["cpu", "opencl"],
            fallback=True,
            placement_options=pins,
        )
        with replicas:
            found = [one["d"] for one in replicas.stream(ITEMS)]
        assert points.raised
    with Session(chain(("a", "d"))) as session:
        for one, feeds in zip(found, ITEMS, strict=True):
            np.testing.assert_allclose(one, session.run(feeds)["d"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("point", ["launch", "wait"])
@pytest.mark.parametrize("device", ["cpu", "opencl"])
@pytest.mark.parametrize("depth", [None, 3])
def test_items_of_a_stream_with_states_begin_with_whole_states(device, point, depth):
    """Items of such a stream read what those before them wrote: the item that fails, too."""
    need_opencl()
    pins = PlacementOptions(pins={"z": "opencl", "y": "cpu"})
    left = {"cpu": "opencl", "opencl": "cpu"}[device]
    with Session(sums(), devices=[left]) as session:
        want = [one["z"] for one in session.stream(ITEMS)]
        state = session.get_state()["sum"]
    for nth in range(1, 7):
        with failing(Fault(device, point, nth), graph=sums(), placement_options=pins) as found:
            session, points = found
            made = [one["z"] for one in session.stream(ITEMS, depth)]
            np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(session.get_state()["sum"], state)
            if points.raised:
                assert session.events[-1].action == "ran again"


@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize("point", ["launch", "wait"])
@pytest.mark.parametrize("device", ALL)
def test_a_profile_is_that_of_the_devices_that_are_left(device, point, nth):
    need_opencl()
    with inject(Fault(device, point, nth)) as points, open_mixed(chain()) as session:
        made = session.profile({"x": X}, runs=2, warmup=1)
        assert made.runs == 2
        if points.raised:
            assert device not in {row.device for row in made.tasks}
            assert (made.events[-1].action, made.events[-1].device) == ("ran again", device)
        session.run({"x": X})


def test_a_profile_leaves_the_states_of_its_runs():
    need_opencl()
    pins = PlacementOptions(pins={"z": "opencl", "y": "cpu"})
    faults = [Fault("opencl", "launch", 3)]
    with failing(*faults, graph=sums(), placement_options=pins) as (session, points):
        made = session.profile({"x": X}, runs=2, warmup=1)
        assert points.raised and made.runs == 2
        state = session.get_state()["sum"]
        whole = round(float(state.sum() / X.sum()))
        np.testing.assert_allclose(state, whole * X, rtol=1e-4, atol=1e-5)
