"""A server: a thread with cores of its own that runs the calls of one device instance in order.

The thread of a session passes a call on and goes its way; what a call must wait for, calls of
other servers among it, native code waits for (jobs.py), so a whole plan is under way after
some microseconds. Calls that need Python (nodes on the numpy reference) run on the same thread.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from trireme.backend.capabilities import Rebind, rebind_of
from trireme.backend.device import BoundCall, Event, LazySpans, NodeSpan
from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.devices.cpu.runtime import native as runtime
from trireme.devices.cpu.runtime.workers import Native, keep_to
from trireme.support.dtypes import Array
from trireme.support.errors import DeviceError
from trireme.support.forks import register_at_fork

DRIVER_QUEUE = object()
"""All servers' calls are of one chain: each can wait for calls of the others."""
_LOOK_S = 0.02
"""Seconds that a thread waits in native code before Python may look after signals."""

_PATIENCE = 60_000
"""Looks of a thread, which yields its core, before it sleeps: about a millisecond. To be woken
takes 40 us."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


_LOOK = _Timespec(0, int(_LOOK_S * 1e9))
_LOOK_AT = ctypes.addressof(_LOOK)


class Launched:
    """A call that was passed to a server: over when the server's count has come to `goal`."""

    __slots__ = ("_keep", "_native", "_spans", "_take", "done", "error", "goal")

    def __init__(self, native: Native, done: int, goal: int, keep: object) -> None:
        self._native, self.done, self.goal = native, done, goal
        self._keep: object = keep
        self.error: BaseException | None = None
        self._take: Callable[[], LazySpans] | None = None
        self._spans: LazySpans = tuple

    def with_spans(self, take: Callable[[], LazySpans] | None) -> Launched:
        """Call `take` when the call is over; the function that `take` returns gives the spans."""
        self._take = take
        return self

    def wait(self) -> None:
        """Return when the call is over; raise its error. An interrupt comes out after it."""
        interrupt: BaseException | None = None
        while True:
            try:
                if self._native.await_(self.done, self.goal, _PATIENCE, _LOOK_AT):
                    break
            except BaseException as error:
                interrupt = error
        self._keep, take, self._take = None, self._take, None
        if take is not None and self.error is None:
            self._spans = take()
        if interrupt is not None or self.error is not None:
            raise interrupt or self.error  # type: ignore[misc]

    def spans(self) -> Sequence[NodeSpan]:
        """Return the spans of a profiled launch."""
        return self._spans()


Job = Callable[[], object]
Stamped = tuple[int, Callable[[], LazySpans] | None]
"""A call that notes when its steps run, by its pointer, and what takes its notes when it is over;
(0, None) where Python is needed.
"""


class _ServerState:
    """The state that the thread shares with the server; it holds it and never the server itself."""

    def __init__(self, cores: Sequence[int], spins: int) -> None:
        self.cores, self.spins = cores, spins
        self.words: Array = aligned_bytes(runtime.SERVER_WORDS * 8).view("int64")
        self.slots = self.words.data
        self.pointer: int = self.words.ctypes.data
        self.done = self.pointer + 8 * runtime.JOBS_DONE
        self.jobs: dict[int, tuple[Job, Launched]] = {}
        self.kept: list[object] = []
        self.submitted = 0


