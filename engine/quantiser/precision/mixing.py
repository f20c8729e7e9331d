"""Place precision: search, measure the front again in its own graphs, and give the reasons.

`quantize` asks once, with the trial that it would have written whole. The trial that comes back
has the chosen nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import cast

from trireme.backend.device import Device
from trireme.ir.graph import Graph, Node, node_names
from trireme.ir.quantization.precision import (
    FloatReason,
    FrontPoint,
    PrecisionReport,
    UsualWay,
    Why,
)
from trireme.placement.placement import Placement
from trireme.quantiser.half import HALF, half_nodes
from trireme.quantiser.precision.budget import LossBudget
from trireme.quantiser.precision.evaluate import (
    MixedEvaluator,
    MixedPoint,
    Units,
    flipped,
    with_nodes,
)
from trireme.quantiser.precision.meter import LossMeter, snr_loss
from trireme.quantiser.precision.prices import precision_of
from trireme.quantiser.precision.search import EXHAUSTIVE, MOST_PLACEMENTS, SearchResult, search
from trireme.quantiser.precision.target import opened_target
from trireme.quantiser.samples import Feeds
from trireme.quantiser.trial import QuantTrial
from trireme.support.errors import GraphError

_FRONT = 10
"""The most points of a front, each of which is compiled and measured."""
Told = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Mixing:
    """The choices that `quantize` makes together with the placement.

    reread: gives all samples once more
    time_limit_s: after so many seconds no more choices are tried; None for no limit
    """

    budget: LossBudget
    devices: Sequence[str | Device] | None
    soc: str | None
    seed: int
    reread: Callable[[], Iterable[Feeds]]
    time_limit_s: float | None = None

    def place(
        self,
        trial: QuantTrial,
        method: str,
        feeds: Sequence[Feeds],
        threads: int | None,
        progress: Told,
    ) -> tuple[QuantTrial, PrecisionReport]:
        """Return the trial with the chosen nodes, and the report.

        feeds: the samples that noise is measured on
        Errors: GraphError, if no integer node keeps the budget; those of devices and descriptions
        """
        with opened_target(self.devices, self.soc, threads) as target, ExitStack() as stack:
            halves = half_nodes(trial.graph, target.costs)
            trial = replace(trial, selection=replace(trial.selection, halves=halves))
            meter = stack.enter_context(
                LossMeter(trial, method, feeds, self.reread, self.budget, threads)
            )

            def tell(done: int) -> None:
                progress("placing precision", done, MOST_PLACEMENTS)

            evaluator = MixedEvaluator(trial, method, target, meter, MOST_PLACEMENTS, tell)
            evaluator.quick = evaluator.choices > 2**EXHAUSTIVE
            evaluator.time_limit_s = self.time_limit_s
            found = search(evaluator, self.seed)
            usual = {name: _remeasured(evaluator, taken) for name, taken in found.usual.items()}
            points = _measured_front(evaluator, usual.values())
            chosen = next((p for p in points if p.loss <= self.budget.limit), None)
            if chosen is None or not _has_smaller(evaluator):
                raise _out_of_reach(evaluator)
            report = _report(evaluator, found, usual, points, chosen)
            return with_nodes(trial, chosen.taken), report


def _remeasured(evaluator: MixedEvaluator, taken: Units) -> MixedPoint:
    """Return a choice, its noise and loss measured in its own graph, its placement annealed."""
    noise, loss = evaluator.meter.of_graph(evaluator.emitted(taken))
    return MixedPoint(taken, evaluator.placement(taken).makespan_s, noise, loss)


def _measured_front(evaluator: MixedEvaluator, usual: Iterable[MixedPoint]) -> list[MixedPoint]:
    """Return the front from the fastest point on, each point measured in its own graph.

    A point whose graph measures worse than its switches did may leave the front. The usual ways are
    among the candidates, so that none of them is better than the front.
    """
    known = _front(evaluator.points)
    limit = evaluator.meter.budget.limit
    best = next((i for i, p in enumerate(known) if p.loss <= limit), len(known) - 1)
    first = max(0, min(best - _FRONT // 2, len(known) - _FRONT))
    near = [point.taken for point in known[first : first + _FRONT]]
    return _front([*usual, *(_remeasured(evaluator, taken) for taken in near)])


def _front(points: Iterable[MixedPoint]) -> list[MixedPoint]:
    """Return the points that no other one beats in latency and loss, the fastest first."""
    kept: list[MixedPoint] = []
    for point in sorted(points, key=lambda p: (p.latency_s, p.loss, sorted(p.taken))):
        if not kept or point.loss < kept[-1].loss:
            kept.append(point)
    return kept


def _has_smaller(evaluator: MixedEvaluator) -> bool:
    """Whether some choice with a node of integers or float16 keeps the budget."""
    limit = evaluator.meter.budget.limit
    return any(point.taken and point.loss <= limit for point in evaluator.points)


def _out_of_reach(evaluator: MixedEvaluator) -> GraphError:
    meter = evaluator.meter
    alone = {evaluator.settle({unit}) for unit in evaluator.flips}
    tried = sorted({point.taken for point in evaluator.points} | alone, key=sorted)
    best = min((taken for taken in tried if taken), key=meter.loss)
    kinds = "an integer or float16 node" if evaluator.trial.selection.halves else "an integer node"
    return GraphError(
        f"no choice with {kinds} keeps the budget: {meter.budget.text(meter.budget.limit)}",
        facts=[
            f"the best that is reached is {meter.budget.text(meter.loss(best))}, with {len(best)} "
            f"such node{'s' if len(best) > 1 else ''}",
            f"{len(tried)} choices were measured",
        ],
        fix="allow more loss, or keep the float model",
    )


def _report(
    evaluator: MixedEvaluator,
    found: SearchResult,
    usual: Mapping[str, MixedPoint],
    points: list[MixedPoint],
    chosen: MixedPoint,
) -> PrecisionReport:
    budget = evaluator.meter.budget
    return PrecisionReport(
        evaluator.target.name,
        budget.name,
        budget.limit,
        None if budget.is_snr else evaluator.meter.float_score,
        tuple(_front_rows(evaluator, points, chosen)),
        tuple(
            UsualWay(name, point.latency_s, point.loss, point.loss <= budget.limit)
            for name, point in usual.items()
        ),
        tuple(_reasons(evaluator, chosen)),
        evaluator.placements,
        found.is_exhaustive,
        evaluator.time_limit_s if evaluator.was_stopped else None,
    )


def _front_rows(
    evaluator: MixedEvaluator, points: list[MixedPoint], chosen: MixedPoint
) -> Iterable[FrontPoint]:
    graph, before = evaluator.graph, cast(MixedPoint | None, None)
    names = node_names(graph)
    for point in points:
        floats = [names[node.id] for node in graph.nodes if node.id not in point.integers]
        price = None
        if before is not None:
            price = (before.loss - point.loss) / (point.latency_s - before.latency_s) / 1e3
        yield FrontPoint(
            point.latency_s,
            point.loss,
            -snr_loss(point.noise),
            len(point.integers),
            len(floats),
            tuple(floats),
            point is chosen,
            price,
            len(point.halves),
        )
        before = point


def _reasons(evaluator: MixedEvaluator, chosen: MixedPoint) -> Iterable[FloatReason]:
    """Yield why each float node is float, with its latency and loss as integers.

    The difference in latency is one of two placements that the search made alike.
    """
    graph, names = evaluator.graph, node_names(evaluator.graph)
    devices = _devices(evaluator.placement(chosen.taken))
    units = chosen.taken.intersection(evaluator.flips)
    for node in graph.nodes:
        if node.id in chosen.integers:
            continue
        device = _device_of(graph, node, devices)
        row = FloatReason(
            names[node.id], node.op, device, "scheme", precision=precision_of(node.id, chosen.taken)
        )
        if node.id in evaluator.trial.selection.taken:
            other = None
            if node.id in evaluator.units:
                other = evaluator.settle(flipped(units, {node.id}))
            row = _reason(evaluator, row, chosen, node.id, other)
        yield row


def _reason(
    evaluator: MixedEvaluator, row: FloatReason, chosen: MixedPoint, node: int, other: Units | None
) -> FloatReason:
    if other is None or node not in other:
        return replace(row, why="neighbours")
    point = evaluator.point(other)
    breaks = point.loss > evaluator.meter.budget.limit
    more_s = point.latency_s - evaluator.latency_s(chosen.taken)
    why: Why = ("both" if more_s >= 0 else "budget") if breaks else "latency"
    return replace(row, why=why, loss=point.loss, latency_s=chosen.latency_s + more_s)


def _devices(placement: Placement) -> Mapping[str, str]:
    """Return the device that makes each value of a placed graph, by the value's name."""
    graph = placement.source
    return {
        graph.values[out].name: placement.device_of[node.id]
        for node in graph.nodes
        for out in node.outputs
    }


def _device_of(graph: Graph, node: Node, devices: Mapping[str, str]) -> str:
    """Return where a float node runs; a pass may have made it part of the node after it."""
    for out in node.outputs:
        name = graph.values[out].name
        for made in (name, f"{name}_{HALF}"):
            if made in devices:
                return devices[made]
    readers = [reader for out in node.outputs for reader in graph.users(out)]
    return _device_of(graph, readers[0], devices) if readers else "the caller"
