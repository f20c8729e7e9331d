"""Measure candidate placements on the machine, and keep the fastest.

They take turns as the programs of `trireme bench --singles` do (bench/turns.py): wall time where
all devices are real; where one's times are modelled (the simulated NPU), virtual time of the
measured and modelled tasks.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from trireme.calibration import Calibration
from trireme.device import Device
from trireme.placement import Placement
from trireme.session import Session
from trireme.tools.bench.turns import Entrant, Match, take_turns
from trireme.tools.options import random_array

_ROUNDS, _TURN_S = 7, 0.02


def fastest(
    placements: Sequence[Placement],
    devices: Mapping[str, Device],
    calibration: Calibration | None = None,
) -> tuple[Placement, list[str]]:
    """Return the placement that ran fastest, and a line for each: predicted and measured.

    Those that are the same are measured once.
    Errors: those of Session
    """
    several = distinct(placements)
    with ExitStack() as stack:
        sessions = []
        for placement in several:
            sessions.append(
                Session(
                    placement.source, devices=list(devices.values()), passes=(),
                    placement=placement, calibration=calibration,
                )
            )  # fmt: skip
            stack.callback(sessions[-1].close)
        rng = np.random.default_rng(0)
        feeds = {value.name: random_array(value, rng) for value in sessions[0].inputs}
        entrants = [Entrant.ready(session, feeds) for session in sessions]
        match = Match(sessions[0], feeds, placements[0].source.name, _ROUNDS, _TURN_S)
        clock = take_turns(entrants, match)
    slower = [one.ratio(entrants[0], clock) for one in entrants]
    best = min(range(len(several)), key=lambda i: slower[i])
    lines = [
        f"measured: {_counts(placement)}: predicted {placement.makespan_s * 1e6:.1f} us, "
        f"{clock} {statistics.median(one.seconds(clock)) * 1e6:.1f} us"
        f"{' <- kept' if one is entrants[best] else ''}"
        for placement, one in zip(several, entrants, strict=True)
    ]
    return several[best], lines


def distinct(placements: Iterable[Placement]) -> list[Placement]:
    """Return the placements without those that are the same as one before."""
    found: list[Placement] = []
    for placement in placements:
        if not any(is_same(placement, other) for other in found):
            found.append(placement)
    return found


def is_same(one: Placement, other: Placement) -> bool:
    """Whether two placements of one model run the same tasks in the same places."""
    return (
        one.device_of == other.device_of
        and one.stage_of == other.stage_of
        and len(one.source.nodes) == len(other.source.nodes)
    )


def _counts(placement: Placement) -> str:
    counts = [f"{name} {len(placement.nodes_on(name))}" for name in placement.specs]
    return f"{', '.join(counts)} nodes in {placement.tasks} tasks"
