"""Limits for every model and caller: code checks sizes before it enumerates anything.

Several rooms use these limits. A limit of one file format belongs to the reader of the format.
"""

from __future__ import annotations

import functools
import os

MOST_THREADS = 1024
"""The most threads of a device: each thread has a stack and needs a core."""
MOST_RANK = 64
"""The most dimensions of a tensor, as in numpy."""
MOST_SAMPLES = 1 << 24
"""The most samples that one node takes of its input, for any attributes."""


@functools.cache
def host_memory_bytes() -> int:
    """Return the bytes of memory of this machine; 2^48 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 48
