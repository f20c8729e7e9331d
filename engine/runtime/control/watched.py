"""Watch the tasks of bodies, so that a run comes back from a device that hangs in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from trireme.runtime.failover.task_watch import TaskWatch


@runtime_checkable
class CallWithBodies(Protocol):
    """A bound call that runs bodies."""

    def watch_bodies(self, run: TaskWatch) -> None:
        """Tell the watches of the bodies, which belong to that of a run, what begins and ends."""


def watch_calls(calls: Sequence[Any], run: TaskWatch) -> None:
    """Watch the bodies of bound calls for a run."""
    for call in calls:
        if isinstance(call, CallWithBodies):
            call.watch_bodies(run)
