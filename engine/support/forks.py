"""Reset objects with threads or locks in a forked child, and wait for threads before a fork.

The child has the forking thread alone. Other threads of the parent may have held its locks, or may
have been importing modules, which the child would find in half.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
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


_register: Callable[..., None] = getattr(os, "register_at_fork", lambda **hooks: None)
_KNOWN = LiveObjects[Forkable]()
_AWAITED = LiveObjects[Awaited]()
_HELD: list[AbstractContextManager[object]] = []
_FORKING = threading.local()
"""held: the locks that a thread which forks holds."""


def register_at_fork(one: Forkable) -> None:
    """Call `one.reset_after_fork` in every forked child while the object lives."""
    _KNOWN.add(one)


def wait_before_fork(one: Awaited) -> None:
    """Call `one.before_fork` before every fork while the object lives."""
    _AWAITED.add(one)
    _wait_first()


def hold_at_fork(lock: AbstractContextManager[object]) -> None:
    """Hold a lock of another library in every fork, so that a child never finds it taken."""
    _HELD.append(lock)
    _wait_first()


@functools.cache
def _wait_first() -> None:
    """Make forks wait before they take the lock of all thread pools, which awaited threads need.

    What is registered last is called first, and thread pools register at their import.
    """
    importlib.import_module("concurrent.futures.thread")
    _register(before=_before, after_in_parent=_in_parent)


def _before() -> None:
    for one in _AWAITED:
        one.before_fork()
    held = _FORKING.held = ExitStack()
    for lock in _HELD:
        held.enter_context(lock)


def _in_parent() -> None:
    held: ExitStack | None = vars(_FORKING).pop("held", None)
    if held is not None:
        held.close()


def _in_child() -> None:
    _in_parent()
    for one in _KNOWN:
        one.reset_after_fork()


_register(after_in_child=_in_child)
