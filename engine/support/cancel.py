"""Stop a run that somebody cancelled, or whose deadline has passed.

A run has a token. Code that works for long calls `check_cancelled` between two steps: between
tasks, turns of a loop and nodes on the host, and every 20 ms of native code. The token of a run is
an attribute of its thread, so no layer between hands it on. A thread without a token pays about
50 ns a call.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trireme.support.errors import CancelledError, DeadlineError, RunError

Clock = Callable[[], float]


class CancelToken:
    """Says whether a run has to stop; any thread may cancel it.

    deadline_s: when the run has to be over, by `clock`; None for no end
    timeout_s: how long that was at first, for the error
    around: the token of a run that this one is a part of, which stops it too
    """

    __slots__ = ("_around", "_clock", "_is_cancelled", "deadline_s", "timeout_s")

    def __init__(
        self,
        timeout_s: float | None = None,
        clock: Clock = time.monotonic,
        around: CancelToken | None = None,
    ) -> None:
        self.timeout_s, self._clock, self._is_cancelled = timeout_s, clock, False
        self.deadline_s, self._around = None if timeout_s is None else clock() + timeout_s, around

    def cancel(self) -> None:
        """Make the run stop at its next check."""
        self._is_cancelled = True

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline_s is not None and self._clock() >= self.deadline_s

    def check(self) -> None:
        """Raise CancelledError after `cancel`, and DeadlineError after the deadline."""
        if self._around is not None:
            self._around.check()
        if self._is_cancelled:
            raise CancelledError("the request was cancelled")
        if self.is_late:
            raise deadline_passed(self.timeout_s or 0.0, "it was running")


def deadline_passed(timeout_s: float, while_: str) -> DeadlineError:
    """Return the error of a request that had so long, and did not end in time.

    while_: what the request did at its deadline
    """
    return DeadlineError(
        f"the request did not end within {timeout_s:g} s", facts=[f"at its deadline {while_}"]
    )


class _Here(threading.local):
    token: CancelToken | None = None


_HERE = _Here()


def current_token() -> CancelToken | None:
    """Return the token of the run that this thread works for; None where nobody can cancel it."""
    return _HERE.token


def check_cancelled() -> None:
    """Raise CancelledError or DeadlineError if the run of this thread has to stop."""
    token = _HERE.token
    if token is not None:
        token.check()


@contextmanager
def working_for(token: CancelToken | None) -> Iterator[None]:
    """Make this thread work for the run of a token in the block."""
    before, _HERE.token = _HERE.token, token
    try:
        yield
    finally:
        _HERE.token = before


def checked_timeout(timeout_s: object) -> float | None:
    """Return seconds until a deadline. Errors: RunError, if they are no number from 0 on"""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise RunError(f"timeout_s is a {type(timeout_s).__name__}, expected seconds or None")
    if not 0 <= timeout_s < math.inf:
        raise RunError(f"timeout_s is {timeout_s}, expected seconds from 0 on or None")
    return float(timeout_s)
