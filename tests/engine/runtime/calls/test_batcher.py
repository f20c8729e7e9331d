"""Batches: what they gather, who waits how long, and that nobody harms a batch mate."""

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

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.session.batcher import Batcher
from trireme.runtime.session.session import Session
from trireme.support.errors import CancelledError, DeadlineError, QueueFullError, RunError
from trireme.support.timers import Timers

WAIT_S = 20
OPEN = TensorType(("n", "s"), "float32")


class Hands:
    """A clock that a test moves; `move` wakes a batcher's workers too."""

    def __init__(self):
        self.now = 0.0
        self.timers = Timers(lambda: self.now, threaded=False)

    def move(self, seconds, batcher):
        self.now += seconds
        self.timers.fire()
        changed = batcher._runner.queue.changed
        with changed:
            changed.notify_all()


class Watched:
    """A session whose runs a test sees, and lets on."""

    def __init__(self, session):
        self.session, self.graph, self.states = session, session.graph, session.states
        self.contexts = session.contexts
        self.rows, self.entered, self.on = [], threading.Event(), threading.Event()
        self.on.set()

    def run(self, feeds):
        self.rows.append(len(feeds["x"]))
        self.entered.set()
        assert self.on.wait(WAIT_S)
        return self.session.run(feeds)


def graph_of(make, x=OPEN):
    b = GraphBuilder("g")
    value = b.input("x", x)
    return b.finish(b.add("neg", make(b, value), names=["y"]))


def doubling(b, x):
    return b.add("add", x, x)


def x_of(*rows):
    return {"x": np.array(rows, np.float32)}


@pytest.fixture(scope="module")
def session():
    with Session(graph_of(doubling)) as session:
        yield session


@pytest.fixture
def watched(session):
    return Watched(session)


def opened(watched, **options):
    """A batcher over a watched session, whose probe is not counted."""
    batcher = Batcher.__new__(Batcher)
    Batcher.__init__.__wrapped__(batcher, watched, options.pop("most", 4), **options)
    watched.rows.clear()
    watched.entered.clear()
    return batcher


def held(watched, batcher):
    """Have the worker at a run that waits."""
    watched.on.clear()
    first = batcher.submit(x_of([100]))
    assert watched.entered.wait(WAIT_S)
    return first


def test_requests_that_wait_share_a_run_and_get_their_own_rows(watched):
    with opened(watched) as batcher:
        first = held(watched, batcher)
        requests = [batcher.submit(x_of([k])) for k in range(6)]
        watched.on.set()
        assert first.result(WAIT_S)["y"].tolist() == [[-200]]
        for k, request in enumerate(requests):
            assert request.result(WAIT_S)["y"].tolist() == [[-2 * k]]
        assert watched.rows == [1, 4, 2]
        told = batcher.statistics
    assert (told.requests, told.batches, told.failed) == (7, {1: 1, 2: 1, 4: 1}, 0)
    assert told.queue_s >= told.longest_queue_s > 0 and told.mean_rows == pytest.approx(7 / 3)


def test_requests_of_several_rows_fill_a_batch_but_never_more(watched):
    with opened(watched) as batcher:
        held(watched, batcher)
        sizes = [3, 2, 2, 1, 4, 1]
        requests = [batcher.submit(x_of(*([k, k],) * n)) for k, n in enumerate(sizes)]
        watched.on.set()
        for k, (n, request) in enumerate(zip(sizes, requests, strict=True)):
            assert request.result(WAIT_S)["y"].tolist() == [[-2 * k] * 2] * n
    assert watched.rows == [1, 3, 4, 1, 4, 1]


def test_shapes_that_differ_form_batches_of_their_own(watched):
    with opened(watched) as batcher:
        held(watched, batcher)
        rows = [[1], [2, 2], [3], [4, 4], [5]]
        requests = [batcher.submit(x_of(row)) for row in rows]
        watched.on.set()
        for row, request in zip(rows, requests, strict=True):
            np.testing.assert_array_equal(request.result(WAIT_S)["y"], -2 * x_of(row)["x"])
    assert watched.rows == [1, 3, 2]


