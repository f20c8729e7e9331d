"""Requests: futures of runs that may be cancelled, and the bounded queue in which they wait."""

from __future__ import annotations

import concurrent.futures
import heapq
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from trireme.support.cancel import CancelToken, checked_timeout, deadline_passed, working_for
from trireme.support.errors import CancelledError, InternalError, QueueFullError, RunError
from trireme.support.forks import register_at_fork
from trireme.support.timers import TIMERS, Timers

if TYPE_CHECKING:
    from trireme.support.dtypes import Array
    from trireme.support.timers import Timer


_log = logging.getLogger(__name__)
Result = dict[str, "Array"]


class RequestCancelled(CancelledError, concurrent.futures.CancelledError):
    """A request was cancelled: an error of trireme's, and of concurrent.futures."""


class _Holder(Protocol):
    """What holds queued requests."""

    def withdraw(self, request: RunRequest) -> bool:
        """Take a request out, if it still waits; say whether it did."""


class RunRequest(concurrent.futures.Future[Result]):
    """A run that was asked for; `result()` waits for its outputs.

    feeds: the inputs by name; order: requests of lower orders run first
    key: requests of equal keys may form a batch; rows: what it has of a batch
    ends_early: a running request ends as soon as it is cancelled or late, and what it began goes on
    arrived_s, begun_s: when it came and when it began, by the clock of its queue
    """

    def __init__(
        self,
        holder: _Holder,
        feeds: Mapping[str, Any],
        token: CancelToken,
        order: tuple[int, int],
        arrived_s: float,
        call: Callable[[], Result] | None = None,
        key: Hashable = None,
        rows: int = 1,
        ends_early: bool = False,
    ) -> None:
        super().__init__()
        self._holder, self.feeds, self.token = holder, feeds, token
        self.order, self.arrived_s, self.call, self.key = order, arrived_s, call, key
        self.rows, self._ends_early = rows, ends_early
        self.begun_s = math.inf
        self.is_queued, self._is_ending = True, False
        self.timer: Timer | None = None

    def __lt__(self, other: RunRequest) -> bool:
        return self.order < other.order

    def cancel(self) -> bool:
        """Have the request not run, or stop at its next task boundary.

        Return False if it is over already. A cancelled request's `result` raises RequestCancelled.
        """
        if self._holder.withdraw(self):
            super().cancel()
            self.set_running_or_notify_cancel()
            self.release()
            return True
        with self._condition:
            if self._is_ending or self.done():
                return False
            self.token.cancel()
        if self._ends_early:
            self.fail(CancelledError("the request was cancelled"))
        return True

    def expire(self) -> None:
        """End a running request at its deadline, where it may end before its run."""
        if self._ends_early:
            self.fail(deadline_passed(self.token.timeout_s or 0.0, "it was running"))

    def cancelled(self) -> bool:
        """Whether the request ended because it was cancelled."""
        if super().cancelled():
            return True
        return self.done() and isinstance(super().exception(), CancelledError)

    def result(self, timeout: float | None = None) -> Result:
        """Return the outputs by name; wait for them.

        Errors: those of `Session.run`; RequestCancelled, DeadlineError; TimeoutError, if the
        request is not over after `timeout` seconds
        """
        try:
            return super().result(timeout)
        except concurrent.futures.CancelledError as error:
            raise _cancelled(error) from None
        except CancelledError as error:
            raise _cancelled(error) from error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the request, None where it has outputs; wait for it."""
        try:
            error = super().exception(timeout)
        except concurrent.futures.CancelledError as cancelled:
            return _cancelled(cancelled)
        return _cancelled(error) if isinstance(error, CancelledError) else error

    def begin(self, now_s: float) -> bool:
        """Note that the request, which is out of the queue, runs; False where it is too late."""
        self.begun_s = now_s
        if self.token.is_late:
            self.refuse_late()
            return False
        with self._condition:
            return not self._is_ending and self.set_running_or_notify_cancel()

    def run(self) -> None:
        """Run; keep what comes of it. A result after the deadline is none."""
        try:
            if self.call is None:
                raise InternalError("a request has nothing to run")
            with working_for(self.token):
                self.token.check()
                result = self.call()
        except BaseException as error:
            self.fail(error)
        else:
            self.end(result)

    def end(self, result: Result) -> None:
        """Keep the outputs of a running request unless it has to stop; wake who waits."""
        try:
            with self._condition:
                if self._is_ending:
                    return
                self.token.check()
                self._is_ending = True
        except RunError as error:
            self.fail(error)
        else:
            self.release()
            with _callbacks_that_exit():
                self.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Keep the error of a request, unless it ended before; wake who waits."""
        with self._condition:
            if self._is_ending:
                return
            self._is_ending = True
        self.release()
        with _callbacks_that_exit():
            self.set_exception(error)

    def refuse_late(self) -> None:
        """End a request whose deadline passed while it waited."""
        self.fail(deadline_passed(self.token.timeout_s or 0.0, "it waited in the queue"))

    def release(self) -> None:
        """Let go of the inputs and the timer."""
        self.feeds, self.call = {}, None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def reset_after_fork(self) -> None:
        """End in a forked child, where nothing runs it: locks of the parent are replaced."""
        self._condition = threading.Condition()
        if not self.done():
            self.timer = None
            error = RunError("the process forked: the request runs in the parent alone")
            self.fail(error)


@contextmanager
def _callbacks_that_exit() -> Iterator[None]:
    """Have a callback of a future that raises SystemExit end nothing but itself."""
    try:
        yield
    except SystemExit:
        _log.warning("a callback of a request raised SystemExit, which is ignored", exc_info=True)


def _cancelled(error: BaseException) -> RequestCancelled:
    if isinstance(error, RequestCancelled):
        return error
    if isinstance(error, CancelledError):
        return RequestCancelled(error.summary, facts=error.facts)
    return RequestCancelled("the request was cancelled before it ran")


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
