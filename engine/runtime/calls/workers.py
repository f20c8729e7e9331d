"""Threads that run the requests of a session, and what a session offers to make requests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from trireme.runtime.calls.queue import RequestQueue, Result, RunRequest
from trireme.support.errors import RunError
from trireme.support.forks import register_at_fork
from trireme.support.threads import start_thread
from trireme.support.timers import TIMERS, Timers

if TYPE_CHECKING:
    from trireme.support.dtypes import Array


_log = logging.getLogger(__name__)


def serve_on(serve: Callable[[], None]) -> None:
    """Serve until that returns, though what a thread runs may try to end the thread.

    A callback of a future that raises SystemExit does.
    """
    while True:
        try:
            return serve()
        except BaseException:
            _log.exception("%s was interrupted, and goes on", threading.current_thread().name)


class QueueRunner:
    """Threads that serve a queue, `threads` at most, started when they are first needed.

    name: of the threads
    """

    def __init__(self, queue: RequestQueue, threads: int, name: str) -> None:
        self.queue, self._most_threads, self._name = queue, threads, name
        self._under_way = set[RunRequest]()
        self.reset_after_fork()
        register_at_fork(self)

    def _serve_queue(self) -> None:
        """Run requests until the queue is closed."""
        raise NotImplementedError

    def _needs_thread(self) -> bool:
        """Whether one more thread has something to do. The caller holds `changed`."""
        raise NotImplementedError

    def _see_to(self, request: RunRequest) -> None:
        """Start a thread for a request that waits, where one is needed.

        Errors: RunError, if the first cannot be started; the request is cancelled then
        """
        try:
            if len(self._threads) < self._most_threads:
                self._start()
        except RunError:
            if not self._threads:
                request.cancel()
                raise
            _log.warning("%s works with fewer threads than it may", self.queue.what, exc_info=True)

    def _start(self) -> None:
        """Start one more thread, if it is needed. Errors: RunError"""
        with self.queue.changed:
            if len(self._threads) < self._most_threads and self._needs_thread():
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                start_thread(thread)
                self._threads.append(thread)

    def stop(self) -> None:
        """Refuse what waits; the threads end by themselves. A collector may call it anywhere."""
        self.queue.close()

    def _join(self) -> None:
        """Return when the threads have ended, but the caller's: a callback may run this."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def reset_after_fork(self) -> None:
        """Have no threads in a forked child; what was under way ends with an error there."""
        self._threads: list[threading.Thread] = []
        under_way, self._under_way = self._under_way, set()
        for request in under_way:
            request.reset_after_fork()

    def _serve(self) -> None:
        serve_on(self._serve_queue)


class RequestRunner(QueueRunner):
    """Runs requests, `workers` at once.

    It knows nothing of a session: a request that waits holds what it calls. So a session that is
    no longer used is collected, and closes its runner.
    """

    def __init__(self, max_queue: int, workers: int = 1, timers: Timers = TIMERS) -> None:
        queue = RequestQueue(max_queue, "the session", timers)
        super().__init__(queue, workers, "trireme-requests")

    def submit(
        self,
        call: Callable[[], Result],
        feeds: Mapping[str, Any],
        timeout_s: float | None,
        priority: int,
    ) -> RunRequest:
        """Return a request that waits for a worker.

        Errors: as RequestQueue.put; RunError, if the first worker cannot be started
        """
        request = self.queue.put(feeds, call, timeout_s=timeout_s, priority=priority)
        self._see_to(request)
        return request

    def close(self) -> None:
        """Refuse what waits, and return when no request runs."""
        self.stop()
        self._join()

    def reset_after_fork(self) -> None:
        """See QueueRunner."""
        self._idle = 0
        super().reset_after_fork()

    def _needs_thread(self) -> bool:
        return self._idle < self.queue.waiting

    def _serve_queue(self) -> None:
        while (request := self._take()) is not None:
            try:
                if request.begin(self.queue.timers.clock()):
                    self._under_way.add(request)
                    request.run()
            except BaseException as error:
                request.fail(error)  # nothing, if it is over
                raise
            finally:
                self._under_way.discard(request)
            del request  # the session that it holds may be collected

    def _take(self) -> RunRequest | None:
        changed = self.queue.changed
        with changed:
            self._idle += 1
            try:
                while not self.queue.is_closed:
                    if self.queue.waiting:
                        return self.queue.pop(self.queue.next_key(), 1)[0]
                    changed.wait()
            finally:
                self._idle -= 1
        return None


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
