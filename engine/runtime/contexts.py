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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import NamedTuple
from weakref import ref

from trireme.support.cancel import current_token
from trireme.support.errors import DeadlineError, RunError
from trireme.support.locks import taking_if_free

_LOOK_S = 0.25
"""Seconds after which a caller in line looks by itself. A signal may have cost it its call."""
_LOOK_TO_STOP_S = 0.02
"""The same of a caller that may have to stop."""


MOST = 64
"""Contexts of a session: the calls that run at once on the threads of a cpu device."""


class ContextCount(NamedTuple):
    """How many calls run at once, and a sentence on the reason."""

    most: int
    why: str


def checked_contexts(asked: object) -> int | None:
    """Return the contexts that a session was asked for. Errors: RunError, for no such number"""
    if asked is None:
        return None
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= MOST:
        raise RunError(f"contexts is {asked!r}, expected a whole number from 1 to {MOST}, or None")
    return asked


class _Place:
    """The place of a caller in line: an alarm clock that a free context rings."""

    __slots__ = ("__weakref__", "_bell")

    def __init__(self) -> None:
        self._bell = threading.Lock()
        self._bell.acquire()

    def wait(self, most_s: float = _LOOK_S, deadline_s: float | None = None) -> None:
        """Return when the bell rang, after a while, or at a deadline of time.monotonic."""
        left = most_s if deadline_s is None else min(most_s, deadline_s - time.monotonic())
        if left > 0:
            self._bell.acquire(timeout=left)

    def ring(self) -> None:
        """Have `wait` return."""
        with suppress(RuntimeError):  # it rings already
            self._bell.release()


_InLine = tuple[int, int, ref[_Place]]


class ContextQueue:
    """The contexts of a session by number, and the callers that wait for one.

    line: those that wait, the first first: priority below 0, number of arrival, place
    lock: of context 0; first: takes it if it is free: for _ in queue.first
    """

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self.reset_after_fork()

    @property
    def most(self) -> int:
        """The number of contexts: so many calls run at once."""
        return self._most

    def widen(self, most: int) -> None:
        """Have so many contexts, if they are more than before."""
        self._most = max(self._most, most)
        self._locks.extend(threading.Lock() for _ in range(self._most - len(self._locks)))

    def hold(self, priority: int = 0, deadline_s: float | None = None) -> Iterator[int]:
        """Yield the number of a context that the caller has until the `for` ends.

            for number in queue.hold():
                ...

        priority: a higher one goes first; first in, first out within one
        deadline_s: when waiting ends, by time.monotonic
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
                        self.release(lock)
                    return
        place = _Place()
        in_line = -priority, next(self._arrivals), ref(place)
        try:
            insort(self.line, in_line)
            yield from self._first_free(place, in_line, deadline_s)
        finally:
            self._leave_surely(in_line)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold all contexts in the block; callers that came before are served before."""
        place = _Place()
        in_line = 0, next(self._arrivals), ref(place)
        try:
            insort(self.line, in_line)
            while self._head() is not place:
                place.wait()
            yield from self._all_from(0, place)
        finally:
            self._leave_surely(in_line)

    def release(self, lock: threading.Lock) -> None:
        """Give a context back, for the first in line."""
        lock.release()
        if self.line:
            self.ring()

    def _first_free(
        self, place: _Place, in_line: _InLine, deadline_s: float | None
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
                            self.release(lock)
                        return
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise DeadlineError(
                    "the deadline passed while the call waited for a context",
                    facts=[f"{len(self.line)} calls wait, {self._most} may run at once"],
                )
            place.wait(_LOOK_S if token is None else _LOOK_TO_STOP_S, until_s)

    def _all_from(self, number: int, place: _Place) -> Iterator[None]:
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

    def _head(self) -> _Place | None:
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
        self._locks = [threading.Lock() for _ in range(self._most)]
        self.line: list[_InLine] = []
        self._arrivals = count()
        self.lock = self._locks[0]
        self.first = taking_if_free(self.lock)