class Server:
    """Runs calls in order, on a thread that keeps to `cores`; started when first needed.

    name: of the instance, for errors and the thread's name
    spins: how often the idle thread looks for work before it sleeps
    """

    thread: threading.Thread | None
    _state: _ServerState
    _finalizer: weakref.finalize[Any, Any]

    def __init__(self, native: Native, name: str, cores: Sequence[int], spins: int) -> None:
        self.native, self.name, self.cores, self._spins = native, name, tuple(cores), spins
        self._closed = False
        self._reset()
        register_at_fork(self)

    def submit(self, job: int | Job, keep: object, after: Sequence[Event] = ()) -> Launched:
        """Queue a call, by its pointer, or what Python is to run; return its event.

        keep: what must live until it is over; after: events of servers
        Errors: DeviceError, if the device is closed
        """
        with self._lock:
            if self._closed:
                raise DeviceError(f"{self.name}: the device is closed")
            if self.thread is None:
                self._start()
            state = self._state
            number = state.submitted
            event = Launched(self.native, state.done, number + 1, keep)
            if number >= runtime.RING:
                self._await(number - runtime.RING + 1)
            if not isinstance(job, int):
                state.jobs[number] = job, event
                job = runtime.PYTHON_JOB
            _put(state, self.native, job, self._waits(after) if after else ())
            return event

    @contextmanager
    def still(self) -> Iterator[None]:
        """Let nothing run in between."""
        with self._lock:
            if not self._closed:
                self._await(self._state.submitted)
            yield

    def close(self) -> None:
        """End the thread when all that was queued is over; further calls are an error."""
        with self._lock:
            if not self._closed:
                self._await(self._state.submitted)
            self._closed = True
            self._finalizer()

    def outlast(self, event: tuple[int, int], what: object) -> None:
        """Let something live until an event, a counter and its goal, is over."""
        if event[0] != self._state.done:
            return  # of before a fork
        if threading.current_thread() is self.thread:  # which a collector may run in
            self._state.kept.append(what)
        else:
            self._await(event[1])

    def _waits(self, after: Sequence[Event]) -> list[tuple[int, int]]:
        """Return the counters to wait for and their goals; wait here for those beyond the room."""
        goals: dict[int, int] = {}
        for event in after:
            if not isinstance(event, Launched):
                event.wait()
            elif event.done != self._state.done:
                goals[event.done] = max(goals.get(event.done, 0), event.goal)
        waits = list(goals.items())
        for counter, goal in waits[runtime.MOST_AFTER :]:
            while not self.native.await_(counter, goal, 0, _LOOK_AT):
                pass
        return waits[: runtime.MOST_AFTER]

    def _await(self, goal: int) -> None:
        while not self.native.await_(self._state.done, goal, 0, _LOOK_AT):
            pass

    def _start(self) -> None:
        self.thread = threading.Thread(
            target=_serve, args=(self._state, self.native), name=f"trireme-{self.name}", daemon=True
        )
        self.thread.start()
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _shut, self._state, self.native, self.thread)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self.thread = None
        self._state = _ServerState(self.cores, self._spins)
        self._finalizer = weakref.finalize(self, _shut, self._state, self.native, None)

    def reset_after_fork(self) -> None:
        """Start afresh in a forked child, which does not have the thread."""
        self._finalizer.detach()
        self._reset()


def _put(
    state: _ServerState, native: Native, word: int, waits: Sequence[tuple[int, int]] = ()
) -> None:
    """Write a job into the ring, and say so."""
    at = runtime.JOBS + state.submitted % runtime.RING * runtime.JOB_WORDS
    row: list[int] = [word, len(waits), *(number for pair in waits for number in pair)]
    for k, number in enumerate(row, at):
        state.slots[k] = number
    state.submitted += 1
    native.advance(state.pointer)


def _serve(state: _ServerState, native: Native) -> None:
    """Be a server until it is closed."""
    keep_to(state.cores)
    while native.serve(state.pointer, state.spins) == runtime.PYTHON_JOB:
        number = int(state.words[runtime.JOBS_DONE])
        job, event = state.jobs.pop(number)
        try:
            job()
        except BaseException as error:
            event.error = error
        del job, event
        native.advance(state.done)


def _shut(state: _ServerState, native: Native, thread: threading.Thread | None) -> None:
    if thread is not None:
        _put(state, native, runtime.STOP_JOB)
        if thread is not threading.current_thread():  # a collector may run this anywhere
            thread.join(timeout=5)


class ServedCall:
    """A bound call that a server runs. Launches return at once, and start in their order.

    pointer: returns the call for native code, 0 where Python is needed; stamped: the same of a call
        that notes when its steps run
    """

    driver_queue: object = DRIVER_QUEUE

    def __init__(
        self,
        bound: BoundCall,
        server: Server,
        pointer: Callable[[], int],
        stamped: Callable[[], Stamped],
    ) -> None:
        self._bound, self._server, self._pointer, self._stamped = bound, server, pointer, stamped
        self._last = 0, 0  # counter and goal of the last launch

    def launch(self, profile: bool = False, after: Sequence[Event] = ()) -> Event:
        """Pass the call on; it begins when `after`, events of the driver queue, are over."""
        if not profile:
            return self._submit(self._pointer() or self._run, after)
        pointer, take = self._stamped()
        if pointer:
            return self._submit(pointer, after).with_spans(take)
        spans: list[Sequence[NodeSpan]] = []
        return self._submit(partial(self._profiled, spans), after).with_spans(
            lambda: lambda: spans[0]
        )

    def rebind(self, argument: int) -> Rebind | None:
        """See `RebindableCall.rebind`."""
        return rebind_of(self._bound, argument)

    def _submit(self, job: int | Job, after: Sequence[Event]) -> Launched:
        event = self._server.submit(job, self, after)
        self._last = event.done, event.goal
        return event

    def __del__(self) -> None:
        """Keep the memory until what runs in it is over, though nobody waits for its event."""
        self._server.outlast(self._last, self._bound)

    def _run(self) -> None:
        self._bound.launch().wait()

    def _profiled(self, spans: list[Sequence[NodeSpan]]) -> None:
        event = self._bound.launch(profile=True)
        event.wait()
        spans.append(event.spans())
