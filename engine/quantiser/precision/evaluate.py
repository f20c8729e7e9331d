"""What a choice of nodes costs and loses: each choice is placed once and measured once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from trireme.ir.graph import Graph
from trireme.ir.op import get_op
from trireme.placement.placement import Placement
from trireme.quantiser.memo import EncodingMemo
from trireme.quantiser.precision.meter import LossMeter
from trireme.quantiser.precision.target import PrecisionTarget
from trireme.quantiser.scheme import form_of
from trireme.quantiser.select import settled
from trireme.quantiser.trial import QuantTrial

FLOAT_REASON = "float keeps the loss budget, or is as fast on the target"
Units = frozenset[int]
"""Nodes, by id, that are integers. Nodes that keep their input's integers follow these."""


@dataclass(frozen=True)
class MixedPoint:
    """One choice: the nodes that are integers, its predicted latency, noise and loss."""

    taken: Units
    latency_s: float
    noise: float
    loss: float


def with_nodes(trial: QuantTrial, taken: Units) -> QuantTrial:
    """Return the trial whose integer nodes are these of the nodes that it had."""
    reasons = dict(trial.selection.reasons)
    reasons.update(dict.fromkeys(trial.selection.taken - taken, FLOAT_REASON))
    left = replace(
        trial.selection, taken=taken, reasons=reasons, to_floats=trial.selection.to_floats & taken
    )
    return replace(trial, selection=left)


@dataclass
class MixedEvaluator:
    """Places and measures choices of one trial.

    most_placements: the placements that a search may ask for
    on_placement: told of each placement: their number so far
    quick: whether placements of the search stop after one local search
    """

    trial: QuantTrial
    method: str
    target: PrecisionTarget
    meter: LossMeter
    most_placements: int
    on_placement: Callable[[int], None]
    quick: bool = False
    _placed: dict[Units, Placement] = field(default_factory=dict)
    _latencies: dict[Units, float] = field(default_factory=dict)
    _points: dict[Units, MixedPoint] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trial = replace(self.trial, memo=EncodingMemo())

    @property
    def graph(self) -> Graph:
        """The float graph."""
        return self.trial.graph

    @cached_property
    def units(self) -> tuple[int, ...]:
        """The nodes whose precision is chosen, in graph order: all that make an error.

        A node that only keeps or moves integers follows its neighbours.
        """
        return tuple(
            node.id
            for node in self.graph.nodes
            if node.id in self.trial.selection.taken and form_of(get_op(node.op)) != "same"
        )

    @property
    def placements(self) -> int:
        """The number of choices that were placed."""
        return len(self._latencies)

    @property
    def may_place(self) -> bool:
        """Whether the search may ask for one more placement."""
        return self.placements < self.most_placements

    @property
    def points(self) -> list[MixedPoint]:
        """All choices that were placed and measured."""
        return list(self._points.values())

    def settle(self, units: Iterable[int]) -> Units:
        """Return all nodes that become integers where these do.

        An island without a product goes back to floats; it would only be converted twice.
        """
        chosen = set(units)
        follow = self.trial.selection.taken.difference(self.units)
        return frozenset(settled(self.graph, chosen | follow))

    def latency_s(self, taken: Units) -> float:
        """Return the predicted seconds of a run where these nodes are integers."""
        if taken not in self._latencies:
            made = self.target.place(self.emitted(taken), self.quick)
            self._latencies[taken] = made.makespan_s
            self.on_placement(len(self._latencies))
        return self._latencies[taken]

    def placement(self, taken: Units) -> Placement:
        """Return where the mixed graph would run, annealed."""
        if taken not in self._placed:
            self._placed[taken] = self.target.place(self.emitted(taken))
        return self._placed[taken]

    def emitted(self, taken: Units) -> Graph:
        """Return the mixed graph; its ranges are those of the switched graph."""
        return with_nodes(self.trial, taken)(self.method).graph

    def point(self, taken: Units) -> MixedPoint:
        """Return the latency, the noise and the loss of a choice."""
        if taken not in self._points:
            self._points[taken] = MixedPoint(
                taken, self.latency_s(taken), self.meter.noise(taken), self.meter.loss(taken)
            )
        return self._points[taken]

    def meets(self, taken: Units) -> bool:
        """Whether a choice keeps the budget."""
        return self.meter.loss(taken) <= self.meter.budget.limit
