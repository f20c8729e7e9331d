"""Statistics of values over samples: each sample runs once, and memory does not grow with them.

The float graph runs in a Session whose outputs are the watched values. Of each value its least and
greatest are kept, those of each sample, and a histogram whose bins widen as the range grows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from trireme.ir.graph import Graph, Quant
from trireme.ir.verify import check
from trireme.quantiser.encode import range_of
from trireme.quantiser.samples import Feeds
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array
from trireme.support.errors import RunError

BINS = 2048
_MOST_COUNTED = 1 << 16
"""The most elements of one sample that enter the histogram of a value; every k-th of more."""
OnSample = Callable[[int], None]


@dataclass
class ValueStatistics:
    """The statistics of one value: range, ranges of the samples, and a histogram of its magnitude.

    low, high: over all samples
    lows, highs: of each sample
    counts: of |x| in BINS equal bins up to `top`, of negative and of positive numbers apart
    """

    low: float = np.inf
    high: float = -np.inf
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    top: float = 0.0
    counts: Array = field(default_factory=lambda: np.zeros(2 * BINS, np.int64))
    seen: int = 0

    def add(self, x: Array) -> None:
        """Count the elements of a value in one more sample."""
        low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
        self.lows.append(low)
        self.highs.append(high)
        self.low, self.high = min(self.low, low), max(self.high, high)
        if not (np.isfinite(low) and np.isfinite(high)):
            self.low = np.nan
            return
        flat = x.reshape(-1)
        step = -(-flat.size // _MOST_COUNTED)
        self._count(flat[:: step or 1])

    def _count(self, x: Array) -> None:
        self._widen(max(abs(self.low), abs(self.high)))
        self.seen += x.size
        if self.top:
            places = np.floor(x * np.float32(BINS / self.top)).astype(np.int32)
            np.clip(places, -BINS, BINS - 1, out=places)
            self.counts += np.bincount(places + BINS, minlength=2 * BINS)

    def _widen(self, peak: float) -> None:
        """Make the histogram reach a magnitude, by joining pairs of bins."""
        if not self.top:
            self.top = peak
            return
        while self.top < peak:
            half = BINS // 2
            joined = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.zeros_like(self.counts)
            self.counts[half : half + BINS] = joined
            self.top *= 2

    def copy(self) -> ValueStatistics:
        """Return statistics that more samples can be added to."""
        return replace(
            self, lows=list(self.lows), highs=list(self.highs), counts=self.counts.copy()
        )

    def share_beyond(self, quant: Quant, dtype: str) -> float:
        """Return the share of elements that a quantisation clips, from the histogram."""
        low, high = range_of(quant, dtype)
        x, half = self.centres, quant.scale / 2
        return float(self.counts[(x < low - half) | (x > high + half)].sum() / max(self.seen, 1))

    @property
    def centres(self) -> Array:
        """The middle of each bin."""
        return (np.arange(-BINS, BINS) + 0.5) * (self.top / BINS)


def watched(graph: Graph, values: Collection[int]) -> tuple[Graph, dict[int, str]]:
    """Return the graph with these values as its outputs, and their names there."""
    names = {value: f"t{value}" for value in values}
    renamed = {
        value: replace(known, name=names.get(value, known.name))
        if value not in graph.inputs
        else known
        for value, known in graph.values.items()
    }
    kept = [value for value in values if value not in graph.inputs]
    used = nodes_for(graph, kept)
    nodes = tuple(node for node in graph.nodes if node.id in used)
    made = replace(graph, outputs=tuple(kept), nodes=nodes, values=renamed)
    inputs = {value: graph.values[value].name for value in values if value in graph.inputs}
    return check(made), names | inputs


def nodes_for(graph: Graph, values: Collection[int]) -> set[int]:
    """Return the ids of the nodes that values need."""
    wanted, used = set(values), set()
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            used.add(node.id)
            wanted.update(node.used)
    return used


def run_watched(
    graph: Graph, values: Collection[int], feeds: Iterable[Feeds], threads: int | None
) -> Iterable[Mapping[int, Array]]:
    """Yield the watched values of each sample, by id; inputs are among them."""
    seen, names = watched(graph, values)
    with Session(seen, threads=threads) as session:
        for one in feeds:
            made = {**one, **session.run(one)}
            yield {value: made[name] for value, name in names.items()}


def gather(
    graph: Graph,
    values: Collection[int],
    feeds: Iterable[Feeds],
    *,
    threads: int | None,
    on_sample: OnSample,
) -> dict[int, ValueStatistics]:
    """Return the statistics of values over all samples.

    Errors: RunError, if a value is not finite
    """
    found = {value: ValueStatistics() for value in values}
    for number, made in enumerate(run_watched(graph, values, feeds, threads)):
        for value, statistics in found.items():
            statistics.add(made[value])
            if not np.isfinite(statistics.low) or not np.isfinite(statistics.high):
                raise _without_range(graph, value, number)
        on_sample(number + 1)
    return found


def _without_range(graph: Graph, value: int, number: int) -> RunError:
    """Return the error of a value that is not finite; it names a constant that is the cause."""
    makers = [maker] if (maker := graph.producer(value)) else []
    broken = [
        f"{node.label} reads the constant '{graph.values[i].first_name}', which is not finite"
        for node in makers
        for i in node.used
        if (data := graph.values[i].data) is not None
        and data.dtype.kind == "f"
        and not np.isfinite(data).all()
    ]
    return RunError(
        f"sample {number} makes '{graph.values[value].first_name}' infinite or NaN, so it has no "
        "range",
        facts=broken,
        fix="repair the model, whose constants are damaged"
        if broken
        else "see what the model gets: its preprocessing, or an input that overflows",
    )
