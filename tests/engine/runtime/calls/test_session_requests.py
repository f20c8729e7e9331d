"""Requests of a session: what stops them, warming up, threads that end, children of a fork."""

import asyncio
import concurrent.futures
import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest
from programs import NESTED, UNTIL, f32

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.cancel import CancelToken
from trireme.support.errors import CancelledError, DeadlineError, QueueFullError, RunError

WAIT_S = 20
FLOAT = TensorType((4,), "float32")
NEVER = {"limit": np.array(np.inf, np.float32), "start": np.array(True), "x": f32(0, 0, 0)}
X = {"x": np.arange(4, dtype=np.float32)}


def chain(*functions):
    """A graph of Python operators, one after another: each is a task."""
    b = GraphBuilder("chain")
    value = b.input("x", FLOAT)
    for function in functions:
        value = b.add("python", value, **trireme.python_op(function).attrs())
    return b.finish(b.add("neg", value, names=["y"]))


def test_a_session_runs_requests_and_awaits():
    with Session(chain()) as session:
        expected = session.run(X)["y"]
        out = {"y": np.empty(4, np.float32)}
        assert session.run_async(X, out).result(WAIT_S)["y"] is out["y"]
        np.testing.assert_array_equal(out["y"], expected)

        async def main():
            many = await asyncio.gather(*(session.arun(X) for _ in range(20)))
            with pytest.raises(DeadlineError):
                await session.arun(X, timeout_s=0)
            with pytest.raises(RunError, match="missing: x"):
                await session.arun({})
            return many

        for outputs in asyncio.run(main()):
            np.testing.assert_array_equal(outputs["y"], expected)
    with pytest.raises(RunError, match="closed"):
        session.run_async(X)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_a_cancelled_run_stops_before_the_next_task(mode):
    entered, on, ran = threading.Event(), threading.Event(), []

    def first(x):
        entered.set()
        assert on.wait(WAIT_S)
        return x + 1

    def second(x):
        ran.append(1)
        return x * 2

    with Session(chain(first, second), mode=mode) as session:
        request = session.run_async(X)
        assert entered.wait(WAIT_S)
        assert request.cancel()
        on.set()
        with pytest.raises(CancelledError):
            request.result(WAIT_S)
        assert not ran
        np.testing.assert_array_equal(session.run(X)["y"], -(X["x"] + 1) * 2)
        assert ran == [1]


def test_a_cancelled_task_of_asyncio_cancels_its_request():
    entered, on, ran = threading.Event(), threading.Event(), []

    def first(x):
        entered.set()
        assert on.wait(WAIT_S)
        return x + 1

    def second(x):
        ran.append(1)
        return x * 2

    async def main(session):
        task = asyncio.create_task(session.arun(X))
        queued = asyncio.create_task(session.arun(X))
        await asyncio.to_thread(entered.wait, WAIT_S)
        task.cancel()
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.CancelledError):
            await queued
        on.set()

    with Session(chain(first, second)) as session:
        asyncio.run(main(session))
        session.run_async({"x": X["x"] + 1}).result(WAIT_S)
        assert ran == [1]  # of the last request alone


@pytest.mark.parametrize(
    "model, feeds, schedule",
    [
        (UNTIL, NEVER, "static"),
        (UNTIL, NEVER, "dynamic"),
        (NESTED, {"n": np.array(1 << 40), "m": np.array(3), "x": f32(1, 2, 3)}, "static"),
    ],
    ids=["native", "dataflow", "driven"],
)
def test_loops_look_at_the_deadline_and_at_cancel(model, feeds, schedule):
    how = ExecutionOptions(schedule=schedule)
    with Session(model.model(), execution_options=how) as session:
        with pytest.raises(DeadlineError, match="within 0.1 s"):
            session.run_async(feeds, timeout_s=0.1).result(WAIT_S)
        request = session.run_async(feeds)
        while not request.running():
            time.sleep(0.01)
        time.sleep(0.05)
        assert request.cancel()
        with pytest.raises(CancelledError):
            request.result(WAIT_S)


def test_a_run_has_a_deadline_too():
    with Session(NESTED.model()) as session:
        feeds = {"n": np.array(1 << 40), "m": np.array(3), "x": f32(1, 2, 3)}
        with pytest.raises(DeadlineError, match="within 0.05 s"):
            session.run(feeds, timeout_s=0.05)
        small = feeds | {"n": np.array(2)}
        expected = session.run(small)
        for name, array in session.run(small, timeout_s=30).items():
            np.testing.assert_array_equal(array, expected[name])
        with pytest.raises(RunError, match="timeout_s is -1"):
            session.run(small, timeout_s=-1)


def test_a_run_that_waits_for_another_is_refused_at_its_deadline():
    entered, on = threading.Event(), threading.Event()

    def first(x):
        entered.set()
        assert on.wait(WAIT_S)
        return x

    with Session(chain(first), contexts=1) as session:
        running = session.run_async(X)
        assert entered.wait(WAIT_S)
        begun = time.monotonic()
        with pytest.raises(DeadlineError):
            session.run(X, timeout_s=0.05)
        assert 0.05 <= time.monotonic() - begun < 5
        on.set()
        running.result(WAIT_S)