def test_a_free_worker_waits_for_the_delay_and_no_longer(watched):
    hands = Hands()
    with opened(watched, max_queue_delay_us=1000, timers=hands.timers) as batcher:
        one = batcher.submit(x_of([1]))
        hands.move(0.0006, batcher)
        two = batcher.submit(x_of([2]))
        hands.move(0.0003, batcher)
        assert not watched.entered.wait(0.05)
        hands.move(0.0002, batcher)
        one.result(WAIT_S), two.result(WAIT_S)
        assert watched.rows == [2]
        assert batcher.statistics.longest_queue_s == pytest.approx(0.0011)


def test_full_and_preferred_batches_do_not_wait(watched):
    hands = Hands()
    options = {"max_queue_delay_us": 1e6, "timers": hands.timers}
    with opened(watched, most=8, preferred=[3, 5], **options) as batcher:
        requests = [batcher.submit(x_of([k])) for k in range(3)]
        concurrent.futures.wait(requests, WAIT_S)
        assert watched.rows == [3]
        many = [batcher.submit(x_of([k])) for k in range(2)]
        assert not concurrent.futures.wait(many, 0.05).done
        hands.move(1, batcher)
        concurrent.futures.wait(many, WAIT_S)
    assert watched.rows == [3, 2]


def test_larger_priorities_go_first(watched):
    with opened(watched, most=2) as batcher:
        held(watched, batcher)
        order = []
        for k, priority in enumerate([0, 1, 0, 2]):
            request = batcher.submit(x_of([k]), priority=priority)
            request.add_done_callback(lambda _, k=k: order.append(k))
        watched.on.set()
        batcher.close(drain=True)
    assert order == [3, 1, 0, 2]


@pytest.mark.parametrize(
    "feeds, sentence",
    [
        ({}, "missing: x"),
        ({"x": np.zeros((1, 2), np.float64)}, r"is float64\[1,2\], expected float32"),
        ({"x": np.zeros(2, np.float32)}, "expected float32"),
        ({"x": np.zeros((0, 2), np.float32)}, "0 rows, expected 1 to 4"),
        ({"x": np.zeros((5, 2), np.float32)}, "5 rows, expected 1 to 4"),
        ({"x": "text"}, "input 'x'"),
        (None, "the inputs are a NoneType"),
    ],
)
def test_a_bad_request_is_refused_before_it_is_queued(watched, feeds, sentence):
    with opened(watched) as batcher:
        first = held(watched, batcher)
        good = batcher.submit(x_of([1]))
        with pytest.raises(RunError, match=sentence):
            batcher.submit(feeds)
        watched.on.set()
        good.result(WAIT_S), first.result(WAIT_S)
        assert watched.rows == [1, 1] and batcher.statistics.refused == 1


def test_a_batch_that_fails_runs_one_by_one_and_the_culprit_says_so():
    table = np.arange(10, dtype=np.float32).reshape(5, 2)

    @trireme.python_op(inputs=["int64"], outputs=["float32"], shape=lambda x: (x[0], 2))
    def look_up(x):
        return table[x[:, 0]]

    b = GraphBuilder("table")
    x = b.input("x", TensorType(("n", 1), "int64"))
    graph = b.finish(b.add("neg", b.add("python", x, **look_up.attrs()), names=["y"]))
    probe = {"x": np.array([[1], [2]])}
    reports = []
    with Session(graph) as session:
        watched = Watched(session)
        with opened(watched, probe=probe, on_batch=reports.append) as batcher:
            watched.on.clear()
            first = batcher.submit({"x": np.array([[0]])})
            assert watched.entered.wait(WAIT_S)
            ids = [1, 2, 77, 4]
            requests = [batcher.submit({"x": np.array([[k]])}) for k in ids]
            watched.on.set()
            for k, request in zip(ids, requests, strict=True):
                if k == 77:
                    error = request.exception(WAIT_S)
                    assert isinstance(error, RunError)
                    assert "failed in a batch of 4, and by itself" in str(error)
                else:
                    np.testing.assert_array_equal(request.result(WAIT_S)["y"], -table[[k]])
            first.result(WAIT_S)
            assert watched.rows == [1, 4, 1, 1, 1, 1]
            told = batcher.statistics
        assert (told.retried, told.failed) == (1, 1)
        assert [one.retried for one in reports] == [False, True]


