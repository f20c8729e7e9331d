"""Measure what a choice of nodes loses: one graph with switches runs every choice.

The switched graph has each node on floats, on integers, and in float16 where it may be that. It is
compiled once. A choice is then
a matter of feeds, so that a measurement is a run of twice the float model's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from trireme.ir.graph import Graph
from trireme.quantiser.measure import Noise, float_outputs
from trireme.quantiser.precision.budget import TOP1, LossBudget, best_class
from trireme.quantiser.samples import Feeds
from trireme.quantiser.trial import QuantTrial
from trireme.runtime.session import Session
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
        self._emitted = trial(method, switched=True)
        self._session = Session(self._emitted.graph, threads=threads)
        self._noises: dict[Taken, float] = {}
        self._losses: dict[Taken, float] = {}
        self.runs = 0
        run = self._switched(frozenset())
        self._real = [run(one) for one in feeds]
        self._answers: Array | None = None
        self.float_score = 0.0 if budget.is_snr else self._score(run)

    def __enter__(self) -> LossMeter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.close()

    def noise(self, taken: Taken) -> float:
        """Return the noise of the worst output over its signal, of a choice."""
        if taken not in self._noises:
            self._noises[taken] = self._noise(self._switched(taken))
        return self._noises[taken]

    def loss(self, taken: Taken) -> float:
        """Return the loss of a choice."""
        if self.budget.is_snr:
            return snr_loss(self.noise(taken))
        if taken not in self._losses:
            self._losses[taken] = self.float_score - self._score(self._switched(taken))
        return self._losses[taken]

    def of_graph(self, graph: Graph) -> tuple[float, float]:
        """Return (noise, loss) of a graph with the same inputs and outputs, as it would run."""
        with Session(graph, threads=self._threads) as session:
            run = self._running(graph, session.run)
            noise = self._noise(run)
            if self.budget.is_snr:
                return noise, snr_loss(noise)
            return noise, self.float_score - self._score(run)

    def _switched(self, taken: Taken) -> Run:
        on, off = np.array([True]), np.array([False])
        switches = {name: on if n in taken else off for n, name in self._emitted.switches.items()}

        return self._running(
            self._emitted.graph, lambda feeds: self._session.run({**feeds, **switches})
        )

    def _running(self, graph: Graph, run: Run) -> Run:
        """Return what runs a graph and gives its float outputs by the names in the float graph."""
        names = {
            self.graph.values[real].name: graph.values[made].name
            for real, made in zip(self.graph.outputs, graph.outputs, strict=True)
            if self.graph.type(real).dtype == "float32"
        }

        def named(feeds: Feeds) -> Mapping[str, Array]:
            self.runs += 1
            made = run(feeds)
            return {name: made[one] for name, one in names.items()}

        return named

    def _noise(self, run: Run) -> float:
        noises = {name: Noise() for name in self._names}
        for real, feeds in zip(self._real, self._feeds, strict=True):
            made = run(feeds)
            for name, noise in noises.items():
                noise.add(real[name], made[name])
        return max((_ratio(noise) for noise in noises.values()), default=0.0)

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


def _ratio(noise: Noise) -> float:
    if noise.noise <= 0:
        return 0.0
    return noise.noise / noise.signal if noise.signal > 0 else np.inf