def test_a_token_stops_the_tokens_within_it():
    outer = CancelToken()
    inner = CancelToken(5, around=outer)
    inner.check()
    outer.cancel()
    with pytest.raises(CancelledError):
        inner.check()


def long_matmuls():
    """Native code without a task boundary that takes seconds."""
    b = GraphBuilder("long")
    x = b.input("x", TensorType((800, 800), "float32"))
    w = b.constant("w", np.full((800, 800), 2 / 800, np.float32))
    for _ in range(60):
        x = b.add("matmul", x, w)
    return b.finish(b.add("neg", x, names=["y"])), {"x": np.ones((800, 800), np.float32)}


def test_native_code_looks_at_the_deadline():
    graph, feeds = long_matmuls()
    with Session(graph, threads=1) as session:
        begun = time.monotonic()
        with pytest.raises(DeadlineError, match="it was running"):
            session.run_async(feeds, timeout_s=0.05).result(60)
        stopped_s = time.monotonic() - begun
        begun = time.monotonic()
        whole = session.run(feeds)["y"]
        assert stopped_s < max(time.monotonic() - begun, 0.4)
        np.testing.assert_allclose(whole[0, 0], -(2.0**60), rtol=1e-3)


def test_states_are_put_back_by_a_warm_up():
    b = GraphBuilder("counts")
    x, past = b.input("x", FLOAT), b.input("past", FLOAT)
    graph = b.finish(b.add("neg", x, names=["y"]), b.add("add", past, x, names=["present"]))
    with Session(graph, states={"past": "present"}) as session:
        session.run(X)
        before = session.get_state()["past"].copy()
        assert session.warm_up(X) > 1
        np.testing.assert_array_equal(session.get_state()["past"], before)


def test_a_warm_up_makes_inputs_up_or_says_that_it_cannot():
    with Session(chain()) as session:
        assert session.warm_up(most_s=0) == 1
        assert 1 < session.warm_up() <= 40
    b = GraphBuilder("open")
    graph = b.finish(b.add("neg", b.input("x", TensorType(("n",), "float32")), names=["y"]))
    with Session(graph) as session:
        with pytest.raises(RunError, match="open dimensions"):
            session.warm_up()
        assert session.warm_up(X) > 1


def test_max_queue_is_of_the_options():
    with pytest.raises(RunError, match="max_queue is 0"):
        ExecutionOptions(max_queue=0)
    entered, on = threading.Event(), threading.Event()

    def first(x):
        entered.set()
        assert on.wait(WAIT_S)
        return x

    with Session(chain(first), execution_options=ExecutionOptions(max_queue=2)) as session:
        running = session.run_async(X)
        assert entered.wait(WAIT_S)
        waiting = [session.run_async(X) for _ in range(2)]
        with pytest.raises(QueueFullError, match="2 requests wait"):
            session.run_async(X)
        on.set()
        concurrent.futures.wait([running, *waiting], WAIT_S)


def test_a_session_that_nobody_holds_ends_its_threads():
    session = Session(chain())
    session.run_async(X).result(WAIT_S)
    thread = session.requests._runner._threads[0]
    gone = weakref.ref(session)
    del session
    until = time.monotonic() + WAIT_S
    while (gone() is not None or thread.is_alive()) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None and not thread.is_alive()


def test_a_callback_may_close_the_session():
    session = Session(chain())
    closed = threading.Event()
    request = session.run_async(X)
    request.add_done_callback(lambda _: (session.close(), closed.set()))
    assert closed.wait(WAIT_S)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_in_a_forked_child_requests_of_the_parent_end_and_others_run():
    entered, on = threading.Event(), threading.Event()

    def first(x):
        if x[0] == 7:
            entered.set()
            assert on.wait(WAIT_S)
        return x

    with Session(chain(first)) as session:
        running = session.run_async({"x": np.full(4, 7, np.float32)})
        assert entered.wait(WAIT_S)
        waiting = session.run_async(X)
        child = os.fork()
        if not child:
            try:
                errors = [one.exception(WAIT_S) for one in (running, waiting)]
                assert all("the process forked" in str(one) for one in errors)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        on.set()
        running.result(WAIT_S)
        np.testing.assert_array_equal(waiting.result(WAIT_S)["y"], -X["x"])


def test_a_load_is_logged_in_one_line(caplog, tmp_path):
    path = tmp_path / "m.trm"
    trireme.save(chain(), path)
    path.write_bytes(path.read_bytes())  # a stamp of its own
    asked = [
        ("prepared in this process", None),
        ("its program from the cache", None),
        ("its graph from the cache", 1),
    ]
    for found, threads in asked:
        caplog.clear()
        with (
            caplog.at_level("INFO", "trireme.runtime.models.arguments"),
            Session(path, threads=threads),
        ):
            pass
        (line,) = [one.getMessage() for one in caplog.records if "loaded" in one.getMessage()]
        assert line.startswith(f"loaded {path} on cpu in 0.") and line.endswith(found)
