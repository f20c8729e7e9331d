"""Whether batches pay: what is compared, when requests run apart for it, and the warning."""

import logging
import threading

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.calls.batch_statistics import BatchGain
from trireme.runtime.session.batcher import Batcher
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError
from trireme.support.timers import Timers

WAIT_S = 20


class TimedSession:
    """A session on a clock of its own: a run of so many rows takes `seconds(rows)`."""

    contexts = 1

    def __init__(self, session, seconds):
        self.session, self.graph, self.states = session, session.graph, session.states
        self.seconds, self.rows, self.now = seconds, [], 0.0
        self.entered, self.on = threading.Event(), threading.Event()
        self.on.set()

    def run(self, feeds):
        rows = len(feeds["x"])
        self.rows.append(rows)
        self.entered.set()
        assert self.on.wait(WAIT_S)
        self.now += self.seconds(rows)
        return self.session.run(feeds)


@pytest.fixture(scope="module")
def session():
    b = GraphBuilder("g")
    x = b.input("x", TensorType(("n", 2), "float32"))
    with Session(b.finish(b.add("neg", x, names=["y"]))) as made:
        yield made


def storm(timed, requests, ends=None):
    """Queue requests of one row while the worker is held, run them, and return the statistics.

    ends: gets how each ended
    """
    batcher = Batcher.__new__(Batcher)
    clock = Timers(lambda: timed.now, threaded=False)
    Batcher.__init__.__wrapped__(batcher, timed, 4, timers=clock, max_queue=requests + 1)
    with batcher:
        timed.rows.clear()
        timed.entered.clear()
        timed.on.clear()
        row = {"x": np.ones((1, 2), np.float32)}
        futures = [batcher.submit(row)]
        assert timed.entered.wait(WAIT_S)
        futures += [batcher.submit(row) for _ in range(requests - 1)]
        timed.on.set()
        if ends is not None:
            ends += ["failed" if one.exception(WAIT_S) else "done" for one in futures]
        for one in futures:
            assert one.result(WAIT_S)["y"].shape == (1, 2)
        # the last report may follow the last result
        batcher.close(drain=True)
        return batcher.statistics


def test_the_gain_is_seconds_apart_over_seconds_in_batches():
    gain = BatchGain()
    for _ in range(3):
        gain.add_apart("a", 4, 8.0)
    assert gain.gain is None
    for _ in range(3):
        gain.add("a", 4, 4.0)
        gain.add("b", 2, 50.0)  # never apart, so it says nothing
    assert gain.gain == pytest.approx(2.0)
    gain.add("a", 4, 400.0)  # one slow run is no evidence
    assert gain.gain == pytest.approx(2.0)


def test_times_of_shapes_are_bounded():
    gain = BatchGain()
    for key in range(1000):
        gain.add(key, 2, 1.0)
    assert len(gain._shapes) == 64 and 999 in gain._shapes


def test_requests_run_apart_for_the_comparison_and_then_no_more(session):
    timed = TimedSession(session, lambda rows: 1.0 + rows)
    told = storm(timed, 201)
    assert timed.rows.count(1) == 1 + 3 * 4, timed.rows
    assert set(timed.rows[1:13]) == {4}, "batches come first"
    assert set(timed.rows[13:25]) == {1} and told.batches[1] == 13
    assert told.gain == pytest.approx(4 * 2.0 / 5.0)


def test_as_many_requests_run_apart_at_once_as_the_session_runs(session):
    together = threading.Barrier(2, timeout=WAIT_S)

    class Twice(TimedSession):
        contexts = 2

        def run(self, feeds):
            if len(feeds["x"]) == 1 and len(self.rows) > 12:
                together.wait()  # breaks where one runs after another
            return super().run(feeds)

    timed = Twice(session, lambda rows: 1.0)
    storm(timed, 201)
    assert not together.broken and timed.rows.count(1) == 1 + 3 * 4


def test_a_request_that_fails_apart_is_the_only_one(session):
    class Fails(TimedSession):
        def run(self, feeds):
            if len(feeds["x"]) == 1 and len(self.rows) == 14:
                self.rows.append(1)
                raise RunError("wrong data")
            return super().run(feeds)

    timed, ends = Fails(session, lambda rows: 1.0), []
    with pytest.raises(RunError, match="^wrong data$"):
        storm(timed, 201, ends)
    assert ends.count("failed") == 1 and len(ends) == 201


@pytest.mark.parametrize(
    ("seconds", "warns"), [(lambda rows: 1.0 + rows, False), (lambda rows: rows * rows, True)]
)
def test_batches_that_do_not_pay_are_a_warning_once(session, caplog, seconds, warns):
    with caplog.at_level(logging.WARNING, "trireme"):
        storm(TimedSession(session, seconds), 400)
    told = [one.getMessage() for one in caplog.records if "do not pay" in one.getMessage()]
    assert len(told) == warns
    if warns:
        assert "4.00 times as long" in told[0]


def test_a_worker_that_cannot_be_started_refuses_the_request(session, monkeypatch):
    start = threading.Thread.start
    with Batcher(session, 4, timeout_us=None) as batcher:
        monkeypatch.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(RunError, match="cannot be started"):
            batcher.submit({"x": np.ones((1, 2), np.float32)})
        monkeypatch.setattr(threading.Thread, "start", start)
        assert batcher.waiting == 0
        assert batcher.run({"x": np.ones((1, 2), np.float32)})["y"].shape == (1, 2)


def _no_thread(thread):
    raise RuntimeError("can't start new thread")
