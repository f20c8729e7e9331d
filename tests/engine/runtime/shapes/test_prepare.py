"""Programs for expected shapes are made in the background, and give the bits they always give."""

import threading
import time

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

SEED = 20261124


def net(dtype="float16"):
    """A convolution that no polymorphic kernel has: each height is compiled for itself."""
    b = GraphBuilder("net")
    x = b.input("x", TensorType((1, "h", 8, 4), dtype))
    w = b.constant("w", np.random.default_rng(SEED).standard_normal((4, 3, 3, 4)).astype(dtype))
    kind = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    return b.finish(b.add("relu", b.add("conv", x, w, **kind), names=["y"]))


def feeds(rows, dtype="float16"):
    return {"x": np.random.default_rng(rows).standard_normal((1, rows, 8, 4)).astype(dtype)}


def test_prepared_shapes_are_found_and_have_the_same_bits():
    with Session(net()) as session, Session(net()) as plain:
        ready = session.prepare([{"x": (1, n, 8, 4)} for n in (5, 9, 5)], wait=True)
        assert [one.state for one in ready] == ["ready", "ready"]
        assert all(one.seconds > 0 for one in ready)
        assert "x [1, 5, 8, 4]: ready in" in str(ready[0])
        before = session.ready.runner.program.kept
        for n in (5, 9):
            assert np.array_equal(session.run(feeds(n))["y"], plain.run(feeds(n))["y"])
        assert session.ready.runner.program.kept == before == 2


def test_runs_go_on_while_shapes_are_prepared(monkeypatch):
    with Session(net()) as session:
        wanted = session.run(feeds(4))["y"]
        begun, may_go_on = threading.Event(), threading.Event()
        instances = session.ready.runner.program._open
        make = instances._make

        def make_when_told(shapes):
            begun.set()
            assert may_go_on.wait(60)
            return make(shapes)

        monkeypatch.setattr(instances, "_make", make_when_told)
        session.prepare([{"x": (1, n, 8, 4)} for n in range(10, 20)])
        assert begun.wait(60)
        for _ in range(20):
            assert np.array_equal(session.run(feeds(4))["y"], wanted)
        assert {one.state for one in session.prepared} == {"waiting"}
        may_go_on.set()
        assert {one.state for one in session.prepare([], wait=True)} == {"ready"}
        assert np.array_equal(session.run(feeds(19))["y"], session.run(feeds(19))["y"])
        assert session.ready.runner.program.kept == 11


def test_a_run_waits_for_the_program_under_way():
    with Session(net()) as session:
        session.prepare([{"x": (1, 7, 8, 4)}])
        session.run(feeds(7))
        session.prepare([], wait=True)
        assert session.ready.runner.program.kept == 1


def test_more_shapes_than_are_kept_are_refused():
    with Session(net(), execution_options=ExecutionOptions(most_shapes=2)) as session:
        with pytest.raises(RunError, match="3 shapes are to be prepared, and 2 are kept"):
            session.prepare([{"x": (1, n, 8, 4)} for n in (1, 2, 3)])
        for n in (1, 2, 3):
            session.prepare([{"x": (1, n, 8, 4)}], wait=True)
            session.run(feeds(4))
        assert session.ready.runner.program.kept == 2


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ({"y": (1, 2, 8, 4)}, "not an input: y"),
        ({"x": (1, 2, 8)}, "expected 4 dimensions"),
        ({"x": (1, 2, 9, 4)}, "only dimensions that are not numbers"),
    ],
)
def test_shapes_that_do_not_fit(shapes, sentence):
    with Session(net()) as session, pytest.raises(RunError) as caught:
        session.prepare([shapes])
    assert sentence in str(caught.value)


def test_errors_in_the_background_are_seen():
    b = GraphBuilder("net")
    x = b.input("x", TensorType(("n",), "float16"))
    w = b.constant("w", np.ones(6, np.float16))
    y = b.add("reshape", x, b.constant("to", np.array([2, 3], np.int64)))
    z = b.add("add", y, b.add("reshape", w, b.constant("to", np.array([2, 3], np.int64))))
    with Session(b.finish(z)) as session:
        (one,) = session.prepare([{"x": (5,)}], wait=True)
        assert one.state == "failed"
        assert "reshape" in one.error
        with pytest.raises(RunError, match="reshape"):
            session.run({"x": np.zeros(5, np.float16)})


def test_closing_ends_the_thread():
    session = Session(net())
    session.prepare([{"x": (1, n, 8, 4)} for n in range(1, 30)])
    session.close()
    assert {one.state for one in session.prepared} <= {"ready", "not made"}
    deadline = time.monotonic() + 5
    while any(t.name == "trireme-prepare" for t in threading.enumerate()):
        assert time.monotonic() < deadline


def test_buckets_are_prepared():
    with Session(net(), devices=["npu", "cpu"], buckets={"h": [8, 16]}) as session:
        session.prepare([{"x": (1, n, 8, 4)} for n in (3, 8, 11)], wait=True)
        assert len(session.prepared) == 2
        session.run(feeds(3))
        assert session.ready.runner.program.kept == 2


def test_a_session_of_fixed_shapes_has_nothing_to_prepare():
    with Session(net(), shapes={"x": (1, 4, 8, 4)}) as session:
        with pytest.raises(RunError, match="one program serves the session"):
            session.prepare([{"x": (1, 4, 8, 4)}])
        assert session.prepared == ()
