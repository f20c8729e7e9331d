"""The worker pool: Python threads that serve native steps, started when first needed.

One pool serves all sessions of a device; callers take turns. Workers are never waited for (see
runtime.py), so a forked child, whose workers are gone, still runs: it starts its own.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from trireme.devices.cpu import runtime
from trireme.devices.cpu.jit import Code, Jit
from trireme.devices.cpu.memory import aligned_bytes
from trireme.errors import DeviceError

SPINS = 20_000
"""How often an idle worker looks for work before it sleeps: about a third of a millisecond."""
BUDGET_NS = 20_000_000
"""How long native code runs before Python may look after signals."""

_P, _I = ctypes.c_void_p, ctypes.c_int64


class _Native:
    """The three functions of runtime.py as Python calls them; they give the GIL away."""

    def __init__(self, jit: Jit, futex: bool) -> None:
        code = Code("runtime", runtime.runtime_ir(futex))
        run, worker, stop = jit.functions(code, runtime.FUNCTIONS)
        self.jit = jit  # keeps the code alive
        self.run: Any = ctypes.CFUNCTYPE(_I, _P, _P, _I, _I, _I, _P)(run)
        self.worker: Any = ctypes.CFUNCTYPE(_I, _P, _I, _I)(worker)
        self.stop: Any = ctypes.CFUNCTYPE(None, _P)(stop)


class _State:
    """What the workers share with the pool; they hold this and never the pool itself."""

    def __init__(self) -> None:
        self.context = aligned_bytes(runtime.CONTEXT_WORDS * 8).view("int64")
        self.pointer: int = self.context.ctypes.data
        self.locals = aligned_bytes(0)
        self.threads: list[threading.Thread] = []
        self.wake = threading.Condition()
        self.busy = False
        self.closed = False


class Pool:
    """Runs tables of native steps on `threads` threads, the caller being one of them."""

    def __init__(
        self, jit: Jit, threads: int, *, spins: int = SPINS, futex: bool | None = None
    ) -> None:
        self.threads = threads
        self._spins = spins
        self._futex = runtime.has_futex() if futex is None else futex
        self._native = _Native(jit, self._futex)
        self._local_bytes = 0
        self._reset()
        _POOLS.add(self)

    def reserve(self, nbytes: int) -> None:
        """See that every thread has at least that much memory of its own for a kernel."""
        with self._lock:
            if nbytes > self._local_bytes:
                self._local_bytes = -(-nbytes // 4096) * 4096
                self._place_locals()

    def run(self, steps: int, first: int, last: int, stamps: int = 0) -> None:
        """Run steps first..last of the table at address `steps`.

        stamps: where the start and end of each step are written, in ns of CLOCK_MONOTONIC; or 0
        Errors: DeviceError, if the pool is closed
        """
        state = self._state
        with self._lock:
            if state.closed:
                raise DeviceError("cpu: the device is closed")
            if self.threads > 1 and not state.threads:
                self._start()
            if not self._futex:
                self._set_busy(True)
            native = self._native.run
            try:
                at = native(state.pointer, steps, first, last, BUDGET_NS, stamps)
                while at < last:
                    at = native(state.pointer, steps, at, last, BUDGET_NS, stamps)
            except BaseException:  # an interrupt: finish the step that workers are in
                left = int(state.context[runtime.RESUME])
                if left:
                    native(state.pointer, steps, left - 1, left, 1 << 60, stamps)
                raise
            finally:
                if not self._futex:
                    self._set_busy(False)

    def close(self) -> None:
        """End the workers; further runs are an error."""
        with self._lock:
            self._finalizer()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._state = _State()
        self._place_locals()
        self._finalizer = weakref.finalize(self, _shut, self._state, self._native)

    def _place_locals(self) -> None:
        state = self._state
        state.locals = aligned_bytes(self._local_bytes * self.threads)
        state.context[runtime.LOCALS] = state.locals.ctypes.data
        state.context[runtime.LOCAL_BYTES] = self._local_bytes

    def _start(self) -> None:
        for who in range(1, self.threads):
            thread = threading.Thread(
                target=_serve, args=(self._state, self._native, who, self._spins),
                name=f"trireme-cpu-{who}", daemon=True,
            )  # fmt: skip
            thread.start()
            self._state.threads.append(thread)

    def _set_busy(self, busy: bool) -> None:
        with self._state.wake:
            self._state.busy = busy
            self._state.wake.notify_all()

    def forget_workers(self) -> None:
        """Start afresh in a forked child, which has the caller's thread alone."""
        closed = self._state.closed
        self._finalizer.detach()
        self._reset()
        self._state.closed = closed


def _serve(state: _State, native: _Native, who: int, spins: int) -> None:
    """Be a worker until the pool closes."""
    while native.worker(state.pointer, who, spins) == 1:
        with state.wake:
            while not state.busy and not state.closed:
                state.wake.wait()


def _shut(state: _State, native: _Native) -> None:
    with state.wake:
        state.closed = True
        state.wake.notify_all()
    native.stop(state.pointer)
    for thread in state.threads:
        if thread is not threading.current_thread():  # a collector may run this anywhere
            thread.join(timeout=5)


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_POOLS):
        pool.forget_workers()


_register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register is not None:
    _register(after_in_child=_after_fork)
