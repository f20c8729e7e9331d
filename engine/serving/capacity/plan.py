"""How many replicas answer a load in time, and in which way each should run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trireme.serving.capacity.arrivals import Arrivals
from trireme.serving.capacity.queueing import Answers, ReplicaQueue, simulate
from trireme.support.errors import RunError
from trireme.support.units import time_text

SIMULATED = 20_000
"""Requests of a simulated load: the 99th percentile is then known to about 3 %."""
MOST_REPLICAS = 10_000


@dataclass(frozen=True)
class Setup:
    """A way to run a replica.

    replica: its queue
    threads: of a call
    cores: that the replica's calls keep busy together
    """

    replica: ReplicaQueue
    threads: int
    cores: int

    def __str__(self) -> str:
        replica = self.replica
        calls = "1 call" if replica.calls == 1 else f"{replica.calls} calls"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        batch = f", batches of up to {replica.most_batch}" if replica.most_batch > 1 else ""
        delay = f" after {time_text(replica.delay_s)}" if replica.delay_s else ""
        return f"{calls} of {threads}{batch}{delay}"


@dataclass(frozen=True)
class Capacity:
    """A setup with as many replicas as a load needs, or why no number is enough.

    replicas: 0 where no number keeps to the limit
    answers: of one replica at its share of the load
    reason: "" where there are enough replicas
    """

    setup: Setup
    replicas: int
    answers: Answers | None
    reason: str = ""

    @property
    def cores(self) -> int:
        """The cores of all replicas."""
        return self.replicas * self.setup.cores


@dataclass(frozen=True)
class CapacityPlan:
    """The setups that answer a load in time, those of the fewest cores first, then the others.

    load: all requests; limit_s: what `percent` of a hundred requests keep to
    """

    load: Arrivals
    limit_s: float
    percent: float
    found: tuple[Capacity, ...]

    @property
    def best(self) -> Capacity | None:
        """The setup of the fewest cores that keeps to the limit; None where no one does."""
        return self.found[0] if self.found and self.found[0].replicas else None


def plan_capacity(
    setups: Sequence[Setup], load: Arrivals, limit_s: float, percent: float = 99.0
) -> CapacityPlan:
    """Return how many replicas of each setup keep the latency of a load within a limit.

    A replica gets an equal share of the requests, with the burstiness of the whole. Its queue is
    simulated (queueing.py); the fewest replicas for which `percent` of a hundred requests keep to
    `limit_s` seconds are found by halving.
    Errors: RunError, if the limit or the percentage is none
    """
    if not 0 < limit_s < math.inf:
        raise RunError(f"a limit of {limit_s} seconds, expected more than 0")
    if not 0 < percent < 100:
        raise RunError(f"{percent} of a hundred requests, expected more than 0 and less than 100")
    found = [_least(setup, load, limit_s, percent) for setup in setups]

    def rank(one: Capacity) -> tuple[float, ...]:
        if one.answers is None:
            return (1, 0, 0, 0)
        return (0, one.cores, one.replicas, one.answers.percentile_s(percent))

    return CapacityPlan(load, limit_s, percent, tuple(sorted(found, key=rank)))


def _least(setup: Setup, load: Arrivals, limit_s: float, percent: float) -> Capacity:
    """Return a setup with the fewest replicas that keep to a limit."""
    replica = setup.replica
    alone = float(np.median([replica.service(1) for _ in range(99)]))
    if alone > limit_s:
        return Capacity(setup, 0, None, f"a call alone takes {time_text(alone)}")
    rate = max(
        size * replica.calls / float(np.mean([replica.service(size) for _ in range(9)]))
        for size in range(1, replica.most_batch + 1)
    )

    def answers_of(replicas: int) -> Answers:
        share = Arrivals(load.qps / replicas, load.burstiness, load.seed)
        return simulate(share.times(SIMULATED), replica)

    def is_enough(replicas: int) -> bool:
        return answers_of(replicas).percentile_s(percent) <= limit_s

    low = max(1, math.ceil(load.qps / rate)) - 1
    high = low + 1
    while high <= MOST_REPLICAS and not is_enough(high):
        low, high = high, 2 * high
    if high > MOST_REPLICAS:
        return Capacity(setup, 0, None, f"{low:,} replicas are not enough")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return Capacity(setup, high, answers_of(high))
