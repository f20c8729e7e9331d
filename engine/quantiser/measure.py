"""Compare a quantised graph with the float graph, value by value, over a few samples.

Signal-to-noise is 10 log10(sum y^2 / sum (y - quantised)^2) in dB, over all samples together. That
of the part that depends on the input takes the mean of y over the samples from both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trireme.ir.graph import Graph
from trireme.ir.quantization.report import OutputReport
from trireme.ops.integer import dequantized
from trireme.quantiser.emit import Emitted
from trireme.quantiser.samples import Feeds
from trireme.quantiser.statistics import run_watched
from trireme.support.dtypes import Array

Values = Mapping[int, Array]


@dataclass
class Noise:
    """Sums over samples, of one value: its square and that of its error."""

    signal: float = 0.0
    noise: float = 0.0
    mean: Array | None = None
    count: int = 0
    _errors: Array | None = field(default=None, repr=False)

    def add(self, real: Array, made: Array) -> None:
        """Count one sample."""
        y, error = real.astype(np.float64), made.astype(np.float64) - real
        self.signal += float(np.vdot(y, y))
        self.noise += float(np.vdot(error, error))
        self.mean = y if self.mean is None else self.mean + y
        self._errors = error if self._errors is None else self._errors + error
        self.count += 1

    @property
    def db(self) -> float:
        """Signal-to-noise in dB; infinite without an error."""
        return decibels(self.signal, self.noise)

    @property
    def moving_db(self) -> float:
        """Signal-to-noise in dB of the part that depends on the input."""
        if self.mean is None or self._errors is None or self.count < 2:
            return self.db
        still = float(np.vdot(self.mean, self.mean)) / self.count
        bias = float(np.vdot(self._errors, self._errors)) / self.count
        return decibels(max(self.signal - still, 0.0), max(self.noise - bias, 0.0))


@dataclass
class ScaledNoise:
    """As Noise, of a value whose channels (the last axis) a repair has multiplied by constants.

    The constants are those that leave the least error.
    """

    signal: Array | float = 0.0
    made: Array | float = 0.0
    product: Array | float = 0.0

    def add(self, real: Array, made: Array) -> None:
        """Count one sample."""
        x, y = (one.astype(np.float64).reshape(-1, one.shape[-1]) for one in (made, real))
        self.signal = self.signal + (y * y).sum(axis=0)
        self.made = self.made + (x * x).sum(axis=0)
        self.product = self.product + (x * y).sum(axis=0)

    @property
    def db(self) -> float:
        """Signal-to-noise in dB; infinite without an error."""
        same = np.maximum(self.product, 0.0) ** 2
        explained = np.divide(same, self.made, out=np.zeros_like(same), where=self.made > 0)
        noise = float(np.maximum(self.signal - explained, 0.0).sum())
        return decibels(float(np.sum(self.signal)), noise)


def decibels(signal: float, noise: float) -> float:
    """Return 10 log10(signal / noise)."""
    if noise <= 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


class Yardstick:
    """The float values of a few samples, which quantised graphs are compared with."""

    def __init__(
        self, graph: Graph, values: Collection[int], feeds: Sequence[Feeds], threads: int | None
    ) -> None:
        self.graph, self.feeds, self.threads = graph, feeds, threads
        self.values = tuple(values)
        self.real = [dict(made) for made in run_watched(graph, self.values, feeds, threads)]

    def compare(self, emitted: Emitted, values: Collection[int]) -> dict[int, Noise]:
        """Return the noise of values of the float graph, by id, in a quantised graph."""
        found = {value: Noise() for value in values}
        for real, made in zip(self.real, self._runs(emitted, values), strict=True):
            for value in values:
                found[value].add(real[value], made[value])
        return found

    def outputs(self, emitted: Emitted) -> dict[int, Noise]:
        """Return the noise of the graph's outputs that are float."""
        return self.compare(emitted, float_outputs(self.graph))

    def widest_channel(self, value: int) -> tuple[int, float]:
        """Return the channel (last axis) of the largest peak, and that peak over the median one.

        The median is that of the channels which are not 0 in all samples.
        """
        rows = (made[value].reshape(-1, made[value].shape[-1]) for made in self.real)
        peaks = np.max([np.abs(one).max(axis=0, initial=0.0) for one in rows], axis=0)
        live = peaks[peaks > 0]
        return int(peaks.argmax()), float(live.max() / np.median(live)) if live.size else 1.0

    def _runs(self, emitted: Emitted, values: Collection[int]) -> Iterator[dict[int, Array]]:
        return _runs(self.graph, emitted, values, self.feeds, self.threads)


def _runs(
    graph: Graph,
    emitted: Emitted,
    values: Collection[int],
    feeds: Sequence[Feeds],
    threads: int | None,
) -> Iterator[dict[int, Array]]:
    """Yield values of the float graph as a quantised graph makes them, for each sample."""
    places = places_of(graph, emitted, values)
    watched = tuple(dict.fromkeys(places.values()))
    for made in run_watched(emitted.graph, watched, feeds, threads):
        yield {value: _real(emitted.graph, place, made[place]) for value, place in places.items()}


def paired(
    graph: Graph,
    emitted: Emitted,
    values: Collection[int],
    feeds: Sequence[Feeds],
    threads: int | None,
) -> Iterator[tuple[Values, Values]]:
    """Yield values of a float graph, and as a quantised graph makes them, for each sample."""
    real = run_watched(graph, tuple(values), feeds, threads)
    return zip(real, _runs(graph, emitted, values, feeds, threads), strict=True)


def _real(graph: Graph, value: int, array: Array) -> Array:
    type = graph.type(value)
    return dequantized(array, type) if type.quant else array


def float_outputs(graph: Graph) -> list[int]:
    """Return the outputs of the graph that are float32, each once."""
    return [v for v in dict.fromkeys(graph.outputs) if graph.type(v).dtype == "float32"]


def places_of(graph: Graph, emitted: Emitted, values: Collection[int]) -> dict[int, int]:
    """Return the id in the quantised graph of values of the float graph."""
    outputs = dict(zip(graph.outputs, emitted.graph.outputs, strict=True))
    return {value: emitted.integers.get(value, outputs.get(value, -1)) for value in values}


def worst_db(noises: Mapping[int, Noise]) -> float:
    """Return the least signal-to-noise of some values."""
    return min((noise.db for noise in noises.values()), default=math.inf)


def output_reports(graph: Graph, noises: Mapping[int, Noise]) -> tuple[OutputReport, ...]:
    """Return the report of each float output."""
    return tuple(
        OutputReport(graph.values[v].name, noises[v].db, noises[v].moving_db)
        for v in float_outputs(graph)
    )
