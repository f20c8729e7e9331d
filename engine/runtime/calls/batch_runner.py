"""The workers of a batcher: they choose requests, join their inputs, run, and split the outputs.

It knows the session only by its `run`. A batcher that nobody holds is collected, and closes it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from trireme.runtime.calls.batch_rules import FittingFeeds
from trireme.runtime.calls.batch_statistics import BatchReport, BatchTally
from trireme.runtime.calls.queue import RequestLine, RequestQueue, Result, RunRequest
from trireme.runtime.calls.workers import QueueRunner
from trireme.support.cancel import CancelToken, working_for
from trireme.support.dtypes import Array
from trireme.support.errors import CancelledError, DeadlineError, TriremeError
from trireme.support.timers import Timers

_log = logging.getLogger(__name__)
_MOST_BUFFERS = 4
"""Shapes for which a worker keeps the memory of joined inputs."""
_BATCHES_TO_JUDGE = 32
"""Batches after which a batcher may warn that they do not pay."""


class BatchRunner(QueueRunner):
    """Runs requests in batches, on `workers` threads that start when they are first needed.

    run: of the session, which runs `at_once` calls at a time; names: of its inputs
    most: rows of a run
    """

    def __init__(
        self,
        run: Callable[[Mapping[str, Any]], Result],
        at_once: int,
        names: Sequence[str],
        most: int,
        preferred: Sequence[int],
        delay_s: float,
        max_queue: int,
        workers: int,
        on_batch: Callable[[BatchReport], None] | None,
        timers: Timers,
    ) -> None:
        self._run, self._at_once, self._names, self._most = run, at_once, names, most
        self._preferred, self._delay_s = preferred, delay_s
        self._on_batch, self.tally = on_batch, BatchTally()
        self._is_draining = self._is_judged = False
        queue = RequestQueue(max_queue, "the batcher", timers)
        super().__init__(queue, workers, "trireme-batches")

    def submit(self, fed: FittingFeeds, timeout_s: float | None, priority: int) -> RunRequest:
        """Return a request that waits for its batch.

        Errors: as RequestQueue.put; RunError, if the first worker cannot be started
        """
        request = self.queue.put(
            dict(zip(self._names, fed.arrays, strict=True)),
            timeout_s=timeout_s,
            priority=priority,
            key=fed.key,
            rows=fed.rows,
            ends_early=True,
        )
        self._see_to(request)
        self.tally.add("requests")
        request.add_done_callback(self._count_end)
        return request

    def close(self, drain: bool = False) -> None:
        """Take no requests, and return when nothing runs. drain: run what waits first"""
        changed = self.queue.changed
        with changed:
            self._is_draining = True
            changed.notify_all()
        if drain and threading.current_thread() not in self._threads:
            self._join()
        self.stop()
        self._join()

    def reset_after_fork(self) -> None:
        """See QueueRunner."""
        self.tally.reset_after_fork()
        super().reset_after_fork()

    def _needs_thread(self) -> bool:
        return not self._is_draining

    def _serve_queue(self) -> None:
        buffers = _Buffers(self._most)
        while requests := self._take():
            apart = len(requests) > 1 and self.tally.wants_apart(requests[0].key)
            try:
                self._run_batch(requests, None if apart else buffers)
            except BaseException as error:
                for request in requests:
                    request.fail(error)  # nothing, if it is over
                raise
            del requests

    def _take(self) -> list[RunRequest]:
        """Return the requests of the next batch; none when the queue is closed or drained."""
        queue = self.queue
        with queue.changed:
            while not queue.is_closed and (queue.waiting or not self._is_draining):
                now_s = queue.timers.clock()
                ready, wait_s = self._ready(now_s)
                if ready is not None:
                    taken = queue.pop(*ready)
                    self._under_way.update(taken)
                    if queue.waiting:
                        queue.changed.notify()  # another worker may have a batch, too
                    return taken
                queue.changed.wait(wait_s)
        return []

    def _ready(self, now_s: float) -> tuple[tuple[Hashable, int] | None, float | None]:
        """Return the key and rows of a batch that is to run now, and else how long to wait.

        Of several that are ready the one whose first request is next.
        """
        best: tuple[RunRequest, int] | None = None
        wait_s: float | None = None
        for line in self.queue.lines.values():
            first, oldest = line.first, line.oldest
            if first is None or oldest is None:
                continue
            rows = self._rows_now(line)
            left_s = oldest.arrived_s + self._delay_s - now_s
            if not rows and (left_s <= 0 or self._is_draining):
                rows = self._most
            if not rows:
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
            elif best is None or first < best[0]:
                best = first, rows
        return (None, wait_s) if best is None else ((best[0].key, best[1]), None)

    def _rows_now(self, line: RequestLine) -> int:
        """Return how many rows may run without waiting for more; 0 for none."""
        if line.rows >= self._most:
            return self._most
        first = line.first
        fitting = [rows for rows in self._preferred if rows <= line.rows]
        return fitting[-1] if fitting and first is not None and first.rows <= fitting[-1] else 0

    def _run_batch(self, requests: Sequence[RunRequest], buffers: _Buffers | None) -> None:
        """Run requests together, or apart where there are no buffers."""
        clock = self.queue.timers.clock
        begun_s = clock()
        fed = [(request, request.feeds) for request in requests]  # a request that ends has none
        fed = [(request, feeds) for request, feeds in fed if request.begin(begun_s)]
        begun = [request for request, _ in fed]
        try:
            if begun and buffers is None:
                self._run_apart(fed)
                rows = sum(request.rows for request in begun)
                self.tally.add_apart(begun[0].key, rows, clock() - begun_s)
            elif begun and buffers is not None:
                retried = self._run_begun(begun, [feeds for _, feeds in fed], buffers)
                self._report(begun, clock() - begun_s, retried)
        finally:
            self._under_way.difference_update(requests)

    def _run_apart(self, fed: Sequence[tuple[RunRequest, Mapping[str, Any]]]) -> None:
        """Run requests as without a batcher: each alone, as many at once as the session runs."""
        left = list(fed)

        def serve() -> None:
            while left:
                with suppress(IndexError):  # another thread was faster
                    request, feeds = left.pop(0)
                    begun_s = self.queue.timers.clock()
                    self._run_alone(request, feeds)
                    self._report([request], self.queue.timers.clock() - begun_s, False)

        threads = [threading.Thread(target=serve) for _ in range(min(self._at_once, len(fed)) - 1)]
        for thread in threads:
            thread.start()
        serve()
        for thread in threads:
            thread.join()

    def _run_begun(
        self,
        begun: Sequence[RunRequest],
        fed: Sequence[Mapping[str, Any]],
        buffers: _Buffers,
    ) -> bool:
        """Run requests together; return whether they had to run one by one."""
        try:
            with working_for(_SharedToken(begun)):
                results = self._run(buffers.joined(begun[0].key, fed))
        except BaseException as error:
            alone = len(begun) == 1 or isinstance(error, CancelledError | DeadlineError)
            if alone or not isinstance(error, Exception):
                for request in begun:
                    request.fail(error)
                return False
            _log.warning("a batch of %d requests failed, and runs one by one: %s", len(fed), error)
            self._run_singly(begun, fed)
            return True
        at = 0
        for request in begun:
            end = at + request.rows
            own = len(begun) > 1
            request.end({k: v[at:end].copy() if own else v for k, v in results.items()})
            at = end
        return False

    def _run_singly(self, begun: Sequence[RunRequest], fed: Sequence[Mapping[str, Any]]) -> None:
        """Run the requests of a failed batch one by one, so that only the culprits fail."""
        for request, feeds in zip(begun, fed, strict=True):
            self._run_alone(request, feeds, len(begun))

    def _run_alone(self, request: RunRequest, feeds: Mapping[str, Any], of: int = 1) -> None:
        """Run a request of so many that failed together, and end it."""
        try:
            with working_for(request.token):
                request.token.check()
                results = self._run(feeds)
        except BaseException as error:
            request.fail(error if of == 1 else _culprit(error, of))
        else:
            request.end(results)

    def _judge(self) -> None:
        """Warn once when batches take more time than the same rows alone."""
        told = self.tally.statistics()
        if sum(told.batches.values()) < _BATCHES_TO_JUDGE or told.gain is None:
            return
        self._is_judged = True
        if told.gain < 1.0:
            _log.warning(
                "batches do not pay: a row takes %.2f times as long in a batch as by itself; "
                "call the session without a batcher, or lower max_batch_size",
                1 / told.gain,
            )

    def _count_end(self, request: Any) -> None:
        error = request.exception(0)
        if error is not None:
            late = isinstance(error, DeadlineError)
            stopped = isinstance(error, CancelledError)
            self.tally.add("expired" if late else "cancelled" if stopped else "failed")

    def _report(self, requests: Sequence[RunRequest], run_s: float, retried: bool) -> None:
        waits = tuple(request.begun_s - request.arrived_s for request in requests)
        rows = sum(request.rows for request in requests)
        report = BatchReport(rows, len(requests), waits, run_s, retried)
        self.tally.add_batch(report, requests[0].key)
        if not self._is_judged:
            self._judge()
        if self._on_batch is not None:
            try:
                self._on_batch(report)
            except Exception:
                _log.exception("on_batch failed")


class _SharedToken(CancelToken):
    """Stops a batch when every one of its requests is over."""

    __slots__ = ("_requests",)

    def __init__(self, requests: Sequence[RunRequest]) -> None:
        super().__init__()
        self._requests = requests

    def check(self) -> None:
        if all(request.done() for request in self._requests):
            raise CancelledError("all requests of the batch are over")


class _Buffers:
    """Memory for joined inputs, used again: fresh memory costs a page fault every 4 KiB."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, dict[str, Array]] = OrderedDict()

    def joined(self, key: Hashable, fed: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
        """Return the inputs of one run. They are valid until the next call."""
        if len(fed) == 1:
            return fed[0]
        kept = self._kept.setdefault(key, {})
        self._kept.move_to_end(key)
        if len(self._kept) > _MOST_BUFFERS:
            self._kept.popitem(last=False)
        return {name: self._join(kept, name, [one[name] for one in fed]) for name in fed[0]}

    def _join(self, kept: dict[str, Array], name: str, arrays: Sequence[Array]) -> Array:
        first = arrays[0]
        if first.dtype == object:
            return np.concatenate(arrays)
        if name not in kept:
            kept[name] = np.empty((self._most, *first.shape[1:]), first.dtype)
        rows = sum(len(array) for array in arrays)
        return np.concatenate(arrays, out=kept[name][:rows])


def _culprit(error: BaseException, requests: int) -> BaseException:
    """Return the error of a request that failed in its batch and alone."""
    if not isinstance(error, TriremeError) or isinstance(error, CancelledError | DeadlineError):
        return error
    fact = f"the request failed in a batch of {requests}, and by itself"
    named = type(error)(error.summary, facts=(*error.facts, fact), fix=error.fix)
    named.__cause__ = error
    return named.of_device(error.device)
