"""What a session offers beside `run`: requests that wait, have deadlines and can be cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from trireme.support.arguments import checked, later_names
from trireme.support.errors import RunError

if TYPE_CHECKING:
    from trireme.ir.graph import Value
    from trireme.runtime.contexts import ContextCount
    from trireme.runtime.requests.bound_run import BoundRun, MovingIO
    from trireme.runtime.requests.request import RunRequest
    from trireme.runtime.requests.workers import RequestRunner
    from trireme.support.dtypes import Array

__getattr__ = later_names(
    __name__,
    {
        "Array": "trireme.support.dtypes",
        "BoundRun": "trireme.runtime.requests.bound_run",
        "RunRequest": "trireme.runtime.requests.request",
    },
)

MAX_QUEUE = 1024
"""Requests that may wait where the options do not say how many."""
_WARM_RUNS = 40
"""Runs after which choices are made: of threads after 32, of executors after 16."""


class TakesRequests:
    """Adds requests to a session.

    _closing: is closed with the session; _max_queue: how many requests may wait
    """

    _closing: ExitStack
    _requests: RequestRunner | None = None

    def run(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None = None,
        signature: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Array]:
        """See ProgramSession."""
        raise NotImplementedError

    @property
    def _max_queue(self) -> int:
        return MAX_QUEUE

    def _counted(self) -> ContextCount:
        """How many calls run at once."""
        raise NotImplementedError

    @property
    def inputs(self) -> list[Value]:
        """What to feed."""
        raise NotImplementedError

    @property
    def outputs(self) -> list[Value]:
        """What `run` returns."""
        raise NotImplementedError

    def _moving(self, feeds: Mapping[str, Array]) -> MovingIO:
        """Return what runs of feeds read and write where it is."""
        raise NotImplementedError

    def _in_place(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> Callable[[], bool] | None:
        """Return what runs on these arrays without a copy; None where `run` has to do it.

        It returns whether it ran.
        """
        raise NotImplementedError

    @contextmanager
    def _states_kept(self) -> Iterator[None]:
        """Put states back after the block."""
        yield

    def _check_open(self) -> None:
        """Raise RunError if the session is closed."""

    def run_async(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None = None,
        *,
        signature: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> RunRequest:
        """Return a future of the outputs: a concurrent.futures.Future whose run waits its turn.

        `cancel()` keeps a waiting request from running, and stops a running one at the next task
        boundary. A device that was handed several tasks finishes them. Leave the arrays of `feeds`
        and `out` alone until the request is over. `out` of a request that was stopped may hold
        parts of its results.

        out, signature: as in `run`
        timeout_s: seconds until the deadline. A request that waits then is refused, and never runs.
            A running one is stopped. A result never comes after the deadline
        priority: requests of larger ones run first; those of equal ones in the order of arrival
        Errors: QueueFullError, if `ExecutionOptions.max_queue` requests wait; RunError, if the
        session is closed or an argument is wrong. All other errors are the future's: those of
        `run`, DeadlineError and CancelledError
        """
        call = partial(self.run, feeds, out, signature)
        return self._runner().submit(call, feeds, timeout_s, priority)

    async def arun(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None = None,
        *,
        signature: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> dict[str, Array]:
        """Return the outputs, as `run_async`, while the event loop goes on.

        A task that is cancelled while it waits here cancels the request.
        Errors: as `run_async` and its future
        """
        import asyncio

        request = self.run_async(
            feeds, out, signature=signature, timeout_s=timeout_s, priority=priority
        )
        return await asyncio.wrap_future(request)

    @checked(RunError)
    def warm_up(self, feeds: Mapping[str, Any] | None = None, *, most_s: float = 1.0) -> int:
        """Run until the first calls of a service are as fast as later ones; return how often.

        The first runs start threads, fill caches and try ways to run. States are put back.

        feeds: inputs to run; random ones when None, where no shape is open
        most_s: no further run begins after so many seconds
        Errors: as `run`; RunError, if a shape is open and no feeds are given
        """
        from trireme.runtime.feeds import random_feeds

        given = random_feeds(self.inputs) if feeds is None else feeds
        begun, runs = time.monotonic(), 0
        with self._states_kept():
            while runs < _WARM_RUNS and (not runs or time.monotonic() - begun < most_s):
                self.run(given)
                runs += 1
        return runs

    @checked(RunError)
    def bind(self, feeds: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> BoundRun:
        """Return runs on arrays that stay: read and written where they are, as often as you like.

        Arrays may be numpy's, objects of DLPack, or buffers (bytes, memoryview, mmap, array.array)
        of the elements; inputs may be read-only. Outputs without an array in `out` get one that
        each run overwrites. `BoundRun.copies` names what a run copies all the same, and why.

        Errors: RunError, if something does not fit, or cannot be shared without a copy
        """
        from trireme.runtime.requests.bound_run import (
            BoundRun,
            bound_inputs,
            bound_outputs,
            copies_of,
            output_shapes,
        )

        inputs = bound_inputs(self.inputs, feeds)
        shapes = output_shapes(self.inputs, self.outputs, inputs)
        outputs = bound_outputs(self.outputs, shapes, out)
        names = [value.name for value in (*self.inputs, *self.outputs)]
        copies = copies_of(inputs, outputs, names, self._moving(inputs))
        in_place = self._in_place(inputs, outputs)
        return BoundRun(
            inputs, outputs, () if in_place else copies, self.run, self.run_async, in_place
        )

    def _runner(self) -> RequestRunner:
        if self._requests is None:
            from trireme.runtime.requests.workers import RequestRunner

            self._check_open()
            runner: RequestRunner = vars(self).setdefault(
                "_requests", RequestRunner(self._max_queue, self._counted().workers)
            )
            self._closing.callback(runner.stop)
            return runner
        return self._requests

    def _close_requests(self) -> None:
        """Refuse requests that wait, and return when none runs."""
        if self._requests is not None:
            self._requests.close()
