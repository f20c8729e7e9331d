"""Requests: order, limits, deadlines and cancellation, by clocks and events that tests control."""

import asyncio
import concurrent.futures
import gc
import os
import random
import threading
import time
import weakref

import numpy as np
import pytest
from programs import NESTED, UNTIL, f32

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.options import ExecutionOptions
from trireme.runtime.requests.workers import RequestRunner
from trireme.runtime.session import Session
from trireme.support.cancel import CancelToken, check_cancelled
from trireme.support.errors import CancelledError, DeadlineError, QueueFullError, RunError
from trireme.support.timers import Timers

WAIT_S = 20
FLOAT = TensorType((4,), "float32")
NEVER = {"limit": np.array(np.inf, np.float32), "start": np.array(True), "x": f32(0, 0, 0)}
X = {"x": np.arange(4, dtype=np.float32)}


class Hands:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 0.0
        self.timers = Timers(lambda: self.now, threaded=False)

    def move(self, seconds):
        self.now += seconds
        self.timers.fire()


class Gate:
    """A call that says when it runs, and waits to be let on."""

    def __init__(self, result="done"):
        self.entered, self.open, self.result = threading.Event(), threading.Event(), result

    def __call__(self):
        self.entered.set()
        assert self.open.wait(WAIT_S)
        check_cancelled()
        return self.result


@pytest.fixture
def hands():
    return Hands()


@pytest.fixture
def runner(hands):
    runner = RequestRunner(4, timers=hands.timers)
    yield runner
    runner.close()


def busy(runner):
    """Have the one worker at work; return its gate and request."""
    gate = Gate()
    request = runner.submit(gate, {}, None, 0)
    assert gate.entered.wait(WAIT_S)
    return gate, request


def test_requests_run_by_priority_then_in_order(runner):
    gate, first = busy(runner)
    order = []
    asked = [(0, "a"), (5, "b"), (0, "c"), (5, "d")]
    requests = [
        runner.submit(lambda name=name: order.append(name), {}, None, priority)
        for priority, name in asked
    ]
    gate.open.set()
    concurrent.futures.wait([first, *requests], WAIT_S)
    assert order == ["b", "d", "a", "c"]
    assert first.result(0) == "done"


def test_the_limit_counts_those_that_wait(runner):
    gate, _ = busy(runner)
    waiting = [runner.submit(dict, {}, None, 0) for _ in range(4)]
    with pytest.raises(QueueFullError, match="4 requests wait"):
        runner.submit(dict, {}, None, 0)
    assert waiting[2].cancel()
    again = runner.submit(dict, {}, None, 0)  # the cancelled one counts no more
    with pytest.raises(QueueFullError):
        runner.submit(dict, {}, None, 0)
    gate.open.set()
    assert again.result(WAIT_S) == {}


def test_a_deadline_in_the_queue_fires_at_its_time(runner, hands):
    gate, _ = busy(runner)
    ran = []
    late = runner.submit(lambda: ran.append(1), {}, 2.0, 0)
    hands.move(1.999)
    assert not late.done()
    hands.move(0.001)
    assert late.done()  # although the worker is at work
    with pytest.raises(DeadlineError, match=r"within 2 s\n  at its deadline it waited"):
        late.result(0)
    gate.open.set()
    runner.submit(dict, {}, None, 0).result(WAIT_S)
    assert not ran


def test_a_deadline_in_flight_stops_at_a_boundary(runner, hands):
    gate = Gate()
    request = runner.submit(gate, {}, 2.0, 0)
    assert gate.entered.wait(WAIT_S)
    hands.move(5)
    assert not request.done()
    gate.open.set()
    with pytest.raises(DeadlineError, match="it was running"):
        request.result(WAIT_S)


def test_a_result_never_comes_after_the_deadline(runner, hands):
    def slow():
        hands.now += 10
        return {"y": 1}

    with pytest.raises(DeadlineError):
        runner.submit(slow, {}, 2.0, 0).result(WAIT_S)
    assert runner.submit(slow, {}, 20.0, 0).result(WAIT_S) == {"y": 1}