def test_the_limit_and_deadlines_are_exact(watched):
    hands = Hands()
    with opened(watched, max_queue=3, timeout_us=2e6, timers=hands.timers) as batcher:
        running = held(watched, batcher)
        waiting = [batcher.submit(x_of([k])) for k in range(2)]
        longer = batcher.submit(x_of([5]), timeout_s=9)
        with pytest.raises(QueueFullError, match="queue of the batcher is full: 3 requests"):
            batcher.submit(x_of([9]))
        hands.move(1.999, batcher)
        assert not any(one.done() for one in waiting)
        hands.move(0.001, batcher)
        for one in waiting:
            with pytest.raises(DeadlineError, match="it waited in the queue"):
                one.result(0)
        with pytest.raises(DeadlineError, match="it was running"):  # at its time, in flight
            running.result(0)
        assert batcher.waiting == 1
        watched.on.set()
        assert longer.result(WAIT_S)["y"].tolist() == [[-10]]
        assert batcher.statistics.expired == 3 and batcher.statistics.refused == 1


def test_cancelling_one_leaves_its_batch_mates_alone(watched):
    with opened(watched) as batcher:
        held(watched, batcher)
        requests = [batcher.submit(x_of([k])) for k in range(4)]
        assert requests[1].cancel() and requests[1].done()
        watched.entered.clear()
        watched.on.set()
        assert requests[0].result(WAIT_S)["y"].tolist() == [[0]]
        watched.entered.clear()
        watched.on.clear()
        in_flight = [batcher.submit(x_of([k])) for k in range(4)]
        while len(watched.rows) < 3:
            time.sleep(0.001)
        victim = in_flight[0]
        assert victim.cancel() and victim.done()  # at once, though its batch runs on
        assert not victim.cancel()
        with pytest.raises(CancelledError):
            victim.result(0)
        watched.on.set()
        for k in (1, 2, 3):
            assert in_flight[k].result(WAIT_S)["y"].tolist() == [[-2 * k]]


def test_close_refuses_what_waits_or_runs_it(watched):
    for drain in (False, True):
        batcher = opened(watched)
        held(watched, batcher)
        waiting = batcher.submit(x_of([1]))
        closing = threading.Thread(target=batcher.close, kwargs={"drain": drain})
        closing.start()
        if not drain:
            with pytest.raises(RunError, match="was closed before"):
                waiting.result(WAIT_S)
        watched.on.set()
        closing.join(WAIT_S)
        assert not closing.is_alive()
        if drain:
            assert waiting.result(0)["y"].tolist() == [[-2]]
        with pytest.raises(RunError, match="the batcher is closed"):
            batcher.submit(x_of([1]))


def test_await_and_run(session):
    with Batcher(session, 8) as batcher:

        async def main():
            return await asyncio.gather(*(batcher.arun(x_of([k])) for k in range(30)))

        assert [one["y"].item() for one in asyncio.run(main())] == [-2 * k for k in range(30)]
        assert batcher.run(x_of([4]))["y"].tolist() == [[-8]]


