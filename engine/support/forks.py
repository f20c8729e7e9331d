"""What must start afresh in a forked child: it has the forking thread alone, and locks that others
of the parent's threads may have held.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol


class Forkable(Protocol):
    """Something with threads or locks of its own."""

    def reset_after_fork(self) -> None:
        """Be as before the first use of a thread; called in a child, where no thread is left."""


_KNOWN: weakref.WeakSet[Forkable] = weakref.WeakSet()


def register_at_fork(one: Forkable) -> None:
    """Have its `reset_after_fork` called in every forked child, for as long as it lives."""
    _KNOWN.add(one)


def _in_child() -> None:
    for one in list(_KNOWN):
        one.reset_after_fork()


_register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register is not None:
    _register(after_in_child=_in_child)
