"""A circuit breaker a device: one that fails often is passed over, and tried again now and then.

Every session of the process that may do without the device shares its breaker. So what one session
learns of a device holds for the others. The breaker is forgotten with the last of them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

from trireme.backend.device import DeviceSpec
from trireme.support.cancel import Clock
from trireme.support.errors import FaultKind
from trireme.support.fault_events import FaultEvent
from trireme.support.forks import register_at_fork
from trireme.support.live_objects import LiveObjects, LiveValues


@dataclass(frozen=True)
class BreakerRule:
    """When a device is passed over.

    faults, window_s: so many faults in so many seconds
    canary_every_s: seconds between two tries of a device that is out
    """

    faults: int = 3
    window_s: float = 60.0
    canary_every_s: float = 30.0


class BreakerListener(Protocol):
    """A session's part that is told when a device is taken out and when it is back."""

    def device_changed(self, event: FaultEvent, by: object) -> None:
        """Note the event. by: the listener whose session met the fault, or tried the device"""


class CircuitBreaker:
    """Whether one device is passed over. Any thread may call any method.

    is_out: whether it is; a device that is LOST stays out
    clock: gives seconds; tests replace it
    """

    def __init__(self, rule: BreakerRule | None = None, clock: Clock = time.monotonic) -> None:
        self.rule, self.clock = rule or BreakerRule(), clock
        self.is_out = self._is_lost = False
        self._due_s = 0.0
        self._faults: deque[float] = deque(maxlen=self.rule.faults)
        self._listeners = LiveObjects[BreakerListener]()
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Be free in a forked child."""
        self._lock = threading.Lock()

    def listen(self, listener: BreakerListener) -> None:
        """Tell a listener, as long as it lives, when the device is taken out and when it is back.

        It hears from the next change on.
        """
        with self._lock:
            self._listeners.add(listener)

    def add_fault(self, event: FaultEvent, by: object) -> None:
        """Count a fault, which may take the device out. by: the listener that met it"""
        now_s = self.clock()
        with self._lock:
            self._faults.append(now_s)
            is_lost = event.kind in (FaultKind.LOST, FaultKind.HANG)
            is_full = len(self._faults) == self.rule.faults
            is_often = is_full and now_s - self._faults[0] <= self.rule.window_s
            if self.is_out or not (is_lost or is_often):
                self._is_lost |= is_lost and self.is_out
                return
            self.is_out, self._is_lost = True, is_lost
            self._due_s = now_s + self.rule.canary_every_s
        self._tell(replace(event, action="taken out"), by)

    @property
    def is_due(self) -> bool:
        """Whether the device is out and to be tried now. One that is lost never is."""
        return self.is_out and not self._is_lost and self.clock() >= self._due_s

    def take_due(self) -> bool:
        """Whether the device is to be tried now, by this caller alone."""
        with self._lock:
            is_due = self.is_due
            if is_due:
                self._due_s = self.clock() + self.rule.canary_every_s
            return is_due

    def bring_back(self, device: str, by: object) -> None:
        """Have the device run again, and forget its faults. by: the listener that tried it"""
        with self._lock:
            if not self.is_out or self._is_lost:
                return
            self.is_out = False
            self._faults.clear()
        self._tell(FaultEvent(device, FaultKind.UNKNOWN, "", "brought back"), by)

    def _tell(self, event: FaultEvent, by: object) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for one in listeners:
            one.device_changed(event, by)


class Breakers:
    """The breakers of a process, by what tells a device from others: its name and description."""

    def __init__(self) -> None:
        self._made = LiveValues[tuple[str, str], CircuitBreaker]()
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Be free in a forked child."""
        self._lock = threading.Lock()

    def of(self, spec: DeviceSpec) -> CircuitBreaker:
        """Return the breaker of a device; whoever holds it keeps it."""
        key = spec.name, spec.description
        with self._lock:
            found = self._made.get(key)
            if found is None:
                found = self._made[key] = CircuitBreaker()
            return found


BREAKERS = Breakers()
