"""Which estimates decide a placement: those whose error alone would make a rival faster.

The rivals are each other device alone, and the declined mixture. The estimates of one op on one
device move together within their interval, towards the rival. Both placements are fixed meanwhile,
and the search's scorer scores them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from trireme.cost.estimate import Estimate, Source, interval
from trireme.cost.model import CostModel
from trireme.placement.objective import Objective, Scorer
from trireme.placement.placement import Placement
from trireme.placement.pricing import Pricing
from trireme.placement.solve import solve
from trireme.placement.uncertainty import Side, priced, rivals
from trireme.support.units import time_text

MOST = 5
"""The most estimates that are named."""
_STEPS = 12
"""Bisections of an interval: the seconds at which the placement changes, to a 4096th of it."""


@dataclass(frozen=True)
class Deciding:
    """The estimates of one op on one device, whose error would change the placement.

    nodes: ids of the nodes; seconds: the sum of their estimates, expected from low_s to high_s
    flips_at_s: the sum at which the rival takes as long as the placement
    rival: what is faster beyond: "npu alone", "the declined mixture"
    """

    op: str
    device: str
    nodes: tuple[int, ...]
    seconds: float
    low_s: float
    high_s: float
    flips_at_s: float
    rival: str
    source: Source

    def __str__(self) -> str:
        count = f"{len(self.nodes)} node{'s' if len(self.nodes) > 1 else ''}"
        side = "more" if self.flips_at_s > self.seconds else "less"
        return (
            f"{self.op} on {self.device} ({count}): {time_text(self.seconds)} "
            f"({time_text(self.low_s)} to {time_text(self.high_s)}); "
            f"at {time_text(self.flips_at_s)} or {side}, {self.rival} is faster"
        )


def deciding(placement: Placement, costs: CostModel) -> list[Deciding]:
    """Return the estimates whose error would change a placement, the likeliest first, MOST at most.

    None where there is one device, the objective is not a time, or all clocks are virtual: what a
    description says is exact.
    """
    clocks = {spec.clock for spec in placement.specs.values()}
    if placement.score.unit != "s" or clocks == {"virtual"}:
        return []
    pricing = priced(placement, costs)
    scorer = Scorer(pricing.problem, cast(Objective, placement.score.objective))
    assigned, tasks = pricing.assignment_of(placement)
    kept: Side = (assigned, tasks or [])
    found: dict[tuple[str, str], tuple[float, Deciding]] = {}
    for name, rival in _sides(placement, pricing, scorer, kept):
        for group in _groups(pricing, kept, rival):
            one = _Duel(pricing, scorer, kept, rival, group).deciding(name)
            if one is not None:
                width = max(one.high_s - one.low_s, 1e-300)
                needed = abs(one.flips_at_s - one.seconds) / width
                best = found.get((one.op, one.device))
                if best is None or needed < best[0]:
                    found[one.op, one.device] = needed, one
    return [one for _, one in sorted(found.values(), key=lambda row: row[0])[:MOST]]


def _sides(
    placement: Placement, pricing: Pricing, scorer: Scorer, kept: Side
) -> Iterator[tuple[str, Side]]:
    """Yield the rivals by name; what does not fit memory is none."""
    for name, side in rivals(pricing, scorer, kept):
        yield f"{name} alone", side
    if placement.declined:
        mixture = solve(placement.source, pricing.costs, scorer.objective)
        assigned, tasks = pricing.assignment_of(mixture)
        yield "the declined mixture", (assigned, tasks or [])


@dataclass(frozen=True)
class _Group:
    """Nodes of one op, by position, whose estimates on a device count in one placement alone.

    is_kept: whether that is the placement that is kept, and not the rival
    """

    op: str
    device: int
    nodes: tuple[int, ...]
    is_kept: bool


def _groups(pricing: Pricing, kept: Side, rival: Side) -> Iterator[_Group]:
    rows: dict[tuple[str, int, bool], list[int]] = {}
    for i, (node, mine, theirs) in enumerate(
        zip(pricing.graph.nodes, kept[0], rival[0], strict=True)
    ):
        if mine != theirs:
            rows.setdefault((node.op, mine, True), []).append(i)
            rows.setdefault((node.op, theirs, False), []).append(i)
    for (op, device, is_kept), nodes in rows.items():
        yield _Group(op, device, tuple(nodes), is_kept)


@dataclass(frozen=True)
class _Duel:
    """The placement that is kept and a rival, both held while a group's estimates move."""

    pricing: Pricing
    scorer: Scorer
    kept: Side
    rival: Side
    group: _Group

    def deciding(self, rival: str) -> Deciding | None:
        """Return where the rival takes over within the group's interval; None if nowhere."""
        group, names = self.group, self.pricing.problem.machine.names
        nodes = [self.pricing.graph.nodes[i] for i in group.nodes]
        own: list[Estimate] = [self.pricing.nodes[n.id][0][names[group.device]] for n in nodes]
        seconds = sum(one.seconds for one in own)
        low_s, high_s = interval(own)
        if not seconds:
            return None
        safe, far = 1.0, (high_s if group.is_kept else low_s) / seconds
        if far == safe or self.lead(far) >= 0:
            return None
        for _ in range(_STEPS):
            middle = (safe + far) / 2
            safe, far = (safe, middle) if self.lead(middle) < 0 else (middle, far)
        ids = tuple(node.id for node in nodes)
        return Deciding(
            group.op,
            names[group.device],
            ids,
            seconds,
            low_s,
            high_s,
            far * seconds,
            rival,
            own[0].source,
        )

    def lead(self, factor: float) -> float:
        """Return how much less what is kept takes, with the group's estimates times a factor."""
        problem, device = self.pricing.problem, self.group.device
        rows = list(problem.seconds)
        for i in self.group.nodes:
            rows[i] = [*rows[i][:device], problem.own_s(i, device) * factor, *rows[i][device + 1 :]]
        scorer = Scorer(problem.with_seconds(rows), self.scorer.objective)
        return scorer.value(*self.rival) - scorer.value(*self.kept)
