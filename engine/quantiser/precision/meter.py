"""Measure what a choice of nodes loses: one graph with switches runs every choice.

The switched graph has each node on floats, on integers, and in float16 where it may be that. A
choice runs its own forms of nodes alone, and nothing that it shares with the choice before its
moves (`pieces.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from trireme.ir.graph import Graph
from trireme.quantiser.measure import float_outputs
from trireme.quantiser.precision.budget import TOP1, LossBudget, best_class
from trireme.quantiser.precision.pieces import SwitchedRuns
from trireme.quantiser.samples import Feeds
from trireme.quantiser.trial import QuantTrial
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array
from trireme.support.errors import RunError

Run = Callable[[Feeds], Mapping[str, Array]]
Taken = frozenset[int]


class LossMeter:
    """Measures the noise and the loss of choices of nodes, by switches or in their own graph.

    feeds: the few samples that noise is measured on
    reread: all samples again, for metrics that are no noise
    """

    def __init__(
        self,
        trial: QuantTrial,
        method: str,
        feeds: Sequence[Feeds],
        reread: Callable[[], Iterable[Feeds]],
        budget: LossBudget,
        threads: int | None,
    ) -> None:
        self.graph, self.budget = trial.graph, budget
        self._feeds, self._reread, self._threads = feeds, reread, threads
        self._names = [trial.graph.values[v].name for v in float_outputs(trial.graph)]
        emitted = trial(method, switched=True)
        self._runs = SwitchedRuns(emitted.graph, emitted.switches, threads)
        self._noises: dict[Taken, float] = {}
        self._losses: dict[Taken, float] = {}
        self.start_from(frozenset())
        self._real = list(self._held(frozenset()))
        self._signals = {
            name: sum(_square(real[name].astype(np.float64)) for real in self._real)
            for name in self._names
        }
        self._answers: Array | None = None
        self.float_score = 0.0 if budget.is_snr else self._score(self._switched(frozenset()))

    def __enter__(self) -> LossMeter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runs.close()

    def noise(self, taken: Taken) -> float:
        """Return the noise of the worst output over its signal, of a choice."""
        if taken not in self._noises:
            self._noises[taken] = self._noise(self._held(taken))
        return self._noises[taken]

    def start_from(self, taken: Taken) -> None:
        """Keep the values of a choice for those that differ from it by little."""
        self._runs.keep(self._feeds, taken)

    def loss(self, taken: Taken) -> float:
        """Return the loss of a choice."""
        if self.budget.is_snr:
            return snr_loss(self.noise(taken))
        if taken not in self._losses:
            self._losses[taken] = self.float_score - self._score(self._switched(taken))
        return self._losses[taken]

    def of_graph(self, graph: Graph) -> tuple[float, float]:
        """Return (noise, loss) of a graph with the same inputs and outputs, as it would run."""
        names = [graph.values[out].name for out in graph.outputs]
        with Session(graph, threads=self._threads) as session:

            def run(feeds: Feeds) -> Mapping[str, Array]:
                made = session.run(feeds)
                return self._named([made[name] for name in names])

            noise = self._noise(run(one) for one in self._feeds)
            if self.budget.is_snr:
                return noise, snr_loss(noise)
            return noise, self.float_score - self._score(run)

    def _switched(self, taken: Taken) -> Run:
        """Return what runs a choice on any sample."""
        return lambda feeds: self._named(self._runs.run(feeds, taken))

    def _held(self, taken: Taken) -> Iterator[Mapping[str, Array]]:
        """Yield the outputs of a choice for each sample that noise is measured on."""
        for sample, feeds in enumerate(self._feeds):
            yield self._named(self._runs.run(feeds, taken, sample))

    def _named(self, outputs: Collection[Array]) -> Mapping[str, Array]:
        """Return the float outputs of a graph by their names in the float graph."""
        return {
            self.graph.values[real].name: made
            for real, made in zip(self.graph.outputs, outputs, strict=True)
            if self.graph.type(real).dtype == "float32"
        }

    def _noise(self, made: Iterable[Mapping[str, Array]]) -> float:
        """Return the noise of the worst output over its signal."""
        noises = dict.fromkeys(self._names, 0.0)
        for real, one in zip(self._real, made, strict=True):
            for name in self._names:
                noises[name] += _square(np.subtract(one[name], real[name], dtype=np.float64))
        ratios = (_ratio(noise, self._signals[name]) for name, noise in noises.items())
        return max(ratios, default=0.0)

    def _score(self, run: Run) -> float:
        """Return the score of all samples.

        Errors: RunError, if the labels or the metric do not fit the model's outputs
        """
        kept: dict[str, list[Any]] = {name: [] for name in self._names}
        budget = self.budget
        for feeds in self._reread():
            made = run(feeds)
            for name, rows in kept.items():
                rows.append(made[name] if budget.score else best_class(made[name]))
        if budget.score is not None:
            return self._asked({name: np.stack(rows) for name, rows in kept.items()})
        found = np.concatenate(next(iter(kept.values())))
        if budget.name == TOP1 and budget.labels is not None:
            if len(budget.labels) != len(found):
                raise RunError(
                    f"{len(budget.labels)} labels are given, and the samples make "
                    f"{len(found)} answers",
                    fix="give a label for each sample, in the samples' order",
                )
            return float(np.mean(found == budget.labels))
        if self._answers is None:
            self._answers = found
        return float(np.mean(found == self._answers))

    def _asked(self, outputs: Mapping[str, Array]) -> float:
        """Return what the caller's function says of outputs."""
        score_of = self.budget.score
        try:
            score = float(score_of(outputs, self.budget.labels)) if score_of else 0.0
        except Exception as error:
            shapes = [f"'{name}': {list(one.shape)}" for name, one in outputs.items()]
            raise RunError(f"the metric failed: {error}", facts=shapes) from error
        if not np.isfinite(score):
            raise RunError(f"the metric returned {score}, expected a finite number")
        return score


def snr_loss(noise: float) -> float:
    """Return noise over signal as a loss: the negative signal-to-noise in dB."""
    return float(10 * np.log10(noise)) if noise > 0 else -np.inf


def noise_of(loss: float) -> float:
    """Return the noise over signal of a negative signal-to-noise in dB."""
    return float(10 ** (loss / 10))


def _ratio(noise: float, signal: float) -> float:
    if noise <= 0:
        return 0.0
    return noise / signal if signal > 0 else np.inf


def _square(x: Array) -> float:
    """Return the sum of squares."""
    return float(np.vdot(x, x))
