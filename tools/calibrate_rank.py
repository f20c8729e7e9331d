"""How predictions rank random placements beside what those take, for `trireme calibrate --check`.

With what both time: runs, priced for the cores as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.backend.core_latency import UNKNOWN, Watch
from trireme.backend.device import Device
from trireme.cost.calibration import Calibration
from trireme.ir.graph import Graph
from trireme.runtime.program.feeds import random_feeds
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array
from trireme.support.timing import RepeatLimits, warm_median

TRIALS = 4
"""How often what runs is measured while cores move meanwhile."""
MOST = 400
"""The most runs that are timed."""
_RUNS = RepeatLimits(duration_s=0.3, least=8, most=MOST)


def rank(
    graph: Graph,
    devices: dict[str, Device],
    calibration: Calibration,
    count: int,
    tell: Callable[[int], None],
) -> float:
    """Return how predictions rank so many random placements of a graph beside measurements.

    `tell(done)` is called before each.
    """
    times = []
    for seed in range(count):
        tell(seed)
        times.append(_ranked(at_random(graph, list(devices), seed), devices, calibration))
    return rank_correlation(times)


def _ranked(
    pinned: Graph, devices: dict[str, Device], calibration: Calibration
) -> tuple[float, float]:
    """Return what a placement is predicted to take with the cores as they are, and what it took;
    measured again, should they move meanwhile.
    """
    watch = watch_of(devices)
    for _ in range(TRIALS):
        at = as_seen(calibration, devices)
        with Session(
            pinned, devices=list(devices.values()), execution_options=AS_GIVEN, calibration=at
        ) as session:
            feeds = random_feeds(session.inputs)
            session.run(feeds)
            watch.begin()
            found = session.placement.makespan_s, run_seconds(session, feeds)
            if watch.end() == apart_of(at, devices):
                break
    return found


def at_random(graph: Graph, devices: Sequence[str], seed: int) -> Graph:
    """Return the graph pinned to devices in stretches, their ends and devices drawn by the seed."""
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.integers(0, len(graph.nodes) + 1, rng.integers(0, 6)))
    stretch = np.searchsorted(ends, np.arange(len(graph.nodes)), side="right")
    where = rng.integers(0, len(devices), len(ends) + 1)
    nodes = [replace(n, pin=devices[where[s]]) for n, s in zip(graph.nodes, stretch, strict=True)]
    return replace(graph, nodes=tuple(nodes))


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return how alike the orders of the two sides are: 1 the same, 0 none, -1 the reverse.

    Source: Spearman, "The proof and measurement of association between two things" (1904)
    """
    ranks = [_ranks_of(side) for side in zip(*pairs, strict=True)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks_of(side: Sequence[float]) -> Array:
    """Return the rank of each; what is equal shares the mean of its ranks."""
    _, places, counts = np.unique(side, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places])


def as_seen(calibration: Calibration, devices: dict[str, Device]) -> Calibration:
    """Return a calibration priced for how far apart the devices' cores are now."""
    for device in devices.values():
        calibration = calibration.at(device.spec, device.core_latency())
    return calibration


def apart_of(calibration: Calibration, devices: dict[str, Device]) -> str:
    """Return how far apart a calibration takes the devices' cores to be."""
    known = [calibration.of(device.spec) for device in devices.values()]
    return next((one.apart for one in known if one and one.apart), UNKNOWN)


def watch_of(devices: dict[str, Device]) -> Watch:
    """Return what tells how far apart the devices' cores are from one look to the next."""
    return Watch(lambda: next((c for d in devices.values() if (c := d.core_latency())), None))


def run_seconds(session: Session, feeds: dict[str, Any], repeat: RepeatLimits = _RUNS) -> float:
    """Return the median seconds of a run."""
    return warm_median(lambda: session.run(feeds), repeat)
