"""A bounded queue of requests, by priority and then in the order of arrival.

Its limit is exact: it counts the requests that wait, not the cancelled or expired ones. A deadline
fires at its time, whatever the workers do.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Hashable, Mapping
from itertools import count
from typing import Any

from trireme.runtime.requests.checks import checked_priority, checked_timeout
from trireme.runtime.requests.request import Result, RunRequest
from trireme.support.cancel import CancelToken
from trireme.support.errors import QueueFullError, RunError
from trireme.support.forks import register_at_fork
from trireme.support.timers import TIMERS, Timers

_FEWEST_TO_SORT_OUT = 64


class RequestQueue:
    """Requests that wait; each key has a line of its own.

    most: how many may wait; what: whose queue it is, for errors
    changed: is notified when a request comes and when the queue closes
    """

    def __init__(self, most: int, what: str, timers: Timers = TIMERS) -> None:
        self.most, self._what, self.timers = most, what, timers
        self._lines: dict[Hashable, list[RunRequest]] = {}
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
    ) -> RunRequest:
        """Return a new request, which waits.

        timeout_s: it is refused, or stopped, so many seconds from now; priority: larger ones first
        Errors: RunError, for a wrong argument or a closed queue; QueueFullError
        """
        timeout_s, priority = checked_timeout(timeout_s), checked_priority(priority)
        clock = self.timers.clock
        token = CancelToken(timeout_s, clock)
        with self.changed:
            if self.is_closed:
                raise RunError(f"{self._what} is closed")
            if self.waiting >= self.most:
                raise QueueFullError(
                    f"the queue of {self._what} is full: {self.waiting} requests wait",
                    fix="send it again later, or raise max_queue",
                )
            order = (-priority, next(self._number))
            request = RunRequest(self, feeds, token, order, clock(), call, key)
            heapq.heappush(self._lines.setdefault(key, []), request)
            self.waiting += 1
            if token.deadline_s is not None:
                request.timer = self.timers.at(token.deadline_s, lambda: self._expire(request))
            self.changed.notify()
        return request

    def withdraw(self, request: RunRequest) -> bool:
        """Take a request out, if it still waits; say whether it did."""
        with self.changed:
            if not request.is_queued:
                return False
            request.is_queued = False
            self.waiting -= 1
            self._gone += 1
            if self._gone > max(_FEWEST_TO_SORT_OUT, self.waiting):
                self._sort_out()
            return True

    def head(self) -> RunRequest | None:
        """Return the request that is next, None where none waits. The caller holds `changed`."""
        firsts = []
        for key in list(self._lines):
            line = self._lines[key]
            while line and not line[0].is_queued:
                heapq.heappop(line)
                self._gone -= 1
            if line:
                firsts.append(line[0])
            else:
                del self._lines[key]
        return min(firsts, default=None)

    def pop(self, key: Hashable, most: int) -> list[RunRequest]:
        """Take out the next requests of a key. The caller holds `changed`."""
        line, taken = self._lines.get(key, []), list[RunRequest]()
        while line and len(taken) < most:
            request = heapq.heappop(line)
            if request.is_queued:
                request.is_queued = False
                self.waiting -= 1
                taken.append(request)
            else:
                self._gone -= 1
        return taken

    def length(self, key: Hashable) -> int:
        """Return how many requests of a key wait. The caller holds `changed`."""
        return sum(request.is_queued for request in self._lines.get(key, ()))

    def close(self) -> None:
        """Refuse those that wait, and take no others."""
        with self.changed:
            self.is_closed = True
            waiting = [one for line in self._lines.values() for one in line if one.is_queued]
            for request in waiting:
                request.is_queued = False
            self._lines.clear()
            self.waiting = 0
            self.changed.notify_all()
        for request in sorted(waiting):
            request.refuse(RunError(f"{self._what} was closed before the request ran"))

    def reset_after_fork(self) -> None:
        """Be empty in a forked child."""
        self.changed = threading.Condition()
        lines, self._lines, self.waiting, self._gone = self._lines, {}, 0, 0
        for request in sorted(one for line in lines.values() for one in line):
            if request.is_queued:
                request.is_queued = False
                request.reset_after_fork()

    def _expire(self, request: RunRequest) -> None:
        if self.withdraw(request):
            request.refuse_late()

    def _sort_out(self) -> None:
        """Let go of the requests that are no longer in the queue."""
        for key, line in list(self._lines.items()):
            self._lines[key] = [one for one in line if one.is_queued]
            heapq.heapify(self._lines[key])
        self._gone = 0
