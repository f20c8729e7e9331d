"""Counts and durations of requests, for the protocol's statistics and for observers.

The service makes a RequestOutcome of every request that names a model. Observers, such as metrics,
are given each of them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trireme.serving.usage import FinishedRun


@dataclass(frozen=True)
class RequestOutcome:
    """How a request ended.

    model, version: "" where there is no such model: a client could make up any number of names
    kind: "ok", or the kind of its ServingError
    total_s, queue_s, run_s: from its arrival to its end, of waiting, of running
    """

    model: str
    version: str
    kind: str
    total_s: float
    queue_s: float = 0.0
    run_s: float = 0.0
    batch: int = 1


Observer = Callable[[RequestOutcome], None]

KEPT = 512
"""Requests of a model whose times are kept, for the page's quantiles."""


@dataclass
class _Sum:
    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += int(seconds * 1e9)

    def as_json(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


@dataclass
class _ModelSums:
    sums: dict[str, _Sum] = field(
        default_factory=lambda: {name: _Sum() for name in ("success", "fail", "queue", "run")}
    )
    refused: int = 0
    inferences: int = 0
    batches: dict[int, _Sum] = field(default_factory=dict)
    last_ms: int = 0
    recent: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))


class Statistics:
    """The sums of every model and version since the server began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[tuple[str, str], _ModelSums] = {}

    def observe(self, outcome: RequestOutcome) -> None:
        """Count a request in, unless it was for no model."""
        if not outcome.model:
            return
        with self._lock:
            one = self._models.setdefault((outcome.model, outcome.version), _ModelSums())
            if outcome.kind != "ok":
                one.sums["fail"].add(outcome.total_s)
                one.refused += outcome.kind == "busy"
                return
            one.sums["success"].add(outcome.total_s)
            one.sums["queue"].add(outcome.queue_s)
            one.sums["run"].add(outcome.run_s)
            one.inferences += outcome.batch
            one.last_ms = int(time.time() * 1000)
            one.recent.append((time.monotonic(), outcome.total_s, outcome.run_s))

    def add_run(self, run: FinishedRun) -> None:
        """Count a run of a model, which may be of several requests."""
        with self._lock:
            one = self._models.setdefault((run.model, run.version), _ModelSums())
            one.batches.setdefault(run.rows, _Sum()).add(run.took_s)

    def of_model(self, name: str, version: str) -> dict[str, Any]:
        """Return the statistics of a version as the protocol has them."""
        with self._lock:
            one = self._models.get((name, version), _ModelSums())
            sums = {key: value.as_json() for key, value in one.sums.items()}
            runs = one.batches or {1: one.sums["run"]}  # a model that does not tell its runs
            batches = {rows: runs[rows].as_json() for rows in sorted(runs) if runs[rows].count}
            nothing = {"count": 0, "ns": 0}
            return {
                "name": name,
                "version": version,
                "last_inference": one.last_ms,
                "inference_count": one.inferences,
                "execution_count": sum(row["count"] for row in batches.values()),
                "inference_stats": {
                    "success": sums["success"],
                    "fail": sums["fail"],
                    "queue": sums["queue"],
                    "compute_input": nothing,
                    "compute_infer": sums["run"],
                    "compute_output": nothing,
                    "cache_hit": nothing,
                    "cache_miss": nothing,
                },
                "batch_stats": [
                    {
                        "batch_size": rows,
                        "compute_input": nothing,
                        "compute_infer": row,
                        "compute_output": nothing,
                    }
                    for rows, row in batches.items()
                ],
            }

    def recent(self, name: str, version: str, window_s: float = 10.0) -> dict[str, float]:
        """Return what the last successes were like, and how many failed and were refused in all.

        per_s: successes a second; p50_s, p99_s: seconds from arrival to end; busy: runs under way,
        in the mean
        """
        with self._lock:
            one = self._models.get((name, version), _ModelSums())
            now = time.monotonic()
            last = [row for row in one.recent if now - row[0] <= window_s]
            refused, failed = one.refused, one.sums["fail"].count
        count, times = len(last), sorted(total_s for _, total_s, _ in last)
        spent_s = window_s if count < KEPT else max(now - last[0][0], 1e-3)
        return {
            "per_s": count / spent_s,
            "p50_s": times[count // 2] if count else 0.0,
            "p99_s": times[min(count - 1, count * 99 // 100)] if count else 0.0,
            "busy": sum(run_s for *_, run_s in last) / spent_s,
            "refused": refused,
            "failed": failed,
        }
