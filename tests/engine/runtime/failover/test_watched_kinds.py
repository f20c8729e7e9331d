"""Every kind of run is given up when a device hangs: profiles, open shapes, dynamic schedules."""

import math
import time

import numpy as np
import pytest
from faults import Fault, inject
from onnx import parser
from opencl import need_opencl
from programs import HEAD

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.loop import watchdog
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import FaultKind

X = np.random.default_rng(4).standard_normal((8, 64)).astype(np.float32)
TEXTS = [np.random.default_rng(n).standard_normal((n, 64)).astype(np.float32) for n in (3, 7, 5, 3)]
HALF = {"npu": {"float32": "float16"}}


def two(rows=8):
    b = GraphBuilder("two")
    x = b.input("x", TensorType((rows, 64), "float32"))
    return b.finish(b.add("tanh", b.add("sigmoid", x, names=["a"]), names=["b"]))


def sums():
    b = GraphBuilder("sums")
    x = b.input("x", TensorType(X.shape, "float32"))
    zero = b.constant("zero", np.zeros(X.shape, np.float32))
    y = b.add("add", b.add("variable", zero, state="sum"), x, names=["y"])
    b.add("assign", y, state="sum")
    return b.finish(b.add("tanh", y, names=["z"]))


def opened(graph, device, pinned="a", schedule="static", **more):
    return Session(
        graph,
        devices=[device, "cpu"],
        fallback=True,
        placement_options=PlacementOptions(pins={pinned: device}),
        execution_options=ExecutionOptions(device_options=HALF, schedule=schedule),
        **more,
    )


def is_lost(session, device):
    (ran,) = session.events
    assert (ran.device, ran.kind, ran.action) == (device, FaultKind.HANG, "ran again")
    return session.devices[device].is_lost


def closes_at_once(session):
    begun = time.monotonic()
    session.close()
    return time.monotonic() - begun < 2


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize("point", ["launch", "wait"])
@pytest.mark.parametrize("device", ["opencl", "npu"])
@pytest.mark.parametrize("nth", [2, 6])
def test_a_profile(device, point, mode, nth, monkeypatch):
    """The launch may be of a watched run or of a plain one, which is handed over here."""
    need_opencl()
    with Session(two()) as session:
        want = session.run({"x": X})["b"]
    with inject(Fault(device, point, nth, FaultKind.HANG)) as points:
        session = opened(two(), device, mode=mode)
        monkeypatch.setattr(watchdog, "_LONG_S", 0.0)  # short plain runs stay on their thread
        made = session.profile({"x": X}, runs=3, warmup=1)
        assert points.raised or points.calls[device, point] < nth
        if points.raised:
            assert is_lost(session, device)
            assert device not in {row.device for row in made.tasks}
            np.testing.assert_array_equal(session.run({"x": X})["b"], want)
        assert closes_at_once(session)


@pytest.mark.parametrize("buckets", [None, {"n": [4, 8]}])
@pytest.mark.parametrize("point", ["launch", "wait"])
@pytest.mark.parametrize("device", ["opencl", "npu"])
def test_open_shapes(device, point, buckets):
    need_opencl()
    if device == "npu" and buckets is None:
        pytest.skip("the npu takes static shapes alone")
    with Session(two("n"), devices=["cpu"], buckets=buckets) as session:
        want = [session.run({"x": text})["b"] for text in TEXTS]
    within_s = 60 if point == "launch" else None
    with inject(Fault(device, point, 3, FaultKind.HANG)) as points:  # a plan's second run
        session = opened(two("n"), device, buckets=buckets)
        for text, expected in zip(TEXTS, want, strict=True):
            found = session.run({"x": text}, timeout_s=within_s)["b"]
            np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
            if points.raised:
                np.testing.assert_array_equal(found, expected)
        assert points.raised and is_lost(session, device)
        assert closes_at_once(session)


