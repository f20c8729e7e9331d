"""What a batcher did, as data for logs, metrics and tests, and whether its batches pay."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from statistics import median

_MOST_KEYS = 64
"""Shapes whose times are kept; the one seen least recently goes first."""
_KEPT = 16
"""Runs of one shape and number of rows whose median counts."""
_FEWEST = 3
"""Runs that a median needs; the first run at a shape is slower than later ones."""
_BATCHES_FIRST = 12
"""Batches of a shape before the requests of one run apart for the comparison."""


@dataclass(frozen=True)
class BatchReport:
    """One run of a batch.

    rows, requests: what it had; queue_s: how long each request waited; run_s: its run and copies
    retried: whether it failed, so that its requests ran one by one
    """

    rows: int
    requests: int
    queue_s: tuple[float, ...]
    run_s: float
    retried: bool = False


@dataclass(frozen=True)
class BatchStatistics:
    """What a batcher did since it began.

    batches: how many runs had each number of rows
    queue_s, run_s: seconds that requests waited and that runs took, in all; the longest beside them
    expired: requests whose deadline passed; refused: those that did not fit or found a full queue
    retried: batches that failed, whose requests then ran one by one
    gain: seconds of rows whose requests run apart, as many at once as the session runs, over
        seconds of the same rows in batches, by the medians of recent runs; batches pay above 1.0.
        None while too few ran both ways
    """

    requests: int = 0
    batches: Mapping[int, int] = field(default_factory=dict)
    queue_s: float = 0.0
    longest_queue_s: float = 0.0
    run_s: float = 0.0
    longest_run_s: float = 0.0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    refused: int = 0
    retried: int = 0
    gain: float | None = None

    @property
    def mean_rows(self) -> float:
        """The rows of a batch on average; 0.0 before the first."""
        count = sum(self.batches.values())
        return sum(rows * n for rows, n in self.batches.items()) / count if count else 0.0


class BatchTally:
    """Counts what BatchStatistics tells."""

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Count from nothing."""
        self._lock = threading.Lock()
        self._ends: Counter[str] = Counter()
        self._batches: Counter[int] = Counter()
        self._seconds = [0.0, 0.0, 0.0, 0.0]
        self._gain = BatchGain()

    def add_batch(self, report: BatchReport, key: Hashable = None) -> None:
        """Count a run of requests of one key."""
        with self._lock:
            queue, longest, run, slowest = self._seconds
            self._seconds = [
                queue + sum(report.queue_s),
                max(longest, *report.queue_s),
                run + report.run_s,
                max(slowest, report.run_s),
            ]
            self._batches[report.rows] += 1
            self._ends["retried"] += report.retried
            if not report.retried:
                self._gain.add(key, report.rows, report.run_s)

    def add_apart(self, key: Hashable, rows: int, run_s: float) -> None:
        """Note the seconds in which requests of so many rows ran apart."""
        with self._lock:
            self._gain.add_apart(key, rows, run_s)

    def wants_apart(self, key: Hashable) -> bool:
        """Whether the next requests of a key should run apart, to tell whether batches pay."""
        with self._lock:
            return self._gain.wants_apart(key)

    def add(self, end: str) -> None:
        """Count a request by how it ended, or that it came ("requests")."""
        with self._lock:
            self._ends[end] += 1

    def statistics(self) -> BatchStatistics:
        """Return what was counted."""
        with self._lock:
            queue, longest, run, slowest = self._seconds
            ends = self._ends
            return BatchStatistics(
                requests=ends["requests"],
                batches=dict(sorted(self._batches.items())),
                queue_s=queue,
                longest_queue_s=longest,
                run_s=run,
                longest_run_s=slowest,
                failed=ends["failed"],
                cancelled=ends["cancelled"],
                expired=ends["expired"],
                refused=ends["refused"],
                retried=ends["retried"],
                gain=self._gain.gain,
            )


class _Times:
    """Seconds of one shape: of batches by rows, and of a row that ran apart."""

    def __init__(self) -> None:
        self.batches: dict[int, deque[float]] = {}
        self.apart: deque[float] = deque(maxlen=_KEPT)


class BatchGain:
    """Times of runs by shape and number of rows. Its caller holds a lock.

    Apart means as without a batcher: each request alone, as many at once as the session runs. A
    batcher asks which requests to run so for the comparison, and warns when batches lose time.
    """

    def __init__(self) -> None:
        self._shapes: OrderedDict[Hashable, _Times] = OrderedDict()

    def add(self, key: Hashable, rows: int, run_s: float) -> None:
        """Note a run of rows of one shape together."""
        self._of(key).batches.setdefault(rows, deque(maxlen=_KEPT)).append(run_s)

    def add_apart(self, key: Hashable, rows: int, run_s: float) -> None:
        """Note the seconds in which requests of so many rows ran apart."""
        self._of(key).apart.append(run_s / rows)

    def _of(self, key: Hashable) -> _Times:
        times = self._shapes.setdefault(key, _Times())
        self._shapes.move_to_end(key)
        if len(self._shapes) > _MOST_KEYS:
            self._shapes.popitem(last=False)
        return times

    def wants_apart(self, key: Hashable) -> bool:
        """Whether the next requests of a shape should run apart, to compare batches with them."""
        times = self._shapes.get(key)
        if times is None or len(times.apart) >= _FEWEST:
            return False
        return sum(len(runs) for rows, runs in times.batches.items() if rows > 1) >= _BATCHES_FIRST

    @property
    def gain(self) -> float | None:
        """Seconds of rows that run apart over seconds of the same rows in batches.

        Over 1.0 batches pay. None until a shape has run often enough both ways.
        """
        apart_s = batched_s = 0.0
        for times in self._shapes.values():
            if len(times.apart) < _FEWEST:
                continue
            row_s = median(times.apart)
            for rows, runs in times.batches.items():
                if rows > 1 and len(runs) >= _FEWEST:
                    apart_s += len(runs) * rows * row_s
                    batched_s += len(runs) * median(runs)
        return apart_s / batched_s if batched_s else None
