"""What a session offers beside `run`: requests that wait, have deadlines and can be cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trireme.runtime.requests.request import RunRequest
    from trireme.runtime.requests.workers import RequestRunner
    from trireme.support.dtypes import Array

MAX_QUEUE = 1024
"""Requests that may wait where the options do not say how many."""
_WARM_RUNS = 40
"""Runs after which choices are made: of threads after 32, of executors after 16."""


class SessionRequests:
    """The requests of a session; threads that run them start with the first.

    max_queue: how many requests may wait; closing: is closed with the session
    """

    def __init__(self, max_queue: int, closing: ExitStack) -> None:
        self._max_queue, self._closing = max_queue, closing
        self._runner: RequestRunner | None = None

    def submit(
        self,
        workers: int,
        call: Callable[[], dict[str, Array]],
        feeds: Mapping[str, Any],
        timeout_s: float | None,
        priority: int,
    ) -> RunRequest:
        """Return the future of a call. workers: most threads that run requests at once"""
        runner = self._runner
        if runner is None:
            from trireme.runtime.requests.workers import RequestRunner

            runner = RequestRunner(self._max_queue, workers)
            runner = self._runner = vars(self).setdefault("_first", runner)  # of several callers
            self._closing.callback(runner.stop)
        return runner.submit(call, feeds, timeout_s, priority)

    def close(self) -> None:
        """Refuse requests that wait, and return when none runs."""
        if self._runner is not None:
            self._runner.close()


def warm_up(run: Callable[[], object], most_s: float) -> int:
    """Run until choices are made, or no further run may begin; return how often."""
    begun, runs = time.monotonic(), 0
    while runs < _WARM_RUNS and (not runs or time.monotonic() - begun < most_s):
        run()
        runs += 1
    return runs