@pytest.mark.parametrize("mode", ["auto", "serial"])
@pytest.mark.parametrize("point", ["launch", "wait"])
@pytest.mark.parametrize("device", ["opencl", "npu"])
def test_a_dynamic_schedule(device, point, mode):
    """Threads run its ops, so that a launch that hangs is left behind; serially, with a token."""
    need_opencl()
    graph = two()
    with Session(graph, devices=["cpu"]) as session:
        want = session.run({"x": X})["b"]
    within_s = 60 if mode == "serial" else None
    with inject(Fault(device, point, 2, FaultKind.HANG)) as points:
        session = opened(graph, device, schedule="dynamic", mode=mode)
        for _ in range(3):
            found = session.run({"x": X}, timeout_s=within_s)["b"]
            np.testing.assert_allclose(found, want, rtol=2e-3, atol=2e-3)
            if points.raised:
                np.testing.assert_array_equal(found, want)
        if not points.raised:
            pytest.skip(f"no op is placed on {device}")
        assert is_lost(session, device)
        assert closes_at_once(session)


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_a_stream_with_states(schedule):
    need_opencl()
    with Session(sums(), devices=["cpu"]) as session:
        want = [one["z"] for one in session.stream([{"x": X}] * 4)]
    with inject(Fault("opencl", "wait", 2, FaultKind.HANG)) as points:
        session = opened(sums(), "opencl", "z", schedule)
        found = [one["z"] for one in session.stream([{"x": X}] * 4)]
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
        if points.raised:
            assert is_lost(session, "opencl")
            np.testing.assert_array_equal(found[-1], want[-1])
        np.testing.assert_array_equal(session.get_state()["sum"], sum([X] * 4, np.zeros_like(X)))
        assert closes_at_once(session)


LONG = """
long (int64 n, float[8,64] x) => (float[8,64] y)
{
    s = Sigmoid(x)
    y = Loop (n, , s) <body = turn
        (int64 i, bool going, float[8,64] a) => (bool more, float[8,64] b)
        { more = Identity(going)  c = Sin(a)  d = Cos(c)  b = Tanh(d) }
    >
}
"""


def long_loop(turns):
    """Feeds of a loop of so many turns."""
    return {"n": np.array(turns, np.int64), "x": X}


WATCHED = {
    "fallback": True,
    "mode": "serial",
    "placement_options": PlacementOptions(single_device="opencl"),
}
"""A GPU is predicted to be slower than numpy for bodies as small as these."""


def test_a_loop_may_take_any_time():
    """Its turns decide how long it takes: it was called a hang of the host after 20 x predicted."""
    need_opencl()
    model = parser.parse_model(HEAD + LONG).SerializeToString()
    devices, pins = ["opencl", "cpu"], PlacementOptions(pins={"s": "opencl"})
    with Session(model, devices=devices, fallback=True, placement_options=pins) as session:
        session.run(long_loop(1))
        watch = session.ready.latest().watched.watch
        for task in session.plan.tasks:
            is_loop = task.nodes[0].op == "loop"
            assert (watch.limit_s((task.index,)) == math.inf) is is_loop


@pytest.mark.parametrize("way", ["run", "profile"])
@pytest.mark.parametrize("point", ["launch", "wait"])
def test_a_body_of_control_flow(point, way):
    """The host drives the loop, and opencl runs a node of its body."""
    need_opencl()
    model = parser.parse_model(HEAD + LONG).SerializeToString()
    feeds = long_loop(3)
    with Session(model, devices=["host"]) as session:
        want = session.run(feeds)["y"]
    with inject(Fault("opencl", point, 6, FaultKind.HANG)) as points:
        session = Session(model, devices=["opencl", "host"], **WATCHED)
        tasks = [task for body in session.plan.bodies.values() for task in body.tasks]
        assert "opencl" in {task.device for task in tasks}
        for _ in range(3):
            if way == "run":
                found = session.run(feeds, timeout_s=60)["y"]
                np.testing.assert_allclose(found, want, rtol=1e-5)
            else:
                session.profile(feeds, runs=1, warmup=0)
        assert points.raised and is_lost(session, "opencl")
        np.testing.assert_array_equal(session.run(feeds)["y"], want)
        assert closes_at_once(session)


@pytest.mark.parametrize("then", [True, False])
def test_a_branch(then):
    need_opencl()
    text = """
    branch (bool c, float[8,64] x) => (float[8,64] y)
    {
        y = If (c) <then_branch = one () => (float[8,64] a) { p = Sin(x) a = Tanh(p) },
                    else_branch = two () => (float[8,64] b) { q = Cos(x) b = Sigmoid(q) }>
    }
    """
    model = parser.parse_model(HEAD + text).SerializeToString()
    feeds = {"c": np.array(then), "x": X}
    with Session(model, devices=["host"]) as session:
        want = session.run(feeds)["y"]
    with inject(Fault("opencl", "launch", 2, FaultKind.HANG)) as points:
        session = Session(model, devices=["opencl", "host"], **WATCHED)
        for _ in range(3):
            found = session.run(feeds, timeout_s=60)["y"]
            np.testing.assert_allclose(found, want, rtol=1e-5)
        assert points.raised and is_lost(session, "opencl")
        assert closes_at_once(session)
