"""The running chip: its SRAM, the use of its memory, and the thread that runs tasks.

Tasks run in the order of submission, as on one machine. The device owns the chip; executables
submit to it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from trireme.devices.npu.spec import NpuSpec
from trireme.support.errors import DeviceError, FaultKind
from trireme.support.forks import register_at_fork
from trireme.support.locks import Latch

GARBAGE = 0xA5
"""The content of SRAM at the start of every task: a read before a write gives wrong values."""
_Work = SimpleQueue[Callable[[], object] | None]


class Chip:
    """One described machine; `memory` is the name of its memory space."""

    def __init__(self, machine: NpuSpec, memory: str) -> None:
        self.machine, self.memory = machine, memory
        self.sram = np.full(machine.sram.bytes, GARBAGE, np.uint8)
        self._closed = False
        self._allocated = 0
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Reset to the state without a thread."""
        self._queue: _Work = SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None

    def take(self, nbytes: int, owner: object) -> None:
        """Count bytes of its memory as used while their owner exists.

        Errors: DeviceError, if too few bytes are free
        """
        with self._lock:
            if self._allocated + nbytes > self.machine.dram.bytes:
                raise DeviceError(
                    f"npu: {nbytes} bytes do not fit its memory",
                    facts=[f"{self._allocated} of {self.machine.dram.bytes} bytes are in use"],
                ).of_kind(FaultKind.OUT_OF_MEMORY)
            self._allocated += nbytes
        weakref.finalize(owner, self._give_back, nbytes)

    def _give_back(self, nbytes: int) -> None:
        with self._lock:
            self._allocated -= nbytes

    def submit(self, work: Callable[[], None]) -> None:
        """Queue work; it runs on the chip's thread, in order."""
        with self._lock:
            if self._closed:
                raise DeviceError("npu: the device is closed")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_serve, args=(self._queue,), name="trireme-npu", daemon=True
                )
                self._thread.start()
                weakref.finalize(self, self._queue.put, None).atexit = False
            self._queue.put(work)

    def finish(self) -> None:
        """Wait until no submitted work is under way."""
        over = Latch()
        with self._lock:
            if self._thread is None:
                return
            self._queue.put(over.open)
        over.wait()

    def close(self) -> None:
        """Finish the submitted work and stop the thread."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()


def _serve(queue: _Work) -> None:
    """Run submitted work until the chip is closed or garbage-collected."""
    while (work := queue.get()) is not None:
        work()
        del work  # work refers to the chip
