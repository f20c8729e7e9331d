"""A bounded queue of requests, by priority and then in the order of arrival.

Its limit is exact: it counts the requests that wait, not the cancelled or expired ones. A deadline
fires at its time, whatever the workers do.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import count
from typing import Any

from trireme.runtime.requests.request import Result, RunRequest
from trireme.support.cancel import CancelToken, checked_timeout
from trireme.support.errors import QueueFullError, RunError
from trireme.support.forks import register_at_fork
from trireme.support.timers import TIMERS, Timers

_FEWEST_TO_SORT_OUT = 64


class RequestLine:
    """The requests of one key that wait. Those that left are let go of later.

    rows: how many rows the waiting ones have
    """

    def __init__(self) -> None:
        self._heap: list[RunRequest] = []
        self._arrivals: deque[RunRequest] = deque()
        self.rows = 0

    def add(self, request: RunRequest) -> None:
        """Append a request."""
        heapq.heappush(self._heap, request)
        self._arrivals.append(request)
        self.rows += request.rows

    @property
    def first(self) -> RunRequest | None:
        """The request that is next."""
        while self._heap and not self._heap[0].is_queued:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    @property
    def oldest(self) -> RunRequest | None:
        """The request that has waited for longest."""
        while self._arrivals and not self._arrivals[0].is_queued:
            self._arrivals.popleft()
        return self._arrivals[0] if self._arrivals else None

    def sort_out(self) -> None:
        """Let go of the requests that left."""
        self._heap = [one for one in self._heap if one.is_queued]
        heapq.heapify(self._heap)
        self._arrivals = deque(one for one in self._arrivals if one.is_queued)

    def __iter__(self) -> Iterator[RunRequest]:
        return (one for one in self._heap if one.is_queued)


class RequestQueue:
    """Requests that wait; each key has a line of its own.

    most: how many may wait; what: whose queue it is, for errors
    lines: those with requests, by key; the reader holds `changed`
    changed: is notified when a request comes and when the queue closes
    """

    def __init__(self, most: int, what: str, timers: Timers = TIMERS) -> None:
        self.most, self.what, self.timers = most, what, timers
        self.lines: dict[Hashable, RequestLine] = {}
        self._number, self._gone = count(), 0
        self.waiting = 0
        self.is_closed = False
        self.changed = threading.Condition()
        register_at_fork(self)

    def put(
        self,
        feeds: Mapping[str, Any],
        call: Callable[[], Result] | None = None,
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        key: Hashable = None,
        rows: int = 1,
        ends_early: bool = False,
    ) -> RunRequest:
        """Return a new request, which waits.

        timeout_s: it is refused, or stopped, so many seconds from now; priority: larger ones first
        ends_early: see RunRequest
        Errors: RunError, for a wrong argument or a closed queue; QueueFullError
        """
        timeout_s, priority = checked_timeout(timeout_s), _checked_priority(priority)
        clock = self.timers.clock
        token = CancelToken(timeout_s, clock)
        with self.changed:
            if self.is_closed:
                raise RunError(f"{self.what} is closed")
            if self.waiting >= self.most:
                raise QueueFullError(
                    f"the queue of {self.what} is full: {self.waiting} requests wait",
                    fix="send it again later, or raise max_queue",
                )
            order = (-priority, next(self._number))
            request = RunRequest(self, feeds, token, order, clock(), call, key, rows, ends_early)
            if token.deadline_s is not None:  # first: it may start a thread, which may fail
                request.timer = self.timers.at(token.deadline_s, lambda: self._expire(request))
            self.lines.setdefault(key, RequestLine()).add(request)
            self.waiting += 1
            self.changed.notify()
        return request

    def withdraw(self, request: RunRequest) -> bool:
        """Take a request out, if it still waits; say whether it did."""
        with self.changed:
            if not request.is_queued:
                return False
            self._take(request, self.lines[request.key])
            self._gone += 1
            if self._gone > max(_FEWEST_TO_SORT_OUT, self.waiting):
                for line in self.lines.values():
                    line.sort_out()
                self._gone = 0
            return True

    def next_key(self) -> Hashable:
        """Return the key of the request that is next, among those that wait. Hold `changed`."""
        firsts = (line.first for line in self.lines.values())
        return min(one for one in firsts if one is not None).key

    def pop(self, key: Hashable, most_rows: int) -> list[RunRequest]:
        """Take out the next requests of a key, as many as have so many rows. Hold `changed`."""
        line, taken, rows = self.lines[key], list[RunRequest](), 0
        while (first := line.first) is not None and rows + first.rows <= most_rows:
            self._take(first, line)
            rows += first.rows
            taken.append(first)
        return taken

    def close(self) -> None:
        """Refuse those that wait, and take no others."""
        with self.changed:
            self.is_closed = True
            waiting = [one for line in self.lines.values() for one in line]
            for request in waiting:
                request.is_queued = False
            self.lines.clear()
            self.waiting = 0
            self.changed.notify_all()
        for request in sorted(waiting):
            request.fail(RunError(f"{self.what} was closed before the request ran"))

    def reset_after_fork(self) -> None:
        """Be empty in a forked child."""
        self.changed = threading.Condition()
        waiting = [one for line in self.lines.values() for one in line]
        self.lines, self.waiting, self._gone = {}, 0, 0
        for request in sorted(waiting):
            request.is_queued = False
            request.reset_after_fork()

    def _take(self, request: RunRequest, line: RequestLine) -> None:
        request.is_queued = False
        self.waiting -= 1
        line.rows -= request.rows
        if not line.rows:
            del self.lines[request.key]

    def _expire(self, request: RunRequest) -> None:
        if self.withdraw(request):
            request.refuse_late()
        else:
            request.expire()


def _checked_priority(priority: object) -> int:
    """Return a priority. Errors: RunError, if it is no whole number"""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RunError(f"priority is {priority!r}, expected a whole number")
    return priority
