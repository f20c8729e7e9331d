"""Make Python look for cycles of garbage rarely, in a command that makes many objects and ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 200_000
"""Objects made before Python looks for cycles among the young ones; Python's own number is 700."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Look for cycles rarely until the block ends.

    The nodes, values and estimates of a large graph live to the end of the command, so looking at
    them over and over finds nothing.
    """
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
