"""Report how precision was placed: the front, the chosen point, and why a float node is float."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trireme.support.units import time_text

Why = Literal["budget", "latency", "both", "neighbours", "scheme"]
"""Why a node is float. As integers the budget would break; or the run would take no less time; or
both. It follows float neighbours. Or the scheme does not take it."""
_MOST_SHOWN = 12
"""The most float nodes that the text lists."""


@dataclass(frozen=True)
class FrontPoint:
    """One choice of nodes of the front: no other known choice is both faster and better.

    latency_s: predicted seconds of a run on the target
    loss: measured on the graph itself; of "snr" the negative dB
    snr_db: signal-to-noise of the worst output
    integers, floats: numbers of nodes; halves: of the floats, those in float16
    float_names: the nodes that are float
    loss_per_ms: how much less the loss gets for each millisecond more, from the next faster point
        on; None for the fastest
    """

    latency_s: float
    loss: float
    snr_db: float
    integers: int
    floats: int
    float_names: tuple[str, ...]
    is_chosen: bool
    loss_per_ms: float | None = None
    halves: int = 0


@dataclass(frozen=True)
class UsualWay:
    """A usual way to choose what stays float, placed and measured alike.

    meets: whether it keeps the budget
    """

    name: str
    latency_s: float
    loss: float
    meets: bool


@dataclass(frozen=True)
class FloatReason:
    """A node that is float in the chosen point, and what it would be as integers.

    loss: of the outputs if it alone became integers; latency_s: predicted seconds of a run then.
        None where it cannot
    device: where it runs
    precision: "float32" or "float16"
    """

    name: str
    op: str
    device: str
    why: Why
    loss: float | None = None
    latency_s: float | None = None
    precision: str = "float32"


@dataclass(frozen=True)
class PrecisionReport:
    """The result of placing precision.

    target: the machine that latencies are predicted for
    limit: the greatest loss of the budget
    float_score: the metric's score of the float model; None for "snr"
    front: from the fastest point to the one of least loss
    usual: the usual ways, which the search starts from
    placements: how many choices were placed
    is_exhaustive: whether all choices were tried, so that no better one exists
    time_limit_s: the time limit, where it stopped the search; another run may then choose otherwise
    """

    target: str
    metric: str
    limit: float
    float_score: float | None
    front: tuple[FrontPoint, ...]
    usual: tuple[UsualWay, ...]
    reasons: tuple[FloatReason, ...]
    placements: int
    is_exhaustive: bool
    time_limit_s: float | None = None

    @property
    def chosen(self) -> FrontPoint:
        """The fastest point that keeps the budget."""
        return next(point for point in self.front if point.is_chosen)

    def loss_text(self, loss: float) -> str:
        """Return a loss for people."""
        if self.metric != "snr":
            return f"{loss:+.4f} {self.metric}"
        return "exact" if math.isinf(loss) else f"{-loss:.1f} dB"

    def __str__(self) -> str:
        """Return the front, the usual ways and the reasons in lines."""
        limit = (
            f"{-self.limit:g} dB at least" if self.metric == "snr" else f"{self.limit:g} at most"
        )
        score = "" if self.float_score is None else f", float {self.metric} {self.float_score:.4f}"
        found = "every choice" if self.is_exhaustive else f"{self.placements} choices"
        lines = [
            f"precision placed on {self.target}: loss by {self.metric}, {limit}{score}; "
            f"{found} placed and measured"
        ]
        if self.time_limit_s is not None:
            lines.append(f"  the search was stopped by its time limit of {self.time_limit_s:g} s")
        lines += [self._row(point) for point in self.front]
        lines += [
            f"    {one.name}: {time_text(one.latency_s)}, {self.loss_text(one.loss)}"
            f"{'' if one.meets else ', breaks the budget'}"
            for one in self.usual
        ]
        lines += [f"  {self.sentence(one)}" for one in self.reasons[:_MOST_SHOWN]]
        more = len(self.reasons) - _MOST_SHOWN
        return "\n".join([*lines, *([f"  and {more} more float nodes"] if more > 0 else [])])

    def _row(self, point: FrontPoint) -> str:
        mark = "*" if point.is_chosen else " "
        row = f"  {mark} {time_text(point.latency_s):>9}  {self.loss_text(point.loss):>14}"
        row += f"  {point.integers} integer, {point.floats} float nodes"
        row += f" ({point.halves} float16)" if point.halves else ""
        if point.loss_per_ms is None or not math.isfinite(point.loss_per_ms):
            return row
        unit = "dB" if self.metric == "snr" else self.metric
        return f"{row}, {point.loss_per_ms:.3g} {unit} for a millisecond more"

    def sentence(self, reason: FloatReason) -> str:
        """Return why a node is float."""
        what = "float16" if reason.precision == "float16" else "float"
        head = f"{reason.op} {reason.name} is {what} on {reason.device}: "
        if reason.why == "scheme":
            return head + "the scheme does not take it"
        if reason.why == "neighbours" or reason.loss is None or reason.latency_s is None:
            return head + "its neighbours are float, and alone it would only be converted twice"
        change = reason.latency_s - self.chosen.latency_s
        speed = f"{time_text(abs(change))} {'less' if change < 0 else 'more'} a run"
        if reason.why == "budget":
            return head + f"as integers {self.loss_text(reason.loss)}, over the budget, for {speed}"
        if reason.why == "latency":
            return head + f"as integers {speed}, for conversions and copies at its borders"
        return head + f"as integers {self.loss_text(reason.loss)}, over the budget, and {speed}"
