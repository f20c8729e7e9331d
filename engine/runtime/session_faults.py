"""What becomes of faults: devices that fail, hang and are passed over.

A session without failover, such as a region of open shapes, gives hangs up and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from trireme.runtime.io_binding import DirectRun, Runs, TasksInOrder
from trireme.runtime.session_facts import SessionFacts
from trireme.support.fault_events import FaultEvent

if TYPE_CHECKING:
    from threading import Lock

    from trireme.backend.device import BoundCall
    from trireme.runtime.context import ExecutionContext
    from trireme.runtime.contexts import ContextQueue
    from trireme.runtime.failover.events import EventLog, Listener
    from trireme.runtime.failover.failover import Failover
    from trireme.runtime.failover.in_streams import StreamFailover
    from trireme.runtime.failover.watchdog import WatchedRuns
    from trireme.runtime.io_binding import IOBinding
    from trireme.support.dtypes import Array
    from trireme.support.errors import DeviceError


class SessionFaults(SessionFacts):
    """What a session does about devices that fail.

    The attributes of faults are the class's until a session needs them: Python looks up those of an
    instance with more than 30 more slowly, in every run.
    """

    _failover: Failover | None = None
    _watched_runs: WatchedRuns | None = None
    _is_watched = False
    _contexts: ContextQueue
    _events: EventLog
    _context: ExecutionContext
    _calls: list[BoundCall]
    _binding: IOBinding
    _direct: DirectRun | None
    _closing: ExitStack
    _closed: bool

    def _run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the outputs of a run on all devices."""
        raise NotImplementedError

    def _finish(self) -> None:
        """After an error: return when no launch is under way."""
        raise NotImplementedError

    def _check_open(self) -> None:
        """Errors: RunError, if the session is closed"""
        raise NotImplementedError

    @property
    def events(self) -> tuple[FaultEvent, ...]:
        """The faults of devices so far and what became of each, the oldest first."""
        return self._events.events

    def on_event(self, listener: Listener) -> None:
        """Have a function called with each further event, on the thread of the run."""
        self._events.listeners.append(listener)

    @property
    def fails_over(self) -> bool:
        """Whether a run that a device fails is repeated on other devices."""
        return self._failover is not None

    @property
    def devices_out(self) -> frozenset[str]:
        """Devices that failed: runs pass them over until the session is opened anew."""
        return frozenset() if self._failover is None else self._failover.out

    def _run_again(
        self, error: BaseException, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array] | None:
        """After an error: return the outputs of a run on other devices, None where there is none.

        Nothing of the run that failed is under way then.
        Errors: DeviceError with all causes, if other devices fail too
        """
        self._finish()
        failover = self._failover
        if failover is None or not failover.is_fault(error):
            return None
        from trireme.runtime.failover.turns import holding_turn

        with holding_turn(self):
            return failover.run_again(error, feeds, out)

    def watch_tasks(self) -> None:
        """Give a task up that hangs, where a device works beside the host: see watchdog.py.

        Nothing is watched where every task is on the caller's own thread.
        """
        from trireme.runtime.control.watched import watch_calls
        from trireme.runtime.executors import Executors
        from trireme.runtime.failover.task_watch import TaskWatch, works_beside_host
        from trireme.runtime.failover.watchdog import WatchedRuns

        if self._watched_runs is None and works_beside_host(self.plan):
            watch = TaskWatch(self.plan)
            watch_calls(self._calls, watch)
            self._runs.close()
            self._runs = Executors(self.plan, self._calls, self._runs.mode, watch)
            self._watched_runs = WatchedRuns(watch, self.devices, self)
            self._closing.callback(self._watched_runs.close)
            self._closing.callback(self._runs.close)
            self._choose_direct()

    def leave_turn(self, hung: DeviceError) -> None:
        """See CallersTurns. A session without failover is a region or a plan of one that has it."""
        if self._failover is not None:
            self._failover.note_hang(hung)
        self._contexts.release(self._contexts.lock)

    @property
    def turn(self) -> Lock:
        """See CallersTurns."""
        return self._contexts.lock

    def begin_turn(self) -> None:
        """See CallersTurns."""
        if self._failover is not None:
            self._failover.save()

    def _choose_direct(self) -> None:
        """Have runs go the shortest way that there is now."""
        self._is_watched = self._has_to_watch()
        runs: Runs = self._runs
        if self._watched_runs is not None:
            runs = TasksInOrder(partial(self._watched_runs.run, self._runs, self._context))
        apart = self._closed or self._is_watched
        self._direct = None if apart else self._direct_of(runs)

    def _direct_of(self, runs: Runs) -> DirectRun | None:
        """Return feeds to outputs as one function; None where not everything is copied."""
        return self._binding.direct(runs)

    def _has_to_watch(self) -> bool:
        return self._failover is not None and self._failover.watches

    def _begin_run(self) -> None:
        """Errors: RunError, if the session is closed; DeviceOut, if a device is passed over"""
        self._check_open()
        if self._is_watched and self._failover is not None:
            self._failover.begin()

    def _stream_failover(self) -> StreamFailover | None:
        """Return what runs items of a stream again; None where nothing does."""
        if self._failover is None:
            return None
        from trireme.runtime.failover.in_streams import StreamFailover

        return StreamFailover(self._failover, self._finish)
