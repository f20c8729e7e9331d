"""Call functions at their times, on one daemon thread that starts when it is first needed.

Deadlines of queued requests are such times: they must fire while every other thread works.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable

from trireme.support.cancel import Clock
from trireme.support.forks import register_at_fork
from trireme.support.threads import start_thread

_log = logging.getLogger(__name__)
_FEWEST_TO_SORT_OUT = 64


class Timer:
    """A function and its time; `cancel` keeps it from being called."""

    __slots__ = ("_timers", "call", "when_s")

    def __init__(self, timers: Timers, when_s: float, call: Callable[[], None]) -> None:
        self._timers, self.when_s = timers, when_s
        self.call: Callable[[], None] | None = call

    def __lt__(self, other: Timer) -> bool:
        return self.when_s < other.when_s

    def cancel(self) -> None:
        """Let the function go; nothing happens if it was called already."""
        if self.call is not None:
            self.call = None
            self._timers.forget_one()


class Timers:
    """Functions that wait for their times, by a clock.

    threaded: whether a thread calls them; else `fire` does, for tests with a clock of their own
    """

    def __init__(self, clock: Clock = time.monotonic, threaded: bool = True) -> None:
        self.clock, self._threaded = clock, threaded
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Start afresh: nothing waits."""
        self._heap: list[Timer] = []
        self._cancelled = 0
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Call `call`, which must be short, at a time of the clock, on another thread.

        Errors: RunError, if the thread cannot be started
        """
        timer = Timer(self, when_s, call)
        with self._wake:
            if self._threaded and self._thread is None:
                thread = threading.Thread(target=self._serve, name="trireme-timers", daemon=True)
                start_thread(thread)
                self._thread = thread
            heapq.heappush(self._heap, timer)
            if self._heap[0] is timer:
                self._wake.notify()
        return timer

    def forget_one(self) -> None:
        """Count a cancelled timer; take all of them out when most are."""
        with self._wake:
            self._cancelled += 1
            if self._cancelled > max(_FEWEST_TO_SORT_OUT, len(self._heap) // 2):
                self._heap = [timer for timer in self._heap if timer.call is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def fire(self) -> float | None:
        """Call what is due; return how many seconds the next one is away, None without one."""
        while True:
            with self._wake:
                while self._heap and self._heap[0].call is None:
                    heapq.heappop(self._heap)
                    self._cancelled = max(self._cancelled - 1, 0)
                if not self._heap:
                    return None
                left = self._heap[0].when_s - self.clock()
                if left > 0:
                    return left
                timer = heapq.heappop(self._heap)
                call, timer.call = timer.call, None
            try:
                if call is not None:
                    call()
            except Exception:
                _log.exception("a timer's function failed")

    def _serve(self) -> None:
        while True:
            left = self.fire()
            with self._wake:
                if left is None:
                    if not self._heap:
                        self._wake.wait()
                elif self._heap and (now_left := self._heap[0].when_s - self.clock()) > 0:
                    self._wake.wait(now_left)


TIMERS = Timers()
"""Those of the process."""