def test_a_batcher_that_nobody_holds_ends_its_threads(session):
    batcher = Batcher(session, 8)
    batcher.run(x_of([1]))
    (thread,) = batcher._runner._threads
    gone = weakref.ref(batcher)
    del batcher
    until = time.monotonic() + WAIT_S
    while (gone() is not None or thread.is_alive()) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None and not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_in_a_forked_child_requests_of_the_parent_end_and_others_run(watched):
    with opened(watched) as batcher:
        running = held(watched, batcher)
        waiting = batcher.submit(x_of([1]))
        child = os.fork()
        if not child:
            try:
                errors = [one.exception(WAIT_S) for one in (running, waiting)]
                assert all("the process forked" in str(one) for one in errors)
                watched.on.set()
                assert batcher.run(x_of([3]))["y"].tolist() == [[-6]]
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        watched.on.set()
        assert waiting.result(WAIT_S)["y"].tolist() == [[-2]]


def centred(b, x):
    axes = b.constant("axes", np.array([0]))
    return b.add("sub", x, b.add("reduce_mean", x, axes, keepdims=1))


def summed(b, x):
    return b.add("reduce_sum", x, b.constant("axes", np.array([0])), keepdims=0)


def turned(b, x):
    return b.add("transpose", x, perm=[1, 0])


@pytest.mark.parametrize(
    "make, x, sentence",
    [
        (summed, OPEN, "its first dimension is not n"),
        (turned, OPEN, "its first dimension is not n"),
        (centred, OPEN, "a row of output 'y' depends on the other rows"),
        (doubling, TensorType((1, 4), "float32"), "its first dimension is not open"),
        (doubling, TensorType(("n", "n"), "float32"), "not the first alone"),
    ],
)
def test_models_whose_rows_are_not_apart_are_refused(make, x, sentence):
    with Session(graph_of(make, x)) as session, pytest.raises(RunError, match=sentence):
        Batcher(session, 4)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"preferred": [5]}, r"preferred is \[5\], expected 1 to 4"),
        ({"max_queue_delay_us": -1}, "max_queue_delay_us is -1"),
        ({"max_queue": 0}, "max_queue is 0"),
        ({"workers": 0}, "workers is 0"),
        ({"max_batch_size": "4"}, "max_batch_size is '4'"),
    ],
)
def test_wrong_options_are_refused(session, options, sentence):
    with pytest.raises(RunError, match=sentence):
        Batcher(session, **({"max_batch_size": 4} | options))


def test_the_evidence_says_what_proves_it(session):
    with Batcher(session, 4) as batcher:
        assert batcher.evidence.is_exact and batcher.evidence.proof == "rules"
        assert batcher.evidence.symbol == "n"


def test_storms_end_each_request_once(session):
    """Seeded; cancels, deadlines, bad requests and several clients; each result is its own."""
    seed = 7
    print("seed", seed)
    with Batcher(session, 8, preferred=[2], max_queue_delay_us=200, workers=2) as batcher:
        ends = []

        def client(number):
            rng = random.Random(seed * 100 + number)
            for k in range(300):
                value = float(number * 1000 + k)
                shape = (rng.randint(1, 3), rng.randint(1, 3))
                try:
                    request = batcher.submit(
                        {"x": np.full(shape, value, np.float32)},
                        timeout_s=rng.choice([None, None, 0.0, 0.0005]),
                        priority=rng.randrange(2),
                    )
                except QueueFullError:
                    continue
                if rng.random() < 0.1:
                    request.cancel()
                error = request.exception(WAIT_S)
                assert isinstance(error, DeadlineError | CancelledError | None), error
                if error is None:
                    y = request.result(0)["y"]
                    assert y.shape == shape and (y == -2 * value).all()
                ends.append(error)

        with concurrent.futures.ThreadPoolExecutor(6) as clients:
            list(clients.map(client, range(6)))
        told = batcher.statistics
        assert told.requests == len(ends) == 1800
        assert told.failed == told.refused == batcher.waiting == 0
        assert told.cancelled == sum(isinstance(one, CancelledError) for one in ends) > 0
        assert told.expired == sum(isinstance(one, DeadlineError) for one in ends) > 0
