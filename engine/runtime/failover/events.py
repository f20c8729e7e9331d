"""The events of a session: one warning each, told to who listens."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from trireme.support.errors import (
    CompileError,
    DeviceError,
    FaultKind,
    PlanError,
    TriremeError,
)
from trireme.support.fault_events import Action, FaultEvent

_log = logging.getLogger(__name__)
MOST_EVENTS = 256
"""Events that a session keeps; older ones go."""

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
