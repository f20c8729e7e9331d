"""Try repairs of a quantised model one after another, and keep those after which it is better.

A repair is a rewrite of the float graph, or of its ranges. It is tried on the samples that ranges
are made of, and measured on held samples, which no range and no repair has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trireme.ir.graph import Graph
from trireme.ir.quantization.report import RepairReport
from trireme.quantiser.assign import watched_values
from trireme.quantiser.grouping import group
from trireme.quantiser.measure import Values, Yardstick, worst_db
from trireme.quantiser.repairs.bias import corrected
from trireme.quantiser.repairs.equalise import equalised
from trireme.quantiser.repairs.outliers import clipped, outlier_cuts
from trireme.quantiser.repairs.products import channel_peaks
from trireme.quantiser.repairs.rounding import rounded
from trireme.quantiser.repairs.smooth import smoothed
from trireme.quantiser.samples import Feeds
from trireme.quantiser.select import Selection
from trireme.quantiser.statistics import gather
from trireme.quantiser.trial import QuantTrial
from trireme.support.errors import GraphError

AUTO, NONE = "auto", "none"
_LEAST_GAIN_DB = 0.3
"""A repair that gains less is noise, and is not kept."""
OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Repaired:
    """A way to quantise a model.

    real: the float graph, whose values the integers stand for; it means what the model means
    trial: writes the integers, from `real` with repaired constants
    method: how ranges are taken
    cuts: where ranges are cut, by value
    db: the least signal-to-noise of an output on the held samples
    """

    real: Graph
    trial: QuantTrial
    method: str
    db: float
    cuts: Mapping[int, float] = field(default_factory=dict)

    def with_samples(self, made: Iterable[Values]) -> QuantTrial:
        """Return the trial with more samples in its statistics, by their float values."""
        statistics = {value: one.copy() for value, one in self.trial.statistics.items()}
        for values in made:
            for value, one in statistics.items():
                one.add(values[value])
        return replace(self.trial, statistics=clipped(statistics, self.cuts))


@dataclass(frozen=True)
class RepairData:
    """The input of repairs: the samples of the ranges, and limits."""

    feeds: list[Feeds]
    held: Yardstick
    threads: int | None
    round_limit_gflop: float
    on_step: OnStep


Made = tuple[Repaired, str] | str
"""A candidate with what was repaired, or why there is nothing to repair."""


Rewrite = Callable[[Graph, frozenset[int], list[Feeds], int | None], tuple[Graph, str] | str]


def _equalise(now: Repaired, data: RepairData) -> Made:
    return _rewritten(now, data, equalised)


def _smooth(now: Repaired, data: RepairData) -> Made:
    return _rewritten(now, data, smoothed)


def _rewritten(now: Repaired, data: RepairData, rewrite: Rewrite) -> Made:
    """Rewrite the float graph; values that change get new statistics."""
    trial = now.trial
    made = rewrite(now.real, trial.selection.taken, data.feeds, data.threads)
    if isinstance(made, str):
        return made
    graph, what = made
    selection = _same_selection(trial, graph)
    values = watched_values(graph, selection)
    fresh = gather(graph, values, data.feeds, threads=data.threads, on_sample=lambda done: None)
    groups = group(graph, selection, trial.scheme)
    new = replace(trial, graph=graph, selection=selection, groups=groups, statistics=fresh)
    return replace(now, real=graph, trial=new), what


def _same_selection(trial: QuantTrial, graph: Graph) -> Selection:
    """Return the selection with the new nodes, which stay float."""
    new = {n.id: "it scales the input of products" for n in graph.nodes}
    known = trial.selection
    reasons = {n: why for n, why in new.items() if n not in known.taken} | dict(known.reasons)
    return replace(known, reasons=reasons)


def _clip(now: Repaired, data: RepairData) -> Made:
    trial = now.trial
    free = (v for v in trial.statistics if not trial.groups.fixed_of(v))
    values = [value for value in free if trial.graph.type(value).shape]
    peaks = channel_peaks(now.real, values, data.feeds, data.threads)
    cuts = outlier_cuts(peaks)
    if not cuts:
        return "no value has an outlier channel"
    cut = replace(trial, statistics=clipped(trial.statistics, cuts))
    return replace(now, trial=cut, cuts=cuts), f"{len(cuts)} values"


def _round(now: Repaired, data: RepairData) -> Made:
    def step(done: int, total: int) -> None:
        data.on_step("rounding weights", done, total)

    made = rounded(now.trial, now.method, data.feeds, data.threads, data.round_limit_gflop, step)
    return _with_graph(now, made)


def _correct(now: Repaired, data: RepairData) -> Made:
    return _with_graph(now, corrected(now.trial, now.method, now.real, data.feeds, data.threads))


def _with_graph(now: Repaired, made: tuple[Graph, str] | str) -> Made:
    if isinstance(made, str):
        return made
    return replace(now, trial=replace(now.trial, graph=made[0])), made[1]


REPAIRS: Mapping[str, Callable[[Repaired, RepairData], Made]] = {
    "equalisation": _equalise,
    "smooth_quant": _smooth,
    "outlier_clipping": _clip,
    "rounding": _round,
    "bias_correction": _correct,
}
"""The repairs by name, in the order in which they are tried."""
OF_WHOLE = frozenset({"rounding", "bias_correction"})
"""Repairs whose constants are right only if all nodes become the integers that they were made for:
a node that stays float would add a correction of an error that it does not make."""


def repairs_named(repairs: str | Collection[str], has_budget: bool = False) -> list[str]:
    """Return the names of repairs in the order to try them.

    has_budget: whether some of the nodes may be float after all; "auto" then leaves out OF_WHOLE
    Errors: GraphError, if a name is unknown or does not go with a budget
    """
    if repairs == NONE:
        return []
    names = list(REPAIRS) if repairs == AUTO else [repairs] if isinstance(repairs, str) else repairs
    for name in names:
        if name not in REPAIRS:
            known = ", ".join((AUTO, NONE, *REPAIRS))
            raise GraphError(f"unknown repair {name!r}", facts=[f"known: {known}"])
        if has_budget and name in OF_WHOLE and repairs != AUTO:
            raise GraphError(
                f"{name} does not go with a budget: nodes that it corrects may stay float",
                fix="leave it out of repairs, or leave out the budget",
            )
    if has_budget:
        names = [name for name in names if name not in OF_WHOLE]
    return [name for name in REPAIRS if name in names]


def repair(
    start: Repaired, names: Sequence[str], data: RepairData
) -> tuple[Repaired, tuple[RepairReport, ...]]:
    """Return the best candidate that the repairs lead to, and what each did."""
    best, rows = start, []
    for name in names:
        data.on_step(f"trying {name}", 0, 0)
        made = REPAIRS[name](best, data)
        if isinstance(made, str):
            rows.append(RepairReport(name, best.db, None, False, made))
            continue
        one, what = made
        db = worst_db(data.held.outputs(one.trial(one.method)))
        kept = db > best.db + _LEAST_GAIN_DB
        rows.append(RepairReport(name, best.db, db, kept, what))
        best = replace(one, db=db) if kept else best
    return best, tuple(rows)
