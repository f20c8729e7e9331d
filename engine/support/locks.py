"""A lock that is quick to take and that no signal can leave taken.

Python handles signals after a call. So a handler that raises (Ctrl-C does) may run between
`lock.acquire()` and the `try` that follows. Then the lock is taken for good, and the next run or
`close` waits for ever. A `with` statement avoids this but takes 0.1 us longer, a fiftieth of a run
of the smallest networks. The step of a `for` is no call either, and is as quick as `acquire`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

_LONGEST_S = 1e6
"""A lock takes no longer timeouts."""


def taking(lock: threading.Lock) -> Iterator[bool]:
    """Return an endless iterator that takes the lock at every step.

    for _ in taken:  # taken = taking(lock), made once
        try:
            return ...
        finally:
            lock.release()
    """
    return iter(lock.acquire, None)


def taking_if_free(lock: threading.Lock) -> Iterator[bool]:
    """Return an iterator that takes the lock at every step, and ends for good where it is taken."""
    return iter(partial(lock.acquire, False), False)


class Latch:
    """Closed until somebody opens it, once and for good; any number of threads may wait.

    is_open: whether it was opened

    A threading.Event does not do where the main thread waits: a signal handler that raises in its
    `wait` leaves its inner lock taken, and the thread that sets the event waits for that for ever.
    """

    __slots__ = ("_closed", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def open(self) -> None:
        """Make all waits return, later ones too."""
        self.is_open = True
        self._closed.release()

    def wait_for(self, most_s: float) -> bool:
        """Return True when the latch is open, False after so many seconds."""
        for is_taken in iter(partial(self._closed.acquire, timeout=min(most_s, _LONGEST_S)), None):
            if is_taken:
                self._closed.release()
            return is_taken
        return False

    def wait(self) -> None:
        """Return when the latch is open."""
        for _ in taking(self._closed):
            self._closed.release()
            return
