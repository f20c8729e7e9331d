"""Seconds of copies between memory spaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from trireme.backend.device import HOST
from trireme.support.records import dataclass


@dataclass(frozen=True)
class Link:
    """A link between two memory spaces: seconds = latency_s + bytes / bandwidth."""

    latency_s: float
    bandwidth: float

    def seconds(self, nbytes: int) -> float:
        """Return the predicted seconds of one copy."""
        return self.latency_s + nbytes / self.bandwidth


@dataclass(frozen=True)
class Links:
    """Copy costs between memory spaces; a copy between two devices goes through the host."""

    to_host: Mapping[str, Link] = field(default_factory=dict)
    from_host: Mapping[str, Link] = field(default_factory=dict)

    def seconds(self, nbytes: int, source: str, target: str) -> float:
        """Return the predicted seconds to copy between two different spaces."""
        total = 0.0
        if source != HOST:
            total += self.to_host[source].seconds(nbytes)
        if target != HOST:
            total += self.from_host[target].seconds(nbytes)
        return total
