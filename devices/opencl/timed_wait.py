"""Wait for a driver's event, but not for ever.

OpenCL has no wait with an end. So the driver calls a function back when the event is over: a few
machine instructions, which post a semaphore, and need neither Python nor a further thread. The
caller waits for the semaphore. That takes as long as the driver's own wait.
Source: OpenCL 1.1, clSetEventCallback; POSIX sem_clockwait
"""

from __future__ import annotations

import ctypes
import threading
import time
from functools import cache
from typing import Any

from trireme.support.forks import register_at_fork

_POST = r"""
declare i32 @sem_post(ptr)
define void @post(ptr %event, i32 %status, ptr %semaphore) {
  %r = call i32 @sem_post(ptr %semaphore)
  ret void
}
"""
_COMPLETE = 0
"""CL_COMPLETE; it is called for an event that fails, too."""
_LONGEST_S = 1e6
"""A wait without an end ends after so many seconds, and begins again."""
_SEMAPHORE_BYTES = 64
"""At least sizeof(sem_t) of every libc."""


class _WaitEnd(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Driver:
    """The functions of libc and of the driver, and the code that is called back."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm
        import pyopencl as cl

        libc = ctypes.CDLL(None)
        self.new, self.wait = libc.sem_init, libc.sem_clockwait
        self.new.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
        self.wait.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        self.set_callback = ctypes.CDLL(cl._cl.__file__).clSetEventCallback
        self.set_callback.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 2]
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.add_symbol("sem_post", ctypes.cast(libc.sem_post, ctypes.c_void_p).value or 0)
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_POST), machine)
        self._engine.finalize_object()
        self.post = self._engine.get_function_address("post")


@cache
def _driver() -> _Driver | None:
    """Return the functions; None on a system that lacks one of them."""
    try:
        return _Driver()
    except (AttributeError, OSError):
        return None


class _Semaphore:
    """A semaphore of one thread, with the time at which its wait ends."""

    def __init__(self, driver: _Driver) -> None:
        self._memory = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        self._end = _WaitEnd()
        self.address, self.end_address = map(ctypes.addressof, (self._memory, self._end))
        driver.new(self.address, 0, 0)

    def end_at(self, end_s: float) -> None:
        """Make the wait end at a time of time.monotonic."""
        self._end.seconds = int(end_s)
        self._end.nanoseconds = int(end_s % 1 * 1e9)


class _Mine(threading.local):
    semaphore: _Semaphore | None = None


_MINE = _Mine()
_ABANDONED: list[_Semaphore] = []
"""Semaphores that a driver may still post."""


def wait_for(handle: Any, most_s: float) -> bool:
    """Return True when a driver's event is over, False after so many seconds.

    handle: a pyopencl.Event. An event that failed is over; its own `wait` raises the error
    """
    driver = _driver()
    semaphore, _MINE.semaphore = _MINE.semaphore, None
    if driver is not None and semaphore is None:
        semaphore = _Semaphore(driver)
    if driver is None or semaphore is None:
        handle.wait()
        return True
    if driver.set_callback(handle.int_ptr, _COMPLETE, driver.post, semaphore.address):
        handle.wait()
        return True
    is_over = False
    try:
        is_over = _posted(driver, semaphore, most_s)
    finally:
        if is_over:
            _MINE.semaphore = semaphore
        else:
            _ABANDONED.append(semaphore)
    return is_over


def _posted(driver: _Driver, semaphore: _Semaphore, most_s: float) -> bool:
    end_s = time.monotonic() + min(most_s, _LONGEST_S)
    semaphore.end_at(end_s)
    while driver.wait(semaphore.address, time.CLOCK_MONOTONIC, semaphore.end_address):
        now_s = time.monotonic()
        if now_s >= end_s and most_s <= _LONGEST_S:
            return False
        semaphore.end_at(max(end_s, now_s + 1.0))  # a signal ended the wait, or it has no end
    return True


class _ForkedWaits:
    def reset_after_fork(self) -> None:
        """Drop the semaphore in a forked child: a driver may still post that of the parent."""
        _MINE.semaphore = None


_FORKED = _ForkedWaits()
register_at_fork(_FORKED)
