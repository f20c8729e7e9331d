"""The turns that a thread has: a run of one session may run another, and hold both.

With open shapes a session runs the session of a region, and after a fault the session on other
devices. Where a launch in the inner one never returns, all turns around it are left, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import ref

from trireme.support.errors import DeviceError


class CallersTurns(Protocol):
    """What lets one run after another go through a plan.

    turn: the lock of the run that has the turn
    """

    @property
    def turn(self) -> threading.Lock:
        """See above."""

    def leave_turn(self, hung: DeviceError) -> None:
        """Let others run: the run that has the turn hangs on its caller's thread."""

    def begin_turn(self) -> None:
        """Prepare for what the caller that hung does next: it has the turn again."""


Turns = tuple[ref[CallersTurns], ...]
"""The outermost first. They keep nothing alive."""


class _HeldTurns(threading.local):
    turns: Turns = ()


_HELD = _HeldTurns()


def turns_around() -> Turns:
    """Return the turns that this thread holds around what it runs."""
    return _HELD.turns


@contextmanager
def holding_turn(turns: CallersTurns) -> Iterator[None]:
    """Say that this thread has the turn of a session in the block, in which it runs another."""
    before = _HELD.turns
    _HELD.turns = (*before, ref(turns))
    try:
        yield
    finally:
        _HELD.turns = before
