"""Runs of a program on its memory: one at a time, streams, states, and the end of a session.

After the first run nothing is allocated but the output arrays that are handed out.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from trireme.runtime.contexts import ContextCount, ContextQueue
from trireme.runtime.failover.events import EventLog
from trireme.runtime.io_binding import DirectRun, RunInContext, TasksInOrder
from trireme.runtime.requests.checks import checked_timeout
from trireme.runtime.session_faults import SessionFaults
from trireme.support.arguments import check_arguments, checked, later_names
from trireme.support.cancel import CancelToken, current_token, working_for
from trireme.support.closing import Closing
from trireme.support.errors import FeedError, RunError
from trireme.support.forks import register_at_fork

if TYPE_CHECKING:
    from trireme.runtime.context import ExecutionContext
    from trireme.runtime.executors import Mode
    from trireme.runtime.program import Program
    from trireme.runtime.states.snapshot import StateSnapshot
    from trireme.runtime.streams.open_stream import OpenStream
    from trireme.runtime.streams.stream import Stream, Streams
    from trireme.support.dtypes import Array

__getattr__ = later_names(
    __name__,
    {
        "Array": "trireme.support.dtypes",
        "StateSnapshot": "trireme.runtime.states.snapshot",
        "OpenStream": "trireme.runtime.streams.open_stream",
        "Stream": "trireme.runtime.streams.stream",
    },
)


class SessionRuns(SessionFaults, Closing):
    """What runs a program, and ends it."""

    def _begin(self) -> None:
        """Have what `close` asks for, before anything can fail."""
        self._contexts = ContextQueue()
        self.reset_after_fork()
        register_at_fork(self)
        self._closed = False
        self._streams: Streams | None = None
        self._beside: dict[int, RunInContext] = {}
        self._count = ContextCount(1, "it runs one set of shapes of a session")
        self._direct: DirectRun | None = None
        self._closing = ExitStack()
        self._closing.callback(self._contexts.stop)
        end = weakref.finalize(self, self._closing.close)
        end.atexit = False
        self._closing.callback(end.detach)  # a session that is closed ends without Python code
        self.dropped: dict[str, str] = {}
        self._events = EventLog()

    def _keep(self, program: Program, context: ExecutionContext, mode: Mode) -> None:
        """Have runs go through the program's memory."""
        from trireme.runtime.executors import Executors

        self._program, self._context = program, context
        self._calls, self._binding = context.calls, context.ports
        self._runs = Executors(program.plan, self._calls, mode)
        self._direct = self._direct_of(self._runs)
        self._closing.callback(self._runs.close)
        self._beside.clear()

    def _widen(self, found: ContextCount) -> None:
        """Have so many calls run at once."""
        self._count = found
        self._contexts.widen(found.most, found.workers)

    @property
    def contexts(self) -> int:
        """How many calls run at once; `contexts_why` says why."""
        return self._counted().most

    @property
    def contexts_why(self) -> str:
        """Why so many calls run at once."""
        return self._counted().why

    def _counted(self) -> ContextCount:
        return self._count

    def reset(self) -> None:
        """Give every state its initial value.

        Errors: RunError, if a stream is under way
        """
        with self._at_rest():
            self.states.clear()

    def get_state(self) -> StateSnapshot:
        """Return copies of the states; those that have had no value yet may be missing.

        Errors: RunError, if a stream is under way
        """
        from trireme.runtime.states.snapshot import StateSnapshot

        with self._at_rest():
            return StateSnapshot(self.states)

    def set_state(self, state: Mapping[str, Array] | str | os.PathLike[str]) -> None:
        """Give states these values, of a snapshot, arrays by name, or the file of a snapshot.

        States that are not named become initial.
        Errors: RunError, if there is no such state or an array does not fit, and if a stream is
        under way; then no state changes. ModelFileError, if the file cannot be read
        """
        from trireme.runtime.states.snapshot import StateSnapshot

        given = state if isinstance(state, Mapping) else StateSnapshot.load(state)
        with self._at_rest():
            checked = {name: self.states.checked(name, array) for name, array in given.items()}
            self.states.clear()
            self.states.update(checked)

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Hold the session while no run is under way."""
        with self._contexts.alone():
            self._check_open()
            if self._streams is not None:
                self._streams.check_ended("states are read and set between runs")
            yield

    def run(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None = None,
        signature: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Array]:
        """Return the outputs by name.

        signature: of a model that holds several graphs, the one to run; all share their states
        timeout_s: seconds until the run is stopped with a DeadlineError, between two tasks or
            after 20 ms of native code, or refused where it still waits for others
        Shapes: each feed has its input's shape and dtype; `out` may give arrays to write into.
        `optional_inputs` need no feed. Large arrays are read and written where they are, so leave
        them alone during the run.
        Errors: RunError, if a feed or `out` is unknown or does not fit, or a feed is missing;
        DeviceError from a device; ConvertError, if the model has no such signature
        """
        if timeout_s is not None:
            return self._run_in_time(timeout_s, partial(self.run, feeds, out, signature))
        if signature is not None:
            check_arguments(SessionRuns.run, {"signature": signature}, RunError)
            return self._run_signature(signature, feeds, out)
        if out is not None and self._failover is not None:
            from trireme.runtime.failover.failover import kept_apart

            feeds = kept_apart(feeds, out)
        queue = self._contexts
        try:
            if not queue.line:
                lock = queue.lock
                for _ in queue.first:  # as `queue.run`, quicker
                    try:
                        direct = self._direct
                        if direct is not None and out is None:
                            return direct(feeds)
                        return self._run(feeds, out)
                    except BaseException as error:
                        again = self._run_again(error, feeds, out)
                        if again is None:
                            raise
                        return again
                    finally:
                        lock.release()
                        if queue.line:
                            queue.ring()
            made: dict[str, Array] = queue.run(partial(self._run_in, feeds, out))
            return made
        except FeedError as error:  # optional inputs are fed in a session of their own
            refused = error
        fed = self._run_fed(refused.unknown, feeds, out)
        if fed is None:
            raise refused
        return fed

    def _run_fed(
        self, unknown: tuple[str, ...], feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array] | None:
        """Return the outputs of feeds of optional inputs; None where `unknown` are none."""
        return None

    def _run_on_arrays(self, context: ExecutionContext, run: Callable[[], None]) -> bool:
        """Run what is bound to arrays in the turn of a context; False where `run` has to do it."""
        queue = self._contexts
        if queue.line:
            return False
        lock = queue.lock
        for _ in queue.first:
            try:
                if self._closed or self._context is not context:
                    return False
                run()
                return True
            except BaseException:
                self._finish()
                raise
            finally:
                lock.release()
                if queue.line:
                    queue.ring()
        return False

    def _run_in(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None, number: int
    ) -> dict[str, Array]:
        """Return the outputs of a run in a context that is held."""
        try:
            return self._run_beside(number, feeds, out) if number else self._run(feeds, out)
        except BaseException as error:
            again = self._run_again(error, feeds, out)
            if again is None:
                raise
            return again

    def _run_in_time(
        self, timeout_s: float, run: Callable[[], dict[str, Array]]
    ) -> dict[str, Array]:
        token = CancelToken(checked_timeout(timeout_s), around=current_token())
        with working_for(token):
            token.check()
            results = run()
            token.check()
        return results

    def _run_beside(
        self, number: int, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Return the outputs of a run in another context than the first."""
        self._begin_run()
        found = self._beside.get(number)
        if found is None:
            found = self._beside[number] = self._context_beside()
        return found(feeds, out)

    def _context_beside(self) -> RunInContext:
        """Return what runs in a new context."""
        from trireme.runtime.context import ExecutionContext
        from trireme.runtime.execute import serial_runner

        context = ExecutionContext(self._program, states=self.states)
        return context.ports.runner(TasksInOrder(serial_runner(self.plan, context.calls)))

    def _run_signature(
        self, signature: str, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Return the outputs of one of several graphs of the model."""
        if signature == self.execution_options.signature:
            return self.run(feeds, out)
        raise RunError(f"the session holds one graph, signature {signature!r} was asked for")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the session, which is open, for one run of another kind than `run`."""
        with self._contexts.alone():
            self._check_open()
            try:
                yield
            except BaseException:
                self._finish()
                raise

    def _finish(self) -> None:
        """After an error: return when no launch is under way."""
        from trireme.runtime.execute import finish

        finish(self.devices)

    def _run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        direct = self._direct
        if direct is not None and out is None:
            return direct(feeds)
        if self._closed or self._is_watched:
            self._begin_run()
        given = self._binding.bind(feeds, out)
        if self._watched_runs is None:
            self._runs.run()
        else:
            self._watched_runs.run(self._runs, (self._context, given, feeds))
        return self._binding.collect(given)

    @checked(RunError)
    def stream(
        self, feeds: Iterable[Mapping[str, Any]], depth: int | None = None
    ) -> Stream | OpenStream:
        """Return an iterator over the outputs of many runs, `depth` of them in flight at most.

        A device works on the next run while another is at this one; the bits are those of one run
        after another, states included. The least depth that keeps the busiest device busy is
        taken when None, or instances of a device take whole runs in turn
        (runtime/streams/round_robin.py) where the objective is throughput. With `fallback=True` and
        states one run is in flight, so that one that a device fails can be repeated. One stream at
        a time; meanwhile `run` is free where there are no states.
        Errors: RunError, if a stream is under way; PlanError, if `depth` runs do not fit memory
        """
        from trireme.runtime.streams.pipeline import pipeline
        from trireme.runtime.streams.round_robin import pipeline_or_round_robin
        from trireme.runtime.streams.stream import Streams

        with self._contexts.alone():
            self._check_open()
            asked = self.placement_options
            make = partial(pipeline, self.program, states=self.states)
            if asked.is_free and asked.goal == "throughput":
                make = partial(
                    pipeline_or_round_robin,
                    self.graph,
                    self.program,
                    self._calibration,
                    states=self.states,
                )
            if self._streams is None:
                self._streams = Streams("this session")
            if self._failover is None:
                return self._streams.begin(make, feeds, depth, self)
            if self.states.types:  # each item begins with the states that the last one left whole
                return self._streams.begin_open(self.run, feeds)
            from trireme.runtime.failover.task_watch import TaskWatch

            make = partial(make, new_watch=TaskWatch)
            again = self._stream_failover()
            return self._streams.begin(make, feeds, depth, self, again)

    def close(self) -> None:
        """Give back threads, memory and the devices that this session opened."""
        self._closed, self._direct = True, None  # no run begins, though others wait for the lock
        with self._contexts.alone():
            if self._streams is not None:
                self._streams.close()
            if self._failover is not None:
                self._failover.close()
            self._closing.close()
            self._calls = []
        self._contexts.close()

    def reset_after_fork(self) -> None:
        """Be free, in a forked child, of what the parent's threads were doing."""
        self._contexts.reset_after_fork()

    def _check_open(self) -> None:
        if self._closed:
            raise RunError("the session is closed")
