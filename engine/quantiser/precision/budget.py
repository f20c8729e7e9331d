"""How much a quantised model may lose: a metric, its limit, and the labels that it needs.

A loss is a number that is better when lower. That of "snr" is the negative signal-to-noise of the
worst output in dB. That of any other metric is the float model's score less the quantised one's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.support.dtypes import Array
from trireme.support.errors import GraphError, RunError

Outputs = Mapping[str, Array]
Score = Callable[[Outputs, Array | None], float]
"""(outputs by name with the samples along a first axis, labels) -> a number, better when higher."""
SNR, TOP1, AGREEMENT = "snr", "top1", "agreement"
METRICS = (SNR, TOP1, AGREEMENT)
"""The metrics with names; any function that is a Score is one too."""


@dataclass(frozen=True)
class LossBudget:
    """The most that a quantised model may lose.

    name: of the metric, for texts
    limit: the greatest loss; for "snr" the least signal-to-noise in dB, negated
    score: for metrics that are functions; None for those with names
    labels: of all samples, in order
    """

    name: str
    limit: float
    score: Score | None = None
    labels: Array | None = None

    @property
    def is_snr(self) -> bool:
        """Whether the loss is the output's noise, which needs no labels and few samples."""
        return self.name == SNR and self.score is None

    def text(self, loss: float) -> str:
        """Return a loss for people."""
        if not self.is_snr:
            return f"{self.name} loss {loss:.4g}"
        return "exact" if loss == -math.inf else f"{-loss:.1f} dB"


def budget_of(budget: float | None, metric: str | Score | None, labels: Any) -> LossBudget | None:
    """Return the budget that the arguments of `quantize` say, None where they say none.

    Errors: GraphError, if they do not go together; RunError, if labels cannot be read
    """
    if budget is None:
        for what, given in (("metric", metric), ("labels", labels)):
            if given is not None:
                raise GraphError(
                    f"{what} is of a budget, and none is given",
                    fix="add budget=, which is --max-loss or --min-snr-db on the command line",
                )
        return None
    _check_metric(budget, metric)
    known = None if labels is None else _labels(labels)
    if metric == TOP1 and known is None:
        raise GraphError(
            "the metric top1 compares the model with labels, and none are given",
            fix="give labels=, or take metric='agreement', which compares it with the float model",
        )
    if metric in (SNR, AGREEMENT) and known is not None:
        raise GraphError(f"the metric {metric} needs no labels", fix="take metric='top1'")
    limit = float(budget)
    if metric == SNR:
        return LossBudget(SNR, -limit)
    if callable(metric):
        name = getattr(metric, "__name__", type(metric).__name__)
        return LossBudget(name, limit, metric, known)
    return LossBudget(str(metric), limit, None, known)


def _check_metric(budget: float, metric: str | Score | None) -> None:
    if metric is None:
        raise GraphError(
            "a budget is of a metric, and none is given",
            fix="metric='top1' with labels, 'agreement' or 'snr', or a function",
        )
    if not callable(metric) and metric not in METRICS:
        raise GraphError(f"unknown metric {metric!r}", facts=[f"known: {', '.join(METRICS)}"])
    if not math.isfinite(budget):
        raise GraphError(f"the budget is {budget}, expected a finite number")
    if metric != SNR and budget < 0:
        raise GraphError(f"the budget is {budget}: a loss below 0 would be a gain")


def _labels(labels: Any) -> Array:
    if not isinstance(labels, (str, os.PathLike)):
        return np.asarray(labels).reshape(-1)
    try:
        found = np.load(labels, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RunError(f"{labels} cannot be read as labels: {error}", fix="an .npy file") from error
    if not isinstance(found, np.ndarray):
        raise RunError(f"{labels} holds several arrays, expected one of labels", fix="an .npy file")
    return found.reshape(-1)


def best_class(output: Array) -> Array:
    """Return the index of the greatest number along the last axis, flat."""
    best: Array = np.argmax(output.reshape(-1, output.shape[-1]), axis=-1)
    return best
