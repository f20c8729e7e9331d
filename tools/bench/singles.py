"""`trireme bench --singles`: each model as it is placed, against every device alone.

"Alone" is what the search must never be worse than: all that the device can run is pinned to it,
and what it refuses goes wherever that costs least. Placements that are the same are one program: it
is timed once and listed under each name. How they are timed: turns.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

from trireme.backend.device import Clock, Progress
from trireme.cost.calibration import load_calibration
from trireme.cost.model import CostModel
from trireme.placement.objective import Objective
from trireme.placement.placement import Placement
from trireme.placement.singles import solve_singles
from trireme.runtime.models.autotune import is_same
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.tools.bench.turns import Entrant, Match, matches, text_table, time_match

CHOSEN = "as placed"


@dataclass(frozen=True)
class SingleRow:
    """One placement of a model.

    name: "as placed", or the device that has all it can run
    where: how many nodes each device has
    predicted_s, wall_s, virtual_s: of a run; measured ones the best
    clock: of the ratio, which is the chosen placement's time over this one's, the median over the
        rounds
    apart: the largest difference of an output from the chosen placement's, 0 when bit-identical
    """

    model: str
    name: str
    where: str
    tasks: int
    predicted_s: float
    wall_s: float
    virtual_s: float
    clock: Clock
    ratio: float
    apart: float


def bench_singles(
    options: argparse.Namespace, counts: Sequence[int], progress: Progress
) -> Iterator[list[SingleRow]]:
    """Yield the rows of each model with each number of threads."""
    yield from map(time_singles, matches(options, counts, progress))


def time_singles(match: Match) -> list[SingleRow]:
    """Return a row for a session's own placement, and one for each of its devices alone."""
    placements = {CHOSEN: match.first.placement, **single_placements(match)}
    with ExitStack() as stack:
        entrants: dict[str, Entrant] = {}
        for name, placement in placements.items():
            entrants[name] = _entrant(match, placement, list(entrants.values()), stack)
        clock = time_match(list({id(e): e for e in entrants.values()}.values()), match)
        first = entrants[CHOSEN]
        return [
            SingleRow(
                match.label,
                name,
                _where(placements[name]),
                placements[name].tasks,
                placements[name].makespan_s,
                min(one.wall_s),
                min(one.virtual_s),
                clock,
                first.ratio(one, clock),
                one.apart(first),
            )
            for name, one in entrants.items()
        ]


def single_placements(match: Match) -> dict[str, Placement]:
    """Return, by device, the best placement with all on it that it can run."""
    graph, devices = match.first.graph, match.first.devices
    objective = cast(Objective, match.first.placement.score.objective)
    costs = CostModel(devices, load_calibration(match.calibration))
    return solve_singles(graph, costs, objective)


def _entrant(
    match: Match, placement: Placement, others: Sequence[Entrant], stack: ExitStack
) -> Entrant:
    """Return the program of a placement: one that is there, if it is the same."""
    for other in others:
        if is_same(other.session.placement, placement):
            return other
    session = Session(
        placement.source,
        devices=match.shared,
        execution_options=AS_GIVEN,
        placement=placement,
        calibration=match.calibration,
    )
    stack.callback(session.close)
    return Entrant.ready(session, match.feeds)


def _where(placement: Placement) -> str:
    counts = {name: len(placement.nodes_on(name)) for name in placement.specs}
    return " ".join(f"{name} {count}" for name, count in counts.items() if count)


def chosen_over_best(rows: Sequence[SingleRow]) -> float:
    """Return the chosen placement's time over that of the fastest single device."""
    return max(row.ratio for row in rows if row.name != CHOSEN)


def singles_table(rows: Sequence[SingleRow]) -> str:
    """Return the rows of one model as text."""
    head = (
        "placement",
        "nodes",
        "tasks",
        "predicted ms",
        "wall ms",
        "virtual ms",
        "placed/this",
        "apart",
    )
    cells = [
        (
            r.name,
            r.where,
            r.tasks,
            f"{r.predicted_s * 1e3:.3f}",
            f"{r.wall_s * 1e3:.3f}",
            f"{r.virtual_s * 1e3:.3f}",
            f"{r.ratio:.3f}",
            f"{r.apart:.2g}",
        )
        for r in rows
    ]
    best = max((row for row in rows if row.name != CHOSEN), key=lambda row: row.ratio)
    return "\n".join(
        [
            rows[0].model,
            *text_table(head, cells),
            f"the best single device is {best.name}; as placed the model takes {best.ratio:.3f} of "
            f"its {best.clock} time",
        ]
    )
