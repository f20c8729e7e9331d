"""The worker pool: Python threads that serve native steps, started when first needed.

One pool serves all sessions of a device. A caller that runs alone has the workers; callers that run
at the same time have a core each, and so many workers rest. Workers are never waited for (see
native.py), so a forked child, whose workers are gone, still runs: it starts its own.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.devices.cpu.runtime import native as runtime
from trireme.support.cancel import check_cancelled
from trireme.support.dtypes import Array
from trireme.support.errors import DeviceError
from trireme.support.forks import register_at_fork

SPINS = 20_000
"""Looks for work of an idle worker before it sleeps: about a third of a millisecond."""
HOT_NS = 300_000
"""A run that begins so soon after the last one is one of many: workers should be awake."""
BUDGET_NS = 20_000_000
"""Seconds that native code runs before Python may look after signals."""

INSIDE = 2
"""What `repeat` returns when its budget is spent inside a turn."""

_OF_STEPS = [
    runtime.CALL_STEPS,
    runtime.CALL_COUNT,
    runtime.CALL_BUDGET,
    runtime.CALL_WAKES,
    runtime.CALL_TRIES,
]
_UNDER_WAY = [runtime.CALL_AT, runtime.CALL_MINE, runtime.CALL_MODE, runtime.CALL_LANE]
_P, _I = ctypes.c_void_p, ctypes.c_int64


class Native:
    """The functions of native.py as Python calls them; they give the GIL away.

    Those of a server are there where there is a futex.
    addresses: of the functions, in order; alive: what keeps their code in memory
    """

    def __init__(self, addresses: Sequence[int], alive: object) -> None:
        run, worker, stop, repeat, *served = addresses
        self._alive = alive
        self.run: Any = ctypes.CFUNCTYPE(_I, _P)(run)
        self.worker: Any = ctypes.CFUNCTYPE(_I, _P, _I, _I)(worker)
        self.stop: Any = ctypes.CFUNCTYPE(None, _P)(stop)
        self.repeat: Any = ctypes.CFUNCTYPE(_I, _P)(repeat)
        if served:
            serve, await_, advance = served
            self.serve: Any = ctypes.CFUNCTYPE(_I, _P, _I)(serve)
            self.await_: Any = ctypes.CFUNCTYPE(_I, _P, _I, _I, _P)(await_)
            self.advance: Any = ctypes.CFUNCTYPE(None, _P)(advance)


class PoolCall:
    """A table of steps, ready to be run again and again by one caller at a time.

    steps: the table, runtime.STEP_WORDS words a step; kept alive by this
    shared: whether a step has chunks for workers
    wakes: whether it is long enough to wake workers that sleep
    tries: whether it is so short that workers may cost more than they help, which is then tried
    stamps: where the start and end of each step are written, in ns of CLOCK_MONOTONIC; or None
    alive: what the steps point to; it lives as long as this, and so as what runs it
    """

    def __init__(
        self,
        steps: Array,
        *,
        shared: bool,
        wakes: bool,
        tries: bool,
        polls: bool,
        stamps: Array | None = None,
        alive: object = None,
    ) -> None:
        self._keep = (stamps, alive)
        self.words = aligned_bytes(runtime.CALL_WORDS * 8).view("int64")
        self.words[runtime.CALL_STAMPS] = 0 if stamps is None else stamps.ctypes.data
        self.put_steps(steps, shared=shared, wakes=wakes, tries=tries, polls=polls)
        self.pointer: int = self.words.ctypes.data

    def put_steps(
        self, steps: Array, *, shared: bool, wakes: bool, tries: bool, polls: bool
    ) -> None:
        """Have later runs do the steps of a table; no run may be under way."""
        self.shared, self._steps = shared, steps
        self.words[_OF_STEPS] = (
            steps.ctypes.data,
            len(steps),
            BUDGET_NS if polls else 0,
            wakes,
            tries and shared,
        )


class _PoolState:
    """The state that workers share with the pool; they hold it and never the pool itself."""

    def __init__(self, context: Array) -> None:
        self.context = context
        self.pointer: int = context.ctypes.data
        self.locals: list[Array] = []
        self.threads: list[threading.Thread] = []
        self.wake = threading.Condition()
        self.busy = 0
        self.closed = False


class StepPool:
    """Runs tables of native steps on `threads` threads, the caller being one of them.

    futex: whether idle workers sleep inside native code
    cores: those that the workers keep to; any when empty
    """

    def __init__(
        self,
        native: Native,
        threads: int,
        *,
        spins: int = SPINS,
        futex: bool = True,
        cores: Sequence[int] = (),
    ) -> None:
        self.threads, self._cores = threads, cores
        self._spins = spins
        self.futex, self.native = futex, native
        self._local_bytes = 0
        self._context = aligned_bytes(runtime.context_words(threads) * 8).view("int64")
        self._calls: weakref.WeakSet[PoolCall] = weakref.WeakSet()
        self._reset()
        register_at_fork(self)

    def reserve(self, nbytes: int) -> None:
        """See that every thread has at least that much memory of its own for a kernel."""
        if nbytes <= self._local_bytes:
            return
        with self._lock:
            if nbytes > self._local_bytes:
                self._place_locals(max(-(-nbytes // 4096) * 4096, 2 * self._local_bytes))

    @property
    def ready(self) -> bool:
        """Whether native code alone can run calls: the workers exist and sleep in it."""
        return self._ready

    def bind(self, call: PoolCall) -> Callable[[], None]:
        """Return a function that runs a call; it raises DeviceError when the pool is closed."""
        call.words[runtime.CALL_CONTEXT] = self._context.ctypes.data
        call.words[runtime.CALL_TRIES] &= self.threads > 1
        self._calls.add(call)
        native, pointer = self.native.run, call.pointer

        def run() -> None:
            if not self._ready:
                self._run_with_care(call)
                return
            try:
                while native(pointer):
                    check_cancelled()
            except BaseException:
                self._end_step(call)
                raise

        return run

    @property
    def can_repeat(self) -> bool:
        """Whether native code can run turns by itself: its workers sleep in it."""
        return self.futex

    def bind_repeat(self, words: Array, calls: Sequence[PoolCall]) -> Callable[[], bool]:
        """Return a function that runs turns of two bound calls until Python should look around.

        words: the repeated call; see native.py
        It returns whether turns are left; in between, other calls may run.
        """
        native, pointer = self.native.repeat, words.ctypes.data

        def run() -> bool:
            if not self._ready:
                self._get_ready(calls[0])
            left = INSIDE
            try:
                while left == INSIDE:
                    left = native(pointer)
                    if left:
                        check_cancelled()
            except BaseException:
                if words[runtime.REPEAT_INSIDE]:
                    self._end_step(calls[words[runtime.REPEAT_TURN] & 1])
                raise
            return bool(left)

        return run

    def close(self) -> None:
        """End the workers; further runs are an error."""
        with self._lock:
            self._ready = False
            self._finalizer()

    def _run_with_care(self, call: PoolCall) -> None:
        """Run a call where the pool is closed, has no workers yet, or they sleep in Python."""
        self._get_ready(call)
        if not self.futex:
            self._set_busy(1)
        try:
            while self.native.run(call.pointer):
                check_cancelled()
        except BaseException:
            self._end_step(call)
            raise
        finally:
            if not self.futex:
                self._set_busy(-1)

    def _get_ready(self, call: PoolCall) -> None:
        """Start the workers if a call has work for them.

        Errors: DeviceError, if the pool is closed
        """
        with self._lock:
            state = self._state
            if state.closed:
                raise DeviceError("cpu: the device is closed")
            if self.threads > 1 and call.shared and not state.threads:
                self._start()
            self._ready = self.futex and (self.threads == 1 or bool(state.threads))

    def _end_step(self, call: PoolCall) -> None:
        """After an interrupt: finish the step whose chunks workers may hold, and no more."""
        words = call.words
        count, budget = int(words[runtime.CALL_COUNT]), int(words[runtime.CALL_BUDGET])
        begun = words[runtime.CALL_MINE] != 0
        words[runtime.CALL_COUNT] = words[runtime.CALL_AT] + begun
        words[runtime.CALL_BUDGET] = 1 << 60
        self.native.run(call.pointer)
        words[runtime.CALL_COUNT], words[runtime.CALL_BUDGET] = count, budget

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._ready = False
        self._context[:] = 0
        self._context[runtime.THREADS] = self.threads
        for call in self._calls:
            call.words[_UNDER_WAY] = 0
        self._state = _PoolState(self._context)
        self._place_locals(self._local_bytes)
        self._finalizer = weakref.finalize(self, _shut, self._state, self.native)

    def _place_locals(self, nbytes: int) -> None:
        state = self._state
        places = runtime.MOST_LANES + self.threads
        memory = aligned_bytes(nbytes * places)
        told = aligned_bytes(16).view("int64")
        told[:] = memory.ctypes.data, nbytes
        state.locals += [memory, told]  # calls under way go on in the memory of before
        state.context[runtime.LOCALS] = told.ctypes.data
        self._local_bytes = nbytes

    def _start(self) -> None:
        for who in range(1, self.threads):
            thread = threading.Thread(
                target=_serve,
                args=(self._state, self.native, who, self._spins, self._cores),
                name=f"trireme-cpu-{who}",
                daemon=True,
            )
            thread.start()
            self._state.threads.append(thread)

    def _set_busy(self, more: int) -> None:
        with self._state.wake:
            self._state.busy += more
            self._state.wake.notify_all()

    def reset_after_fork(self) -> None:
        """Start afresh in a forked child, which has the caller's thread alone."""
        closed = self._state.closed
        self._finalizer.detach()
        self._reset()
        self._state.closed = closed


def keep_to(cores: Sequence[int]) -> None:
    """Keep the calling thread to some cores; to any where none are given."""
    if cores:
        os.sched_setaffinity(0, cores)


def _serve(state: _PoolState, native: Native, who: int, spins: int, cores: Sequence[int]) -> None:
    """Be a worker until the pool closes."""
    keep_to(cores)
    while native.worker(state.pointer, who, spins) == 1:
        with state.wake:
            while not state.busy and not state.closed:
                state.wake.wait()


def _shut(state: _PoolState, native: Native) -> None:
    with state.wake:
        state.closed = True
        state.wake.notify_all()
    native.stop(state.pointer)
    for thread in state.threads:
        if thread is not threading.current_thread():  # a collector may run this anywhere
            thread.join(timeout=5)
