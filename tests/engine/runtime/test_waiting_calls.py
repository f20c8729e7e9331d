"""Calls that wait for a context run on threads of its queue, in the order in which they came."""

import contextlib
import contextvars
import gc
import os
import random
import threading
import time
import weakref

import numpy as np
import pytest
from alarm import Interrupted, alarms, needs_timers

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.contexts import ContextQueue
from trireme.runtime.session.session import Session
from trireme.support.cancel import CancelToken, check_cancelled, working_for
from trireme.support.errors import CancelledError, DeadlineError, RunError

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
CONTEXTS = 2


def until(true):
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.001)


@pytest.fixture
def queue():
    made = ContextQueue(CONTEXTS)
    yield made
    made.close()
    assert not made.line and not any(thread.is_alive() for thread in made._threads._threads)


@contextlib.contextmanager
def all_busy(queue):
    """Hold all contexts as callers do that found them free."""
    held = [queue.hold() for _ in range(CONTEXTS)]
    assert [next(one) for one in held] == list(range(CONTEXTS))
    try:
        yield held
    finally:
        for one in held:
            one.close()


class Callers:
    """Threads that have a queue run a call each."""

    def __init__(self, queue):
        self.queue, self.made, self.threads = queue, [], []

    def add(self, call, token=None):
        """Begin a caller, and return when it waits."""
        waiting = len(self.queue.line)

        def work():
            try:
                with working_for(token):
                    self.made.append(self.queue.run(call))
            except Exception as error:
                self.made.append(type(error))

        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()
        until(lambda: len(self.queue.line) == waiting + 1)

    def join(self):
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive(), "a caller hangs"
        return self.made


def test_a_call_sees_the_context_variables_of_its_caller(queue):
    variable = contextvars.ContextVar("span", default="none")

    def traced(number):
        span = contextvars.copy_context()
        span.run(variable.set, f"span {number}")
        return lambda: span.run(queue.run, lambda _: (variable.get(), threading.get_ident()))

    found = []
    with all_busy(queue) as held:
        threads = [threading.Thread(target=lambda k=k: found.append(traced(k)())) for k in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: len(queue.line) == 3)
        held.pop().close()
        for thread in threads:
            thread.join(20)
    assert sorted(span for span, _ in found) == ["span 0", "span 1", "span 2"]
    assert {ident for _, ident in found}.isdisjoint({thread.ident for thread in threads})


def test_a_call_that_finds_a_context_free_runs_on_its_own_thread(queue):
    assert queue.run(lambda number: (number, threading.get_ident())) == (0, threading.get_ident())
    assert not queue._threads._threads


def test_calls_in_line_run_in_their_order_on_as_many_threads_as_there_are_contexts(queue):
    ran, callers = [], Callers(queue)

    def call(name):
        def run(number):
            ran.append((name, threading.current_thread().name, number))
            return name

        return run

    with all_busy(queue):
        for name in range(12):
            callers.add(call(name))
        assert not ran
    assert sorted(callers.join()) == list(range(12))
    names = [name for name, _, _ in ran]
    assert all(abs(at - name) < CONTEXTS for at, name in enumerate(names)), names
    assert {thread for _, thread, _ in ran} <= {"trireme-contexts-0", "trireme-contexts-1"}
    assert {number for _, _, number in ran} <= set(range(CONTEXTS))


