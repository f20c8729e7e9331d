"""Who may run now: order of arrival, priorities, deadlines, and holding all contexts."""

import contextlib
import os
import random
import threading
import time
from weakref import ref

import pytest
from alarm import Interrupted, alarms, needs_timers

from trireme.runtime.program.contexts import ContextQueue
from trireme.runtime.program.waiting_calls import PlaceInLine
from trireme.support.cancel import CancelToken, working_for
from trireme.support.errors import DeadlineError, RunError

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def until(true):
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.001)


class Callers:
    """Threads that hold a context once each, and the order in which they had it."""

    def __init__(self, queue):
        self.queue, self.served, self.threads = queue, [], []

    def add(self, name, token=None, **how):
        """Begin a caller, and return when it waits."""
        waiting = len(self.queue.line)
        thread = threading.Thread(target=self._hold, args=(name, token, how))
        self.threads.append(thread)
        thread.start()
        until(lambda: len(self.queue.line) == waiting + 1)

    def _hold(self, name, token, how):
        try:
            with working_for(token):
                for number in self.queue.hold(**how):
                    self.served.append((name, number))
                    time.sleep(0.001)
        except RunError as error:
            self.served.append((name, type(error).__name__))

    def join(self):
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive(), "a caller hangs"
        return [name for name, _ in self.served]


def test_callers_are_served_in_the_order_in_which_they_came():
    queue = ContextQueue(1)
    callers = Callers(queue)
    for _ in queue.hold():
        for name in range(20):
            callers.add(name)
    assert callers.join() == list(range(20))


def test_higher_priorities_go_first_and_in_order_within_one():
    queue = ContextQueue(1)
    callers = Callers(queue)
    for _ in queue.hold():
        for name, priority in enumerate([0, 5, -1, 5, 0, 9]):
            callers.add(name, priority=priority)
    assert callers.join() == [5, 1, 3, 0, 4, 2]


def test_as_many_as_there_are_contexts_hold_one_at_once():
    queue, held, most, meeting = ContextQueue(3), set(), [], threading.Barrier(3)

    def call():
        for turn in range(50):
            for number in queue.hold():
                assert number not in held
                held.add(number)
                most.append(len(held))
                if not turn:  # three at once, whatever the scheduler does
                    meeting.wait(20)
                time.sleep(0)
                held.remove(number)

    threads = [threading.Thread(target=call) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(most) == 450 and max(most) == 3
    assert not queue.line and not held


def test_a_later_caller_overtakes_nobody_when_a_context_becomes_free():
    """The context is free before the first in line is awake; a caller that comes then waits."""
    queue = ContextQueue(1)
    callers = Callers(queue)
    for _ in range(30):
        for _ in queue.hold():
            callers.add("early")
        for _ in queue.hold():
            callers.served.append(("late", 0))
    assert callers.join() == ["early", "late"] * 30


def test_a_deadline_ends_the_waiting_at_its_time():
    queue, took = ContextQueue(1), []
    for _ in queue.hold():
        for wait_s in (0.0, 0.02, 0.3):
            begun = time.monotonic()
            with pytest.raises(DeadlineError, match="deadline passed while the call waited"):
                next(queue.hold(deadline_s=begun + wait_s))
            took.append(time.monotonic() - begun - wait_s)
        assert not queue.line
    assert all(late >= 0 for late in took) and min(took) < 0.01
    assert [number for number in queue.hold(deadline_s=time.monotonic() + 10)] == [0]


def test_a_caller_that_is_cancelled_leaves_the_line():
    queue, token = ContextQueue(1), CancelToken()
    callers = Callers(queue)
    for _ in queue.hold():
        callers.add("cancelled", token=token)
        callers.add("other")
        token.cancel()
        callers.threads[0].join(20)
        assert callers.served == [("cancelled", "CancelledError")]
    assert callers.join() == ["cancelled", "other"]


def test_holding_all_waits_for_those_before_and_keeps_those_after():
    queue, order = ContextQueue(3), []
    callers = Callers(queue)

    def hold_all():
        with queue.alone():
            order.append("all")
            time.sleep(0.02)
            order.append("over")

    held = queue.hold()
    next(held)
    thread = threading.Thread(target=hold_all)
    thread.start()
    until(lambda: len(queue.line) == 1)
    callers.add("after")  # two contexts are free, and this caller waits all the same
    assert not callers.served and not order
    held.close()
    thread.join(20)
    assert callers.join() == ["after"]
    assert order == ["all", "over"]


def test_what_a_caller_raises_gives_the_context_back():
    queue = ContextQueue(2)
    for _ in range(5):
        with pytest.raises(RunError):
            for _ in queue.hold():
                raise RunError("wrong")
        with pytest.raises(RunError), queue.alone():
            raise RunError("wrong")
    assert [number for number in queue.hold()] == [0]


@needs_timers
def test_signals_leave_no_context_taken():
    """A handler that raises comes anywhere: in line, while a context is taken or given back."""
    seed = 71
    print(f"seed {seed}")
    rng, queue, stopped = random.Random(seed), ContextQueue(2), threading.Event()

    def others():
        while not stopped.is_set():
            for _ in queue.hold():
                time.sleep(0)

    threads = [threading.Thread(target=others) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with alarms() as set_alarm:
            for _ in range(300):
                with contextlib.suppress(Interrupted):
                    set_alarm(rng.uniform(1e-5, 2e-3))
                    while True:
                        for _ in queue.hold():
                            pass
                        with queue.alone():
                            pass
    finally:
        stopped.set()
        for thread in threads:
            thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert not queue.line
    with queue.alone():
        pass


def test_a_place_whose_caller_is_gone_blocks_nobody():
    """As after a signal that came before the caller could leave the line."""
    queue, first = ContextQueue(1), PlaceInLine()
    queue.line.append((0, -1, ref(first)))
    served, thread = [], threading.Thread(target=lambda: served.extend(queue.hold()))
    thread.start()
    until(lambda: len(queue.line) == 2)
    assert not served
    del first
    thread.join(20)
    assert served == [0] and not queue.line


@needs_fork
def test_a_forked_child_finds_its_contexts_free():
    queue = ContextQueue(2)
    held = queue.hold()
    next(held)
    pid = os.fork()
    if not pid:
        queue.reset_after_fork()
        with queue.alone():
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    held.close()
