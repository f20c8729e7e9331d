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

    def forget_threads(self) -> None:
        """Be as before the first use of a thread; called in a child, where no thread is left."""


_KNOWN: weakref.WeakSet[Forkable] = weakref.WeakSet()


def tell_of_forks(one: Forkable) -> None:
    """Have its `forget_threads` called in every forked child, for as long as it lives."""
    _KNOWN.add(one)


def _in_child() -> None:
    for one in list(_KNOWN):
        one.forget_threads()


_register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register is not None:
    _register(after_in_child=_in_child)
