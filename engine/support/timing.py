"""Time calls: one call many times, or several in rounds. Every measurement of trireme is made here.

Sessions that measure, calibration, its check and benchmarks use this module. A machine has slow and
fast phases, so compared calls run in rounds, each round in a fresh random order. This module
imports the standard library alone, because a benchmark's worker process loads it as a file.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
Clock = Callable[[], float]
"""Returns the seconds since some moment."""


@dataclass(frozen=True)
class RepeatLimits:
    """How often a call is measured: for a duration, within limits.

    duration_s: no further call begins after so many seconds
    least: the least calls, for a call of any length
    most: the most calls; None for no limit
    """

    duration_s: float = 0.0
    least: int = 1
    most: int | None = None


def seconds_of(run: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Return the seconds of one call."""
    start = clock()
    run()
    return clock() - start


def collect(
    take: Callable[[], T], repeat: RepeatLimits, clock: Clock = time.perf_counter
) -> list[T]:
    """Return the measurements of `take`, in order."""
    found: list[T] = []
    end = clock() + repeat.duration_s
    most = float("inf") if repeat.most is None else repeat.most
    while len(found) < repeat.least or (len(found) < most and clock() < end):
        found.append(take())
    return found


def time_calls(
    run: Callable[[], object], repeat: RepeatLimits, clock: Clock = time.perf_counter
) -> list[float]:
    """Return the seconds of each call."""
    return collect(lambda: seconds_of(run, clock), repeat, clock)


def warm_median(
    run: Callable[[], object], repeat: RepeatLimits, clock: Clock = time.perf_counter
) -> float:
    """Return the median seconds of a call, after one call that is not counted."""
    run()
    return statistics.median(time_calls(run, repeat, clock))


def medians(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of each column; a row is one call, a column one part of the call."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


@dataclass(frozen=True)
class Turn(Generic[T]):
    """An entrant's turn in a round.

    counts: whether the caller keeps the turn; the first round warms up
    in_time: whether the limit is still ahead; a turn after the limit should be short
    """

    entrant: T
    counts: bool
    in_time: bool


def interleave(
    entrants: Sequence[T],
    rounds: int,
    rng: random.Random,
    progress: Callable[[int, int], None] = lambda done, total: None,
    limit_s: float = float("inf"),
    clock: Clock = time.perf_counter,
) -> Iterator[Turn[T]]:
    """Yield a turn of every entrant in every round, in random order, after one warm-up round.

    progress: called as a round begins, with its number and the number of rounds
    limit_s: the round that runs after so many seconds is the last; at least one round counts
    """
    end = clock() + limit_s
    for number in range(rounds + 1):
        progress(number, rounds)
        order = list(entrants)
        rng.shuffle(order)
        for entrant in order:
            yield Turn(entrant, number > 0, clock() < end)
        if number and clock() > end:
            return
