"""A request: the future of a run that waits in a queue, then runs, and may be stopped.

A queued request that is cancelled, or whose deadline passes, never runs. A running one stops at its
next task boundary (support/cancel.py).
"""

from __future__ import annotations

import concurrent.futures
import logging
import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from trireme.support.cancel import CancelToken, deadline_passed, working_for
from trireme.support.errors import CancelledError, InternalError, RunError

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
