"""The heap of the C library, which keeps what was freed."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> None:
    """Give free memory of the heap back to the system, in some milliseconds; nothing but on glibc.

    What a thread freed stays in its part of the heap, also after the thread has ended.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