def test_a_cancelled_request_never_runs(runner):
    gate, _ = busy(runner)
    ran = []
    request = runner.submit(lambda: ran.append(1), {}, None, 0)
    seen = []
    request.add_done_callback(lambda one: seen.append(one.cancelled()))
    assert request.cancel() and request.done() and seen == [True]
    for kind in (CancelledError, concurrent.futures.CancelledError):
        with pytest.raises(kind, match="before it ran"):
            request.result(0)
    assert isinstance(request.exception(0), CancelledError)
    done, _ = concurrent.futures.wait([request], 0)
    assert done == {request}
    gate.open.set()
    runner.submit(dict, {}, None, 0).result(WAIT_S)
    assert not ran


def test_a_running_request_is_cancelled_at_a_boundary(runner):
    gate, request = busy(runner)
    assert request.cancel() and not request.done()
    gate.open.set()
    with pytest.raises(concurrent.futures.CancelledError):
        request.result(WAIT_S)
    assert request.cancelled() and not request.cancel()


def test_a_request_that_is_over_cannot_be_cancelled(runner):
    request = runner.submit(dict, {}, None, 0)
    assert request.result(WAIT_S) == {}
    assert not request.cancel() and not request.cancelled()


def test_close_refuses_what_waits(runner):
    gate, first = busy(runner)
    waiting = runner.submit(dict, {}, None, 0)
    closing = threading.Thread(target=runner.close)
    closing.start()
    with pytest.raises(RunError, match="was closed before the request ran"):
        waiting.result(WAIT_S)
    assert closing.is_alive()  # until the one that runs is over
    gate.open.set()
    closing.join(WAIT_S)
    assert first.result(0) == "done"
    with pytest.raises(RunError, match="the session is closed"):
        runner.submit(dict, {}, None, 0)


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), float("inf"), "2", True])
def test_wrong_timeouts_are_refused(runner, timeout_s):
    with pytest.raises(RunError, match="timeout_s is"):
        runner.submit(dict, {}, timeout_s, 0)


def test_wrong_priorities_are_refused(runner):
    with pytest.raises(RunError, match="priority is 0.5"):
        runner.submit(dict, {}, None, 0.5)


def test_storms_of_cancels_and_deadlines_end_each_request_once(hands):
    """Seeded; requests end exactly once, none that was refused runs, and nothing is kept."""
    seed = 15
    print("seed", seed)
    rng = random.Random(seed)
    runner = RequestRunner(64, workers=3, timers=hands.timers)
    ran, ended, requests, full = set(), [], [], 0
    for number in range(3000):
        timeout_s = rng.choice([None, 0.0, 0.5, 3.0])
        try:
            request = runner.submit(
                lambda n=number: ran.add(n) or {"n": n}, {}, timeout_s, rng.randrange(3)
            )
        except QueueFullError:
            full += 1
            hands.move(0.1)
            continue
        request.add_done_callback(lambda one, n=number: ended.append(n))
        requests.append((number, request))
        if rng.random() < 0.3:
            rng.choice(requests)[1].cancel()
        if rng.random() < 0.1:
            hands.move(rng.random())
    concurrent.futures.wait([one for _, one in requests], WAIT_S)
    runner.close()
    assert sorted(ended) == [number for number, _ in requests]
    for number, request in requests:
        error = request.exception(0)
        assert isinstance(error, DeadlineError | CancelledError | None)
        if error is None:
            assert request.result(0) == {"n": number}
        elif "waited" in str(error) or "before it ran" in str(error):
            assert number not in ran
    assert runner.queue.waiting == 0 and not runner.queue.lines


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
    thread = session._requests._threads[0]
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
            caplog.at_level("INFO", "trireme.runtime.load_log"),
            Session(path, threads=threads),
        ):
            pass
        (line,) = [one.getMessage() for one in caplog.records if "loaded" in one.getMessage()]
        assert line.startswith(f"loaded {path} on cpu in 0.") and line.endswith(found)


@pytest.mark.timed
def test_deadlines_in_the_queue_are_exact_by_the_clock():
    runner = RequestRunner(1000)
    gate, _ = busy(runner)
    rng = random.Random(15)
    late = []
    for _ in range(200):
        timeout_s = rng.uniform(0.01, 0.5)
        due = time.monotonic() + timeout_s
        request = runner.submit(dict, {}, timeout_s, 0)
        request.add_done_callback(lambda _, due=due: late.append(time.monotonic() - due))
    time.sleep(0.7)
    gate.open.set()
    runner.close()
    assert len(late) == 200
    assert min(late) >= -1e-4 and max(late) < 0.010
