"""Split samples as they pass: some measure what is chosen, the others make ranges and repairs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from trireme.ir.graph import Graph
from trireme.quantiser.samples import Feeds

_MEASURED = 24
"""The most samples that are kept in memory, to measure the error with."""
_MEASURED_BYTES = 256 << 20
"""The most bytes that float values of kept samples may take."""
_HELD_EVERY = 4
"""One sample of so many is held: what is chosen is chosen by samples that no range has seen."""
_REPAIRED = 24
"""The most samples that repairs are made of."""
_REPAIRED_BYTES = 128 << 20


@dataclass
class SampleSplit:
    """Samples as they pass: some are held from ranges, of the others the first ones are kept."""

    most_held: int
    most_kept: int
    held: list[Feeds] = field(default_factory=list)
    kept: list[Feeds] = field(default_factory=list)
    count: int = 0

    def take(self, feeds: Iterable[Feeds]) -> Iterator[Feeds]:
        """Yield the samples that ranges are made of."""
        for one in feeds:
            self.count += 1
            if self.count % _HELD_EVERY == 0 and len(self.held) < self.most_held:
                self.held.append(one)
                continue
            if len(self.kept) < self.most_kept:
                self.kept.append(one)
            yield one

    @property
    def measured(self) -> list[Feeds]:
        """The samples that errors are measured with: held ones, or kept ones where none is held."""
        return self.held or self.kept[:_MEASURED]


def split_of(graph: Graph, values: Collection[int]) -> SampleSplit:
    """Return an empty split whose samples, and the values watched of them, fit into memory."""
    watched = sum(graph.type(value).nbytes for value in values)
    fed = sum(value.type.nbytes for value in graph.input_values())
    return SampleSplit(
        max(1, min(_MEASURED, _MEASURED_BYTES // max(watched, 1))),
        max(1, min(_REPAIRED, _REPAIRED_BYTES // max(fed, 1))),
    )
