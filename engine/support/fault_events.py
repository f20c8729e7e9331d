"""Report the faults of devices, and their outcomes, as typed events."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal

from trireme.support.errors import CompileError, DeviceError, FaultKind, PlanError, TriremeError
from trireme.support.records import dataclass

_log = logging.getLogger(__name__)
MOST_EVENTS = 256
"""Events that a session keeps; older ones go."""
Action = Literal["left out", "ran again", "failed", "hangs"]
"""The outcome of a fault for a device or for a run.

left out: the session opened without the device
ran again: the run went to other devices and succeeded there; later runs go there at once
failed: no other device could run it
hangs: a launch does not return to its caller; runs of other callers go on
"""


@dataclass(frozen=True)
class FaultEvent:
    """A fault of a device, and what became of it.

    node: the first node of the task that failed, "" where no task did
    to: the devices that ran instead; error: the error's first line
    """

    device: str
    kind: FaultKind
    node: str
    action: Action
    to: tuple[str, ...] = ()
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        at = f" at {self.node}" if self.node else ""
        to = f" on {', '.join(self.to)}" if self.to else ""
        said = f": {self.error}" if self.error else ""
        return f"{self.device} {_SAID[self.action]}{to} ({self.kind}{at}){said}"


_SAID: dict[Action, str] = {
    "left out": "is left out",
    "ran again": "failed, the run was repeated",
    "failed": "failed, and no other device could run",
    "hangs": "hangs and holds its caller",
}


Listener = Callable[[FaultEvent], None]


class EventLog:
    """The events of a session, the oldest first; any thread may add one."""

    def __init__(self) -> None:
        self._events: deque[FaultEvent] = deque(maxlen=MOST_EVENTS)
        self.listeners: list[Listener] = []

    @property
    def events(self) -> tuple[FaultEvent, ...]:
        """The last events, the oldest first."""
        return tuple(self._events)

    def add(self, event: FaultEvent) -> None:
        """Keep an event, warn of it and tell the listeners."""
        self._events.append(event)
        _log.warning("device %s", event)
        for listen in self.listeners:
            listen(event)


def fault_kind(error: TriremeError) -> FaultKind:
    """Return the kind of a fault, for errors of any stage."""
    if isinstance(error, DeviceError):
        return error.kind
    if isinstance(error, CompileError):
        return FaultKind.COMPILE_FAILED
    return FaultKind.OUT_OF_MEMORY if isinstance(error, PlanError) else FaultKind.UNKNOWN


def event_of(error: TriremeError, action: Action, to: tuple[str, ...] = ()) -> FaultEvent:
    """Return the event of an error."""
    node = error.node if isinstance(error, DeviceError) else ""
    return FaultEvent(error.device, fault_kind(error), node, action, to, error.summary)


MOST_LINES = 5
"""Events that a page shows unless it is asked for all."""


def event_lines(events: Sequence[FaultEvent], most: int = MOST_LINES) -> list[str]:
    """Return a line for each of the last events, and one for those before them."""
    more = len(events) - most
    before = [f"  event          {more} earlier ones: Session.events has them"] if more > 0 else []
    return before + [f"  event          {one}" for one in events[-most:]]
