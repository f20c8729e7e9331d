"""Reset objects with threads or locks in a forked child, and wait for threads before a fork.

The child has the forking thread alone. Other threads of the parent may have held its locks, or may
have been importing modules, which the child would find in half.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from trireme.support.live_objects import LiveObjects


class Forkable(Protocol):
    """An object with threads or locks of its own."""

    def reset_after_fork(self) -> None:
        """Return to the state before any thread; called in a child without other threads."""


class Awaited(Protocol):
    """An object with a thread that ends soon."""

    def before_fork(self) -> None:
        """Return when the thread has ended."""


_KNOWN = LiveObjects[Forkable]()
_AWAITED = LiveObjects[Awaited]()


def register_at_fork(one: Forkable) -> None:
    """Call `one.reset_after_fork` in every forked child while the object lives."""
    _KNOWN.add(one)


def wait_before_fork(one: Awaited) -> None:
    """Call `one.before_fork` before every fork while the object lives."""
    _AWAITED.add(one)


def _before() -> None:
    for one in _AWAITED:
        one.before_fork()


def _in_child() -> None:
    for one in _KNOWN:
        one.reset_after_fork()


_register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register is not None:
    _register(before=_before, after_in_child=_in_child)
