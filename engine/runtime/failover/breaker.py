"""A circuit breaker: a device that fails often is passed over, and tried again now and then."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from dataclasses import dataclass

from trireme.support.cancel import Clock
from trireme.support.errors import FaultKind
from trireme.support.forks import register_at_fork


@dataclass(frozen=True)
class BreakerRule:
    """When a device is passed over.

    faults, window_s: so many faults in so many seconds
    canary_every_s: seconds between two tries of a device that is out
    """

    faults: int = 3
    window_s: float = 60.0
    canary_every_s: float = 30.0


class CircuitBreaker:
    """The devices that are out. Any thread may call any method.

    out: devices that are passed over; replaced, never changed, so that readers need no lock
    """

    def __init__(self, rule: BreakerRule, clock: Clock) -> None:
        self.rule, self._clock = rule, clock
        self.out: frozenset[str] = frozenset()
        self._faults: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=rule.faults))
        self._due_s: dict[str, float] = {}
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Be free in a forked child."""
        self._lock = threading.Lock()

    def add_fault(self, device: str, kind: FaultKind) -> bool:
        """Count a fault; return whether it took the device out. One that is LOST stays out."""
        now_s = self._clock()
        with self._lock:
            times = self._faults[device]
            times.append(now_s)
            is_lost = kind in (FaultKind.LOST, FaultKind.HANG)
            is_often = len(times) == self.rule.faults and now_s - times[0] <= self.rule.window_s
            if device in self.out or not (is_lost or is_often):
                return False
            self.out |= {device}
            if not is_lost:
                self._due_s[device] = now_s + self.rule.canary_every_s
            return True

    def take_due(self) -> bool:
        """Whether the devices that are out are to be tried now, by this caller alone.

        Never while one of them is lost.
        """
        now_s = self._clock()
        with self._lock:
            due = [self._due_s.get(device) for device in self.out]
            if not due or any(one is None or now_s < one for one in due):
                return False
            for device in self.out:
                self._due_s[device] = now_s + self.rule.canary_every_s
            return True

    def bring_back(self) -> list[str]:
        """Have all devices run again, and return those that were out; faults are forgotten."""
        with self._lock:
            back = sorted(self.out)
            self.out = frozenset()
            self._due_s.clear()
            self._faults.clear()
            return back
