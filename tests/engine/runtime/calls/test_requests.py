"""Requests: order, limits, deadlines and cancellation, by clocks and events that tests control."""

import concurrent.futures
import random
import threading
import time

import numpy as np
import pytest
from programs import f32

from trireme.ir.graph import TensorType
from trireme.runtime.calls.workers import RequestRunner
from trireme.support.cancel import check_cancelled
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
