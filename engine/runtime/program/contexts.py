"""Who may run now: the contexts of a session, given to callers in the order in which they come.

A context serves one call at a time. A caller takes a context that is free. Where none is, it waits
in line: behind callers of its priority and of higher ones, before those of lower ones. Only the
first in line takes a context that becomes free, so nobody is overtaken.

A lock a context says who has it. Every lock is taken by the step of a `for`, so no signal leaves it
taken (support/locks.py). The line is a list; its operations are atomic under the GIL. It does not
keep its places alive: one whose caller a signal took away is dropped by those behind it.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, NamedTuple
from weakref import ref

from trireme.runtime.program.waiting_calls import (
    LOOK_S,
    LOOK_TO_STOP_S,
    LineThreads,
    PlaceInLine,
    WaitingCall,
)
from trireme.support.cancel import current_token
from trireme.support.errors import DeadlineError, InternalError, RunError
from trireme.support.locks import taking_if_free

MOST = 64
"""Contexts of a session: the calls that run at once on the threads of a cpu device."""


class ContextCount(NamedTuple):
    """How many calls run at once, and a sentence on the reason.

    busy: how many calls keep the devices busy
    """

    most: int
    why: str
    busy: int = MOST

    @property
    def workers(self) -> int:
        """How many threads run calls that wait: fewer than contexts where those are to spare."""
        return min(self.most, self.busy)


def checked_contexts(asked: object) -> int | None:
    """Return the contexts that a session was asked for. Errors: RunError, for no such number"""
    if asked is None:
        return None
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= MOST:
        raise RunError(f"contexts is {asked!r}, expected a whole number from 1 to {MOST}, or None")
    return asked


_InLine = tuple[int, int, ref[PlaceInLine]]


class ContextQueue:
    """The contexts of a session by number, and the callers that wait for one.

    line: those that wait, the first first: priority below 0, number of arrival, place
    lock: of context 0; first: takes it if it is free: for _ in queue.first
    """

    def __init__(self, most: int = 1) -> None:
        self._most = self._workers = most
        self._threads = LineThreads(self._serve_line, self._has_work)
        self.reset_after_fork()

    @property
    def most(self) -> int:
        """The number of contexts: so many calls run at once."""
        return self._most

    def widen(self, most: int, workers: int = MOST) -> None:
        """Have so many contexts, if they are more than before, and threads for calls in line."""
        self._most = max(self._most, most)
        self._workers = min(self._most, workers)
        self._locks.extend(threading.Lock() for _ in range(self._most - len(self._locks)))

    def hold(
        self, priority: int = 0, deadline_s: float | None = None, waits: bool = True
    ) -> Iterator[int]:
        """Yield the number of a context that the caller has until the `for` ends.

            for number in queue.hold():
                ...

        priority: a higher one goes first; first in, first out within one
        deadline_s: when waiting ends, by time.monotonic
        waits: False to yield nothing where no context is free or others wait
        Errors: DeadlineError, at the deadline; CancelledError, if the run of this thread has to
        stop (support/cancel.py)
        """
        self.first = taking_if_free(self.lock)
        if not self.line:
            for number, lock in enumerate(self._locks):
                for _ in taking_if_free(lock):
                    try:
                        yield number
                    finally:
                        lock.release()  # at once: a signal may come where a function begins
                        self.ring()
                    return
        if not waits:
            return
        place = PlaceInLine()
        in_line = -priority, next(self._arrivals), ref(place)
        try:
            insort(self.line, in_line)
            yield from self._first_free(place, in_line, deadline_s)
        finally:
            self._leave_surely(in_line)

    def run(self, call: Callable[[int], Any]) -> Any:
        """Return what a call returns that gets the number of a context.

        Where no context is free, a thread of the queue's runs the call in its turn. With one
        context the caller does: what runs in turns may expect the caller's thread.
        Errors: those of the call, and of `hold`
        """
        for number in self.hold(waits=self._most == 1):
            return call(number)
        waiting = WaitingCall(call, self._wake)
        in_line: _InLine = 0, next(self._arrivals), ref(waiting)
        try:
            insort(self.line, in_line)
            is_over = waiting.wait_over()
        except BaseException:
            waiting.drop()
            raise
        finally:
            self._leave_surely(in_line)
        if is_over:
            return waiting.result()
        for number in self.hold():
            return call(number)
        raise InternalError("no context was found")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold all contexts in the block; callers that came before are served before."""
        place = PlaceInLine()
        in_line = 0, next(self._arrivals), ref(place)
        try:
            insort(self.line, in_line)
            while self._head() is not place:
                place.wait()
            yield from self._all_from(0, place)
        finally:
            self._leave_surely(in_line)

    def close(self) -> None:
        """End the threads; callers run their own calls then."""
        self._threads.close()

    def stop(self) -> None:
        """As `close`, but wait for nothing. A collector may call it anywhere."""
        self._threads.stop()

    def release(self, lock: threading.Lock) -> None:
        """Give a context back, for the first in line."""
        lock.release()
        if self.line:
            self.ring()

    def _wake(self) -> bool:
        return self._threads.wake(self._workers)

    def _has_work(self) -> bool:
        """Whether the first in line is a call, and a context is free for it."""
        return isinstance(self._head(), WaitingCall) and not all(
            lock.locked() for lock in self._locks
        )

    def _serve_line(self) -> None:
        """Run the calls at the head of the line in one context, if one is free."""
        if not isinstance(self._head(), WaitingCall):
            return
        for number, lock in enumerate(self._locks):
            for _ in taking_if_free(lock):
                try:
                    while (waiting := self._next_call()) is not None:
                        waiting.run(number)
                        del waiting  # what it holds may be collected
                finally:
                    lock.release()  # at once: a signal may come where a function begins
                    self.ring()
                return

    def _next_call(self) -> WaitingCall | None:
        """Take the call at the head of the line; None where there is none."""
        while True:
            try:
                first = self.line[0]
            except IndexError:
                return None
            place = first[2]()
            if place is not None and not isinstance(place, WaitingCall):
                return None
            self._drop(first)
            if place is not None and place.claim():
                return place

    def _first_free(
        self, place: PlaceInLine, in_line: _InLine, deadline_s: float | None
    ) -> Iterator[int]:
        """Yield the first free context once the place is the first in line."""
        token = current_token()
        stop_s = None if token is None else token.deadline_s
        until_s = min((one for one in (deadline_s, stop_s) if one is not None), default=None)
        while True:
            if token is not None:
                token.check()
            if self._head() is place:
                for number, lock in enumerate(self._locks):
                    for _ in taking_if_free(lock):
                        try:
                            self._leave(in_line)
                            yield number
                        finally:
                            lock.release()  # at once: a signal may come where a function begins
                            self.ring()
                        return
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise DeadlineError(
                    "the deadline passed while the call waited for a context",
                    facts=[f"{len(self.line)} calls wait, {self._most} may run at once"],
                )
            place.wait(LOOK_S if token is None else LOOK_TO_STOP_S, until_s)

    def _all_from(self, number: int, place: PlaceInLine) -> Iterator[None]:
        """Yield once all contexts from a number on are held by the first in line."""
        if number == len(self._locks):
            yield
            return
        lock = self._locks[number]
        while True:
            for _ in taking_if_free(lock):
                try:
                    yield from self._all_from(number + 1, place)
                finally:
                    lock.release()
                return
            place.wait()

    def _head(self) -> PlaceInLine | None:
        """Return the first place in line that has a caller; drop those before it."""
        while True:
            try:
                first = self.line[0]
            except IndexError:
                return None
            place = first[2]()
            if place is not None:
                return place
            self._drop(first)

    def _drop(self, in_line: _InLine) -> None:
        with suppress(ValueError):  # another thread was faster
            self.line.remove(in_line)

    def _leave(self, in_line: _InLine) -> None:
        """Leave the line; the next one looks whether a context is free."""
        if in_line in self.line:
            self._drop(in_line)
            self.ring()

    def _leave_surely(self, in_line: _InLine) -> None:
        """Leave the line, though a signal comes; its traceback may keep the place alive."""
        try:
            self._leave(in_line)
        finally:
            self._leave(in_line)

    def ring(self) -> None:
        """Have the first in line look for a free context."""
        place = self._head()
        if place is not None:
            place.ring()

    def reset_after_fork(self) -> None:
        """Be free, in a forked child: the callers are threads of the parent."""
        self._threads.reset_after_fork()
        self._locks = [threading.Lock() for _ in range(self._most)]
        self.line: list[_InLine] = []
        self._arrivals = count()
        self.lock = self._locks[0]
        self.first = taking_if_free(self.lock)
