"""Core latency: the cost of passing data between the cores of a device's threads.

A device whose threads share work measures it in a millisecond (`Device.core_latency`). An OpenCL
driver on the CPU uses the measurement of a device with threads on the same cores.

A host moves the cores of a virtual machine within seconds. Two virtual CPUs may be threads of one
core, cores of one cache, or cores with a cache each. `calibrate` stores the latency, estimates are
priced by it (`priced`), and profiles say when it has changed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Literal

from trireme.backend.calibrate_hint import command
from trireme.support.records import dataclass
from trireme.support.units import time_text

Apart = Literal["shared", "near", "far"]
FAR_S = 120e-9
"""The least flag latency between cores without a common cache. Measured on Zen 4: 20 to 60 ns
within one cache and 150 to 250 between two."""
OWN = 0.7
"""Above this share of its speed alone, a thread beside others has a core of its own."""
BYTES = "handed_"
"""A term that starts with this text counts bytes that may pass between cores."""
FLAGS = "joins"
"""The term that counts flags that pass between cores."""
_WORDS: Mapping[Apart, str] = {
    "shared": "threads share a core",
    "near": "the cores share a cache",
    "far": "the cores have no cache in common",
}


@dataclass(frozen=True)
class CoreLatency:
    """The cost of passing data between the cores of a device's threads.

    flag_s: seconds until a thread sees the write of another
    byte_s: seconds of a byte that a thread writes where another has just read
    alone: speed of a thread while all work, relative to its speed alone: 0.5 where two share a core
    """

    flag_s: float
    byte_s: float
    alone: float = 1.0

    @property
    def apart(self) -> Apart:
        """The state of the cores: shared, near or far."""
        if self.alone < OWN:
            return "shared"
        return "far" if self.flag_s > FAR_S else "near"

    def __str__(self) -> str:
        return (
            f"{_WORDS[self.apart]} (a flag takes {time_text(self.flag_s)}, "
            f"a byte {time_text(self.byte_s)})"
        )


def median_of(found: Sequence[CoreLatency]) -> CoreLatency:
    """Return the median of each figure."""
    return CoreLatency(
        statistics.median(one.flag_s for one in found),
        statistics.median(one.byte_s for one in found),
        statistics.median(one.alone for one in found),
    )


USUAL = CoreLatency(56e-9, 0.1e-9)
"""The latency for devices without a measurement: cores that share a cache."""


def priced(terms: Mapping[str, float], cores: CoreLatency | None) -> Mapping[str, float]:
    """Return a kernel's terms, with those that depend on the cores converted to seconds.

    cores: None for the usual latency
    """
    return {name: amount * _unit_s(name, cores or USUAL) for name, amount in terms.items()}


def _unit_s(name: str, cores: CoreLatency) -> float:
    if name == FLAGS:
        return cores.flag_s
    return cores.byte_s if name.startswith(BYTES) else 1.0


@dataclass(frozen=True)
class Cores:
    """A device's core latency now, beside the one that its estimates use.

    device: its name
    priced, now: None where unknown
    """

    device: str
    priced: CoreLatency | None
    now: CoreLatency | None

    @property
    def have_moved(self) -> bool:
        """Whether the cores are nearer or further apart than the estimates assume."""
        return bool(self.priced and self.now and self.priced.apart != self.now.apart)

    def __str__(self) -> str:
        if self.now is None:
            return f"{self.device}: how far apart its cores are cannot be told: others use them"
        if not self.have_moved:
            return f"{self.device}: {self.now}{', as it is priced' if self.priced else ''}"
        return (
            f"{self.device}: {self.now}, but it is priced for when {self.priced};"
            f" to price it for now: {command([self.device], '--cores')}"
        )


UNKNOWN = ""
"""The state of the cores where nobody can measure it."""
MOVING = "moving"
"""The state of the cores when it changed between two looks."""
_FRESH_S = 2e-3


@dataclass
class Watch:
    """Observes the state of the cores from one look to the next.

    look: `Device.core_latency`
    found: the results, by state
    """

    look: Callable[[], CoreLatency | None]
    found: dict[str, list[CoreLatency]] = field(default_factory=dict)
    _last: CoreLatency | None = None
    _at: float = float("-inf")

    def begin(self) -> None:
        """Look, unless the last look was just now."""
        if time.perf_counter() - self._at > _FRESH_S:
            self._last = self.look()
            self._at = time.perf_counter()

    def end(self) -> str:
        """Return the state of the cores since `begin`: an Apart, UNKNOWN or MOVING."""
        before, self._last = self._last, self.look()
        self._at, now = time.perf_counter(), self._last
        if before is None and now is None:
            return UNKNOWN
        if before is None or now is None or before.apart != now.apart:
            return MOVING
        self.found.setdefault(now.apart, []).append(now)
        return now.apart

    @property
    def known(self) -> dict[str, CoreLatency]:
        """The median result of each state, the most frequent state first."""
        order = sorted(self.found, key=lambda apart: -len(self.found[apart]))
        return {apart: median_of(self.found[apart]) for apart in order}
