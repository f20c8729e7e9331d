"""Place and measure each choice of nodes once: its cost and its loss."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.placement.placement import Placement
from trireme.quantiser.memo import EncodingMemo
from trireme.quantiser.precision.meter import LossMeter
from trireme.quantiser.precision.target import PrecisionTarget
from trireme.quantiser.scheme import form_of
from trireme.quantiser.select import Selection, data_inputs, half_of, settled
from trireme.quantiser.trial import QuantTrial
from trireme.support.cached import cached_property

HALF_REASON = "float16 keeps the loss budget in less time"
FLOAT_REASON = "float keeps the loss budget, or is as fast on the target"
Units = frozenset[int]
"""A choice: nodes that are integers, by id, and nodes in float16, by `half_of` the id.

Nodes that only keep or move their input follow these."""


@dataclass(frozen=True)
class MixedPoint:
    """One choice, its predicted latency, noise and loss."""

    taken: Units
    latency_s: float
    noise: float
    loss: float

    @property
    def integers(self) -> frozenset[int]:
        """The nodes that are integers."""
        return frozenset(unit for unit in self.taken if unit >= 0)

    @property
    def halves(self) -> frozenset[int]:
        """The nodes in float16."""
        return frozenset(half_of(unit) for unit in self.taken if unit < 0)


def with_nodes(trial: QuantTrial, taken: Units) -> QuantTrial:
    """Return the trial with a choice of the nodes that it had."""
    known = trial.selection
    integers = frozenset(unit for unit in taken if unit >= 0)
    halves = frozenset(half_of(unit) for unit in taken if unit < 0)
    reasons = {**known.reasons, **dict.fromkeys(known.taken - integers, FLOAT_REASON)}
    reasons |= dict.fromkeys(halves, HALF_REASON)
    left = Selection(integers, reasons, known.to_floats & integers, halves)
    return replace(trial, selection=left)


def flipped(now: Collection[int], changed: Collection[int]) -> set[int]:
    """Return a choice with some units added or removed; what is added takes its node's place."""
    added = set(changed).difference(now)
    return (set(now) ^ set(changed)) - {half_of(unit) for unit in added}


@dataclass
class MixedEvaluator:
    """Places and measures choices of one trial, whose selection has all nodes that may be float16.

    most_placements: the placements that a search may ask for
    on_placement: told of each placement: their number so far
    quick: whether placements of the search stop after one local search
    time_limit_s: after so many seconds the search tries no more choices; None for no limit
    was_stopped: whether the limit kept the search from a choice
    """

    trial: QuantTrial
    method: str
    target: PrecisionTarget
    meter: LossMeter
    most_placements: int
    on_placement: Callable[[int], None]
    quick: bool = False
    time_limit_s: float | None = None
    was_stopped: bool = False
    _placed: dict[Units, Placement] = field(default_factory=dict)
    _latencies: dict[Units, float] = field(default_factory=dict)
    _points: dict[Units, MixedPoint] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trial = replace(self.trial, memo=EncodingMemo())
        self._start_s = time.monotonic()

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

    @cached_property
    def flips(self) -> tuple[int, ...]:
        """The units that a choice may hold: integers, then those of float16, in graph order."""
        halves = (
            half_of(node.id)
            for node in self.graph.nodes
            if node.id in self.trial.selection.halves and form_of(get_op(node.op)) != "same"
        )
        return (*self.units, *halves)

    @property
    def choices(self) -> int:
        """The number of choices that there are."""
        ways = Counter(max(unit, half_of(unit)) for unit in self.flips)
        return math.prod(1 + count for count in ways.values())

    @property
    def placements(self) -> int:
        """The number of choices that were placed."""
        return len(self._latencies)

    @property
    def may_place(self) -> bool:
        """Whether the search may ask for one more placement."""
        return self.placements < self.most_placements and not self.is_late

    @property
    def is_late(self) -> bool:
        """Whether the time limit is over, which stops the search that asks."""
        limit = self.time_limit_s
        if limit is not None and time.monotonic() - self._start_s > limit:
            self.was_stopped = True
        return self.was_stopped

    @property
    def points(self) -> list[MixedPoint]:
        """All choices that were placed and measured."""
        return list(self._points.values())

    def settle(self, units: Iterable[int]) -> Units:
        """Return the whole choice where these units are asked for.

        An island of integers without a product goes back to floats; it would only be converted
        twice. A node that moves or keeps values is float16 after float16 alone.
        """
        chosen = set(units)
        follow = self.trial.selection.taken.difference(self.units)
        integers = settled(self.graph, {unit for unit in chosen if unit >= 0} | follow)
        halves = {half_of(unit) for unit in chosen if unit < 0} - integers
        movers = self.trial.selection.halves.difference(map(half_of, self.flips), integers)
        for node in self.graph.nodes:
            if node.id in movers and self._makers(node) <= halves:
                halves.add(node.id)
        return frozenset(integers) | {half_of(node) for node in halves}

    def _makers(self, node: Node) -> set[int]:
        """Return the nodes that make the data of a node; -1 stands for the caller."""
        made = (self.graph.producer(v) for v in data_inputs(node))
        return {-1 if maker is None else maker.id for maker in made}

    def latency_s(self, taken: Units) -> float:
        """Return the predicted seconds of a run of a choice."""
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
