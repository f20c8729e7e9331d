"""The threads of the worker pool, which all sessions of a process share.

They are Python threads that serve native steps, started when first needed. Workers are never waited
for (native.py), so a forked child, whose workers are gone, still runs: it starts its own.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.devices.cpu.runtime import native as runtime
from trireme.support.dtypes import Array
from trireme.support.forks import register_at_fork
from trireme.support.threads import start_thread

_log = logging.getLogger(__name__)
SPINS = 20_000
"""Looks for work of an idle worker before it sleeps: about a third of a millisecond."""
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


class _PoolState:
    """The state that workers share with their owner; they hold it and never the owner itself."""

    def __init__(self, context: Array) -> None:
        self.context = context
        self.pointer: int = context.ctypes.data
        self.locals: list[Array] = []
        self.threads: list[threading.Thread] = []
        self.wake = threading.Condition()
        self.busy = 0
        self.closed = False


class Workers:
    """The context of native.py and the threads that serve it, for all pools of a process alike.

    threads: those that work at once, a caller being one of them
    cores: those that the workers keep to; any when empty
    """

    def __init__(
        self, native: Native, threads: int, spins: int, futex: bool, cores: tuple[int, ...]
    ) -> None:
        self.native, self.threads, self.futex = native, threads, futex
        self._spins, self._cores = spins, cores
        self._local_bytes, self.are_stopped = 0, False
        self.context = aligned_bytes(runtime.context_words(threads) * 8).view("int64")
        self.reset_after_fork()
        register_at_fork(self)

    def reserve(self, nbytes: int) -> None:
        """See that every thread has at least that much memory of its own for a kernel."""
        if nbytes <= self._local_bytes:
            return
        with self._lock:
            if nbytes > self._local_bytes:
                self._place_locals(max(-(-nbytes // 4096) * 4096, 2 * self._local_bytes))

    def start(self) -> None:
        """Start the threads, if they are not there."""
        with self._lock:
            for who in range(1 + len(self._state.threads), self.threads):
                thread = threading.Thread(
                    target=_serve,
                    args=(self._state, self.native, who, self._spins, self._cores),
                    name=f"trireme-cpu-{who}",
                    daemon=True,
                )
                start_thread(thread)
                self._state.threads.append(thread)

    @property
    def are_there(self) -> bool:
        """Whether native code finds the threads, or needs none."""
        return self.futex and (self.threads == 1 or bool(self._state.threads))

    def set_busy(self, more: int) -> None:
        """Count the calls under way, for workers that sleep in Python."""
        with self._state.wake:
            self._state.busy += more
            self._state.wake.notify_all()

    def stop(self) -> None:
        """End the threads; calls under way end by themselves."""
        self.are_stopped = True
        self._finalizer()

    def _begin(self) -> None:
        """Have no threads yet."""
        self._state = _PoolState(self.context)
        self._place_locals(self._local_bytes)
        self._finalizer = weakref.finalize(self, _shut, self._state, self.native)

    def _place_locals(self, nbytes: int) -> None:
        state = self._state
        places = runtime.MOST_LANES + self.threads
        memory = aligned_bytes(nbytes * places)
        told = aligned_bytes(16).view("int64")
        told[:] = memory.ctypes.data, nbytes
        state.locals += [memory, told]  # calls under way go on in the memory of before
        self.context[runtime.LOCALS] = told.ctypes.data
        self._local_bytes = nbytes

    def reset_after_fork(self) -> None:
        """Start afresh in a forked child, which has the caller's thread alone."""
        self._lock = threading.Lock()
        self.context[:] = 0
        self.context[runtime.THREADS] = self.threads
        if hasattr(self, "_finalizer"):
            self._finalizer.detach()
        self._begin()


class SharedWorkers:
    """The workers of this process, and how many pools use each."""

    def __init__(self) -> None:
        self._known: dict[Any, Workers] = {}
        self._users: Counter[Workers] = Counter()
        self.reset_after_fork()
        register_at_fork(self)

    def take(
        self, native: Native, threads: int, spins: int, futex: bool, cores: tuple[int, ...]
    ) -> Workers:
        """Return the workers for so many threads on these cores; `drop` gives them back."""
        key = threads, spins, futex, cores
        with self._lock:
            found = self._known.get(key)
            if found is None or found.are_stopped:
                found = self._known[key] = Workers(native, threads, spins, futex, cores)
                _check_cores([one.threads for one in self._known.values()])
            self._users[found] += 1
            return found

    def drop(self, workers: Workers) -> None:
        """End workers whose last user this is."""
        with self._lock:
            self._users[workers] -= 1
            if self._users[workers]:
                return
            del self._users[workers]
            self._known = {key: one for key, one in self._known.items() if one is not workers}
            workers.stop()

    def reset_after_fork(self) -> None:
        """Be free in a forked child."""
        self._lock = threading.RLock()  # a collector may drop workers anywhere


SHARED = SharedWorkers()


def _check_cores(threads: Sequence[int]) -> None:
    """Warn if several groups of workers have more threads than the machine has cores."""
    cores = os.cpu_count() or 1
    if len(threads) > 1 and sum(threads) > cores:
        _log.warning(
            "sessions of this process work with %s threads, %d together on %d cores: sessions "
            "with equal threads= share theirs",
            " and ".join(map(str, threads)),
            sum(threads),
            cores,
        )


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
    if state.threads:
        native.stop(state.pointer)
    for thread in state.threads:
        if thread is not threading.current_thread():  # a collector may run this anywhere
            thread.join(timeout=5)
