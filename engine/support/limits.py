"""What no model and no caller may exceed: sizes are checked before anything is enumerated.

Limits of one file format stay with its reader; these are what several rooms ask for.
"""

from __future__ import annotations

import functools
import os

MOST_THREADS = 1024
"""Threads of a device: each has a stack and a core to wait for."""
MOST_RANK = 64
"""Dimensions of a tensor: as many as numpy has."""
MOST_SAMPLES = 1 << 24
"""Samples that one node takes of its input, whatever its attributes ask for."""


@functools.cache
def host_memory_bytes() -> int:
    """Return the bytes of memory of this machine; of one that does not tell, 2^48."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 48
