"""What a batcher did, as data: for logs, metrics and tests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from trireme.runtime.requests.batch_gain import BatchGain


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
