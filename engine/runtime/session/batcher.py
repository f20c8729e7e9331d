"""Gather requests into batches: one run for many callers.

    batcher = trireme.Batcher(session, max_batch_size=16, max_queue_delay_us=500)
    scores = batcher.submit({"image": image}).result()

Requests of equal shapes, the first axis aside, share a run. A worker takes a batch when it is full
or has a preferred size, or when its oldest request has waited for the delay.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trireme.runtime.calls.batch_rules import BatchEvidence, BatchRules
from trireme.runtime.calls.batch_runner import BatchRunner
from trireme.runtime.calls.batch_statistics import BatchReport, BatchStatistics
from trireme.runtime.calls.queue import RunRequest
from trireme.support.arguments import checked, later_names
from trireme.support.closing import Closing
from trireme.support.errors import RunError
from trireme.support.timers import TIMERS, Timers

if TYPE_CHECKING:
    from trireme.runtime.session.session import Session
    from trireme.support.dtypes import Array


__getattr__ = later_names(
    __name__, {"Array": "trireme.support.dtypes", "Session": "trireme.runtime.session.session"}
)
OnBatch = Callable[[BatchReport], None]


class Batcher(Closing):
    """Runs requests of many callers in batches, on a session whose first dimension is open.

    session: has one open first dimension in all inputs and outputs: shapes={"x": ("batch", 3)}
    max_batch_size: the most rows of a run
    preferred: numbers of rows that run at once, without waiting for more
    max_queue_delay_us: how long a request waits for others when a worker is free; 0 runs what there
        is. A request waits longer only while all workers are at work
    max_queue: how many requests may wait; a further one is a QueueFullError
    timeout_us: the deadline of a request from its arrival on, where it names none; None for no end
    workers: how many runs may be under way at once
    probe: feeds of two rows that differ, to check the model with; random ones when None
    on_batch: is called after each run, on a worker
    timers: the clock of deadlines and delays, for tests
    evidence: why requests may share a run
    Errors: RunError, if the model cannot run batches, or an argument is wrong
    """

    @checked(RunError)
    def __init__(
        self,
        session: Session,
        max_batch_size: int,
        *,
        preferred: Sequence[int] = (),
        max_queue_delay_us: float = 0,
        max_queue: int = 1024,
        timeout_us: float | None = None,
        workers: int = 1,
        probe: Mapping[str, Any] | None = None,
        on_batch: OnBatch | None = None,
        timers: Timers = TIMERS,
    ) -> None:
        _check_least(max_batch_size=max_batch_size, max_queue=max_queue, workers=workers)
        if any(not 1 <= rows <= max_batch_size for rows in preferred):
            raise RunError(f"preferred is {list(preferred)}, expected 1 to {max_batch_size} rows")
        if not max_queue_delay_us >= 0:
            raise RunError(f"max_queue_delay_us is {max_queue_delay_us}, expected 0 or more")
        if session.states.types:
            names = ", ".join(session.states.types)
            raise RunError(f"requests cannot form batches: they would share the states {names}")
        self._timeout_s = None if timeout_us is None else timeout_us * 1e-6
        rules = BatchRules(session.graph)
        if rules.most is not None and rules.most < max_batch_size:
            raise RunError(
                f"max_batch_size is {max_batch_size}, and {rules.symbol} is at most {rules.most}"
            )
        self.evidence: BatchEvidence = rules.evidence(session.run, probe)
        self._rules, self.max_batch_size = rules, max_batch_size
        self._runner = BatchRunner(
            run=session.run,
            at_once=session.contexts,
            names=[value.name for value in rules.inputs],
            most=max_batch_size,
            preferred=sorted(preferred),
            delay_s=max_queue_delay_us * 1e-6,
            max_queue=max_queue,
            workers=workers,
            on_batch=on_batch,
            timers=timers,
        )
        weakref.finalize(self, self._runner.stop).atexit = False

    def submit(
        self,
        feeds: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> RunRequest:
        """Return a future of the outputs of one request, which has one or more rows.

        The feeds are checked here, so a wrong one harms nobody else. A request that is cancelled or
        whose deadline passes ends at once; its batch goes on for the others. Leave the arrays alone
        until the request is over. The outputs are the caller's own.

        timeout_s: seconds until the deadline, instead of `timeout_us`
        priority: requests of larger ones run first; those of equal ones in the order of arrival
        Errors: RunError, if the feeds do not fit or the batcher is closed; QueueFullError. All
        other errors are the future's
        """
        runner = self._runner
        try:
            fitting = self._rules.fitting(feeds, self.max_batch_size)
            return runner.submit(
                fitting, self._timeout_s if timeout_s is None else timeout_s, priority
            )
        except RunError:
            runner.tally.add("refused")
            raise

    def run(
        self,
        feeds: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> dict[str, Array]:
        """Return the outputs of one request. Errors: those of `submit` and of its future"""
        request = self.submit(feeds, timeout_s=timeout_s, priority=priority)
        try:
            return request.result()
        except BaseException:  # an interrupt, or the request's own error
            request.cancel()
            raise

    async def arun(
        self,
        feeds: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> dict[str, Array]:
        """Return the outputs of one request while the event loop goes on. Errors: as `run`"""
        import asyncio

        request = self.submit(feeds, timeout_s=timeout_s, priority=priority)
        return await asyncio.wrap_future(request)

    @property
    def statistics(self) -> BatchStatistics:
        """What the batcher did since it began."""
        return self._runner.tally.statistics()

    @property
    def waiting(self) -> int:
        """How many requests wait now."""
        return self._runner.queue.waiting

    def close(self, *, drain: bool = False) -> None:
        """Take no further requests; return when nothing runs. The session stays open.

        drain: run what waits; else it ends with a RunError
        """
        self._runner.close(drain)


def _check_least(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise RunError(f"{name} is {number}, expected at least 1")
