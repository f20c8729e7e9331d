"""How far apart the cores of a device's threads are: what passing data between them costs.

A device whose threads share work measures it in a millisecond (`Device.core_latency`), or asks one
that has threads on the same cores, as an OpenCL driver on the CPU does. A virtual
machine's cores are moved by its host: two virtual CPUs may be threads of one core, cores of one
cache, or cores with a cache each, and change from one to the other within seconds. `calibrate`
keeps what it was, estimates are priced by it (`priced`), and profiles say when it is no longer so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trireme.backend.calibrate_hint import command
from trireme.support.units import time_text

Apart = Literal["shared", "near", "far"]
FAR_S = 120e-9
"""A flag takes longer between cores without a cache in common: 20 to 60 ns inside of one cache and
150 to 250 between two were measured on Zen 4."""
OWN = 0.7
"""Of what a thread does alone, what each does beside the others if it has a core of its own."""
BYTES, FLAGS = "handed_", "joins"
"""Terms that start with BYTES are bytes that may pass between cores, and FLAGS counts flags."""
_WORDS: Mapping[Apart, str] = {
    "shared": "threads share a core",
    "near": "the cores share a cache",
    "far": "the cores have no cache in common",
}


@dataclass(frozen=True)
class CoreLatency:
    """What passing data between the cores of a device's threads costs.

    flag_s: until a thread sees what another one wrote
    byte_s: of a byte that a thread writes where another one has just read
    alone: of what a thread does alone, what each does while all work: 0.5 where two share a core
    """

    flag_s: float
    byte_s: float
    alone: float = 1.0

    @property
    def apart(self) -> Apart:
        """How far apart the cores are."""
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
"""What is assumed where nobody measured it: cores that share a cache."""


def priced(terms: Mapping[str, float], cores: CoreLatency | None) -> Mapping[str, float]:
    """Return a kernel's terms with those that depend on the cores in seconds of them.

    cores: the usual ones where nobody measured them
    """
    return {name: amount * _unit_s(name, cores or USUAL) for name, amount in terms.items()}


def _unit_s(name: str, cores: CoreLatency) -> float:
    if name == FLAGS:
        return cores.flag_s
    return cores.byte_s if name.startswith(BYTES) else 1.0


@dataclass(frozen=True)
class Cores:
    """How far apart a device's cores are, beside what its estimates take them to be.

    device: its name; priced, now: None where it was not measured, or cannot be now
    """

    device: str
    priced: CoreLatency | None
    now: CoreLatency | None

    @property
    def have_moved(self) -> bool:
        """Whether the estimates are for cores that are nearer, or further apart."""
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


UNKNOWN, MOVING = "", "moving"
"""What a watch says where nothing is known, and of a time in which cores moved."""
_FRESH_S = 2e-3


@dataclass
class Watch:
    """Tells how far apart cores were from one look to the next.

    look: `Device.core_latency`; found: what it said, by how far apart
    """

    look: Callable[[], CoreLatency | None]
    found: dict[str, list[CoreLatency]] = field(default_factory=dict)
    _last: CoreLatency | None = None
    _at: float = float("-inf")

    def begin(self) -> None:
        """Look, unless that was done just now."""
        if time.perf_counter() - self._at > _FRESH_S:
            self._last = self.look()
            self._at = time.perf_counter()

    def end(self) -> str:
        """Return how far apart they were since `begin`: an Apart, UNKNOWN or MOVING."""
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
        """The median of what was found, by how far apart, the most frequent first."""
        order = sorted(self.found, key=lambda apart: -len(self.found[apart]))
        return {apart: median_of(self.found[apart]) for apart in order}
