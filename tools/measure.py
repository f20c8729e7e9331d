"""Measure candidate placements on the machine, and keep the fastest.

Wall time where all devices are real; where one's times are modelled (the simulated NPU), virtual
time of the measured and modelled tasks. Candidates take turns, so that drift meets them alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from trireme.device import Device
from trireme.placement import Placement
from trireme.session import Session
from trireme.tools.options import random_array

_ROUNDS, _RUNS = 5, 5


def fastest(
    placements: Sequence[Placement], devices: Mapping[str, Device]
) -> tuple[Placement, list[str]]:
    """Return the placement that ran fastest, and a line for each: predicted and measured.

    Errors: those of Session
    """
    virtual = any(device.spec.clock == "virtual" for device in devices.values())
    sessions: list[Session] = []
    try:
        for placement in placements:
            held = list(devices.values())
            sessions.append(Session(placement.source, devices=held, passes=(), placement=placement))
        seconds = _measured(sessions, virtual)
    finally:
        for session in sessions:
            session.close()
    best = min(range(len(placements)), key=lambda i: seconds[i])
    clock = "virtual" if virtual else "wall"
    lines = [
        f"measured: {_counts(placement)}: predicted {placement.makespan_s * 1e6:.1f} us, "
        f"{clock} {seconds[i] * 1e6:.1f} us{' <- kept' if i == best else ''}"
        for i, placement in enumerate(placements)
    ]
    return placements[best], lines


def _measured(sessions: Sequence[Session], virtual: bool) -> list[float]:
    """Return the median seconds of each session's runs."""
    found: list[list[float]] = [[] for _ in sessions]
    rng = np.random.default_rng(0)
    feeds = {value.name: random_array(value, rng) for value in sessions[0].inputs}
    for _ in range(_ROUNDS):
        for session, row in zip(sessions, found, strict=True):
            profile = session.profile(feeds, runs=_RUNS, warmup=1)
            row.append(profile.virtual_s if virtual else statistics.median(profile.wall_s))
    return [statistics.median(row) for row in found]


def _counts(placement: Placement) -> str:
    counts = [f"{name} {len(placement.nodes_on(name))}" for name in placement.specs]
    return f"{', '.join(counts)} nodes in {placement.tasks} tasks"