def test_no_more_calls_run_at_once_than_there_are_contexts(queue):
    lock, now, most = threading.Lock(), [], []

    def call(number):
        with lock:
            assert number not in now
            now.append(number)
            most.append(len(now))
        time.sleep(0.0005)
        with lock:
            now.remove(number)

    threads = [
        threading.Thread(target=lambda: [queue.run(call) for _ in range(60)]) for _ in range(7)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(most) == 420 and max(most) == CONTEXTS


def test_an_error_is_its_caller_s_alone(queue):
    callers = Callers(queue)

    def wrong(number):
        raise RunError("wrong")

    with all_busy(queue):
        for call in (lambda _: "right", wrong, lambda _: "right"):
            callers.add(call)
    assert sorted(callers.join(), key=str) == sorted(["right", RunError, "right"], key=str)


def test_a_caller_whose_time_is_over_leaves_the_line(queue):
    ran, callers, token = [], Callers(queue), CancelToken()
    with all_busy(queue):
        callers.add(ran.append, CancelToken(0.05))
        callers.add(ran.append, token)
        token.cancel()
        made = callers.join()
    assert set(made) == {DeadlineError, CancelledError} and not ran


def test_a_call_that_runs_is_stopped_by_the_token_of_its_caller(queue):
    token, callers, begun = CancelToken(), Callers(queue), threading.Event()

    def call(number):
        begun.set()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            check_cancelled()
            time.sleep(0.001)

    with all_busy(queue):
        callers.add(call, token)
    assert begun.wait(20)
    token.cancel()
    assert callers.join() == [CancelledError]


def test_who_holds_all_contexts_comes_between_the_calls_before_and_after(queue):
    order, callers = [], Callers(queue)

    def alone():
        with queue.alone():
            order.append("all")

    with all_busy(queue):
        callers.add(lambda _: order.append("before"))
        thread = threading.Thread(target=alone)
        thread.start()
        until(lambda: len(queue.line) == 2)
        callers.add(lambda _: order.append("after"))
    callers.join()
    thread.join(20)
    assert order == ["before", "all", "after"]


def test_where_no_thread_starts_callers_run_their_own_calls(queue, monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("trireme-contexts"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    callers = Callers(queue)
    with all_busy(queue):
        for _ in range(4):
            callers.add(lambda number: threading.current_thread())
    assert set(callers.join()) == set(callers.threads)


def test_with_one_context_callers_run_their_own_calls():
    queue = ContextQueue(1)
    callers = Callers(queue)
    for _ in queue.hold():
        callers.add(lambda number: threading.current_thread())
    assert callers.join() == callers.threads
    assert not queue._threads._threads


@needs_timers
def test_signals_leave_no_call_running_and_no_context_taken(queue):
    """A handler that raises comes anywhere; the call of its caller is over then, or never ran."""
    seed = 72
    print(f"seed {seed}")
    rng, stopped, mine = random.Random(seed), threading.Event(), []

    def others():
        while not stopped.is_set():
            queue.run(lambda number: time.sleep(0))

    def call(number):
        mine.append(number)
        time.sleep(0)
        mine.pop()

    threads = [threading.Thread(target=others) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        with alarms() as set_alarm:
            for _ in range(300):
                with contextlib.suppress(Interrupted):
                    set_alarm(rng.uniform(1e-5, 2e-3))
                    while True:
                        queue.run(call)
                mine_now = list(mine)  # what ran on this thread may have been left in the midst
                time.sleep(0)
                assert len(mine) <= len(mine_now)
                mine.clear()
    finally:
        stopped.set()
        for thread in threads:
            thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    with queue.alone():
        pass


@needs_fork
def test_a_forked_child_has_threads_of_its_own(queue):
    callers = Callers(queue)
    with all_busy(queue):
        callers.add(lambda _: None)
    callers.join()
    with all_busy(queue):
        pid = os.fork()
        if not pid:
            queue.reset_after_fork()
            mine = Callers(queue)
            with all_busy(queue):
                mine.add(lambda _: "ran")
            os._exit(0 if mine.join() == ["ran"] else 1)
        assert os.waitpid(pid, 0)[1] == 0


def small():
    b = GraphBuilder("small")
    x = b.input("x", TensorType((64, 64), "float32"))
    return b.finish(b.add("softmax", b.add("matmul", x, x), axis=-1, names=["y"]))


def hammered(session, runs=30):
    feeds = {"x": np.ones((64, 64), np.float32)}
    want = session.run(feeds)["y"]
    wrong = []

    def work():
        for _ in range(runs):
            if not np.array_equal(session.run(feeds)["y"], want):
                wrong.append(True)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def contexts_threads():
    return [one for one in threading.enumerate() if one.name.startswith("trireme-contexts")]


def test_threads_end_with_the_session_or_when_nobody_holds_it():
    with Session(small(), contexts=2) as session:
        with all_busy(session._contexts):
            callers = Callers(session._contexts)
            callers.add(lambda _: "ran")
        assert callers.join() == ["ran"]
        hammered(session)
        assert 1 <= len(contexts_threads()) <= 2
    assert not contexts_threads()
    session = Session(small(), contexts=2)
    with all_busy(session._contexts):
        callers = Callers(session._contexts)
        callers.add(lambda _: "ran")
    callers.join()
    hammered(session)
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    until(lambda: not contexts_threads())
