"""How far apart the cores of a device's threads are: what passing data between them costs.

A device whose threads share work measures it in a millisecond (`Device.handover`). A virtual
machine's cores are moved by its host: two virtual CPUs may be threads of one core, cores of one
cache, or cores with a cache each, and change from one to the other within seconds. `calibrate`
keeps what it was, estimates are priced by it (`priced`), and profiles say when it is no longer so.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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
class Handover:
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
            f"{_WORDS[self.apart]} (a flag takes {self.flag_s * 1e9:.0f} ns, a byte"
            f" {self.byte_s * 1e9:.2f} ns)"
        )


def median_of(found: Sequence[Handover]) -> Handover:
    """Return the median of each figure."""
    return Handover(
        statistics.median(one.flag_s for one in found),
        statistics.median(one.byte_s for one in found),
        statistics.median(one.alone for one in found),
    )


def priced(terms: Mapping[str, float], cores: Handover | None) -> Mapping[str, float]:
    """Return a kernel's terms with those that depend on the cores in seconds of them.

    cores: None where nobody measured them; then terms stay as they are
    """
    if cores is None:
        return terms
    return {name: amount * _unit_s(name, cores) for name, amount in terms.items()}


def _unit_s(name: str, cores: Handover) -> float:
    if name == FLAGS:
        return cores.flag_s
    return cores.byte_s if name.startswith(BYTES) else 1.0


def moved(name: str, then: Handover | None, now: Handover | None) -> str:
    """Return a sentence if cores are no longer as far apart as estimates take them to be, or "".

    name: of the device; then: what it is priced by
    """
    if then is None or now is None or then.apart == now.apart:
        return ""
    return (
        f"{name}: {now}, and it is priced for when {then}; to price it for now:"
        " trireme calibrate --cores"
    )
