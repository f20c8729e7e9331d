"""A queue in virtual time: what requests wait for one replica that runs batches of them."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trireme.support.dtypes import Array

Service = Callable[[int], float]
"""Returns the seconds that a call with so many requests takes; it may draw them."""


@dataclass(frozen=True)
class ReplicaQueue:
    """A process that answers requests, first come first served.

    service: seconds of a call by the number of requests in it
    calls: calls that run at once
    most_batch: the most requests in a call
    delay_s: what the first request of a batch waits for others at most, where a call is free
    most_waiting: requests that may wait; further ones are refused. None: all wait
    """

    service: Service
    calls: int = 1
    most_batch: int = 1
    delay_s: float = 0.0
    most_waiting: int | None = None


@dataclass(frozen=True)
class Answers:
    """What became of the requests of a simulated load.

    latencies_s: of the answered requests, in the order of their arrival
    refused: requests that found the queue full
    busy: share of the time that a call was under way, in the mean over the calls
    batch: requests of a call, in the mean
    """

    latencies_s: Array
    refused: int
    busy: float
    batch: float

    def percentile_s(self, percent: float) -> float:
        """Return the latency that so many of a hundred requests keep to, in seconds.

        A request that was refused keeps to none.
        """
        count = len(self.latencies_s) + self.refused
        place = int(np.ceil(percent / 100 * count)) - 1
        if place >= len(self.latencies_s):
            return float("inf")
        return float(np.partition(self.latencies_s, max(place, 0))[max(place, 0)])


def simulate(times: Array, replica: ReplicaQueue) -> Answers:
    """Return what becomes of requests that arrive at some times (seconds, ascending).

    A free call takes the requests that wait, up to `most_batch`, as soon as they fill it or the
    first has waited for `delay_s`.
    """
    return _Queue(replica).run(times)


class _Queue:
    """One run of a simulation."""

    def __init__(self, replica: ReplicaQueue) -> None:
        self._replica = replica
        self._waiting: deque[tuple[int, float]] = deque()
        self._ends = [0.0] * replica.calls
        self._busy_s = 0.0
        self._calls = self._refused = 0

    def run(self, times: Array) -> Answers:
        """Return what becomes of the requests."""
        latencies = np.full(len(times), np.nan)
        most = self._replica.most_waiting
        for number, now in enumerate(times.tolist()):
            self._start_calls(now, latencies)
            if most is not None and len(self._waiting) >= most and self._ends[0] > now:
                self._refused += 1
                continue
            self._waiting.append((number, now))
        self._start_calls(np.inf, latencies)
        last = max(self._ends, default=0.0)
        answered = latencies[~np.isnan(latencies)]
        return Answers(
            answered,
            self._refused,
            self._busy_s / (last * len(self._ends)) if last else 0.0,
            len(answered) / self._calls if self._calls else 0.0,
        )

    def _start_calls(self, now: float, latencies: Array) -> None:
        """Start the calls that begin before a time."""
        replica, waiting = self._replica, self._waiting
        while waiting:
            start = self._next_start()
            if start > now:
                return
            taken = [waiting.popleft() for _ in range(min(len(waiting), replica.most_batch))]
            end = start + replica.service(len(taken))
            heapq.heapreplace(self._ends, end)
            self._busy_s += end - start
            self._calls += 1
            for number, arrived in taken:
                latencies[number] = end - arrived

    def _next_start(self) -> float:
        """Return when the next call starts, given those that wait now."""
        replica, waiting = self._replica, self._waiting
        free = self._ends[0]
        if len(waiting) >= replica.most_batch:
            return max(free, waiting[replica.most_batch - 1][1])
        return max(free, waiting[0][1] + replica.delay_s)
