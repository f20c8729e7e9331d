"""The worker pool of a device: tables of native steps, run by a caller and the process's workers.

A caller that runs alone has the workers; callers that run at the same time have a core each, and so
many workers rest.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.devices.cpu.runtime import native as runtime
from trireme.devices.cpu.runtime.cores import all_cores
from trireme.devices.cpu.runtime.workers import SHARED, SPINS, Native
from trireme.support.cancel import check_cancelled
from trireme.support.dtypes import Array
from trireme.support.errors import DeviceError
from trireme.support.forks import register_at_fork
from trireme.support.live_objects import LiveObjects

HOT_NS = 300_000
"""A run that begins so soon after the last one is one of many: workers should be awake."""
SPARE_CALLS = 2
"""Calls beyond one a core that run at once, as long as no caller waits."""
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


class StepPool:
    """Runs tables of native steps on `threads` threads, the caller being one of them.

    Pools of as many threads, on the same cores, share their workers.
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
        self.threads, self.futex, self.native = threads, futex, native
        self._workers = SHARED.take(native, threads, spins, futex, tuple(cores))
        self._release = weakref.finalize(self, SHARED.drop, self._workers)
        self._release.atexit = False
        self._calls = LiveObjects[PoolCall]()
        self._closed = False
        self._ready = False
        register_at_fork(self)

    def reserve(self, nbytes: int) -> None:
        """See that every thread has at least that much memory of its own for a kernel."""
        self._workers.reserve(nbytes)

    @property
    def calls_at_once(self) -> int:
        """How many calls may run at once.

        Some more than there are cores: a few callers that run at once need nobody to wake them,
        and waking takes a while. As many as threads where these are to be fewer than the cores.
        """
        return self.threads + (SPARE_CALLS if self.threads >= len(all_cores()) else 0)

    def can_run(self, call: PoolCall) -> bool:
        """Whether native code alone can run a call.

        The workers exist and sleep in it, or the call has no work for them.
        """
        return self._ready or not (call.shared or self._closed)

    def bind(self, call: PoolCall) -> Callable[[], None]:
        """Return a function that runs a call; it raises DeviceError when the pool is closed."""
        call.words[runtime.CALL_CONTEXT] = self._workers.context.ctypes.data
        call.words[runtime.CALL_TRIES] &= self.threads > 1
        self._calls.add(call)
        native, pointer = self.native.run, call.pointer

        def run() -> None:
            if not self._ready and (call.shared or self._closed):  # not `can_run`, quicker
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
        """End the workers, if no other pool shares them; further runs are an error."""
        self._closed, self._ready = True, False
        self._release()

    def _run_with_care(self, call: PoolCall) -> None:
        """Run a call where the pool is closed, has no workers yet, or they sleep in Python."""
        self._get_ready(call)
        if not self.futex:
            self._workers.set_busy(1)
        try:
            while self.native.run(call.pointer):
                check_cancelled()
        except BaseException:
            self._end_step(call)
            raise
        finally:
            if not self.futex:
                self._workers.set_busy(-1)

    def _get_ready(self, call: PoolCall) -> None:
        """Start the workers if a call has work for them.

        Errors: DeviceError, if the pool is closed
        """
        if self._closed:
            raise DeviceError("cpu: the device is closed")
        if self.threads > 1 and call.shared:
            self._workers.start()
        self._ready = self._workers.are_there and not self._closed

    def _end_step(self, call: PoolCall) -> None:
        """After an interrupt: finish the step whose chunks workers may hold, and no more."""
        words = call.words
        count, budget = int(words[runtime.CALL_COUNT]), int(words[runtime.CALL_BUDGET])
        begun = words[runtime.CALL_MINE] != 0
        words[runtime.CALL_COUNT] = words[runtime.CALL_AT] + begun
        words[runtime.CALL_BUDGET] = 1 << 60
        self.native.run(call.pointer)
        words[runtime.CALL_COUNT], words[runtime.CALL_BUDGET] = count, budget

    def reset_after_fork(self) -> None:
        """Start afresh in a forked child, which has the caller's thread alone."""
        self._ready = False
        for call in self._calls:
            call.words[_UNDER_WAY] = 0
