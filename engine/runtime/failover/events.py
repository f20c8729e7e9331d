"""What became of the faults of devices: typed events, one warning each, told to who listens."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trireme.support.errors import (
    CompileError,
    DeviceError,
    FaultKind,
    PlanError,
    TriremeError,
)

_log = logging.getLogger(__name__)
MOST_EVENTS = 256
"""Events that a session keeps; older ones go."""

Action = Literal["left out", "ran again", "failed", "taken out", "brought back"]
"""What became of a device or of a run.

left out: the session opened without the device
ran again: the run went to other devices and succeeded there
failed: no other device could run it
taken out: further runs pass the device over
brought back: the device runs again
"""
_LEVELS = {"brought back": logging.INFO}


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
    "taken out": "is taken out, runs go on",
    "brought back": "is back",
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

    def add(self, event: FaultEvent, level: int | None = None) -> None:
        """Keep an event, log it and tell the listeners. level: of logging; that of its action"""
        self._events.append(event)
        own = _LEVELS.get(event.action, logging.WARNING)
        _log.log(own if level is None else level, "device %s", event)
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
