"""Whether batches pay: the seconds of a row in batches beside those of a row that runs alone.

A batcher asks it which requests to run alone for the comparison, and warns when batches lose time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from statistics import median

_MOST_KEYS = 64
"""Shapes whose times are kept; the one seen least recently goes first."""
_KEPT = 16
"""Runs of one shape and number of rows whose median counts."""
_FEWEST = 3
"""Runs that a median needs; the first run at a shape is slower than later ones."""
_BATCHES_FIRST = 12
"""Batches of a shape before one of its rows runs alone for the comparison."""


class BatchGain:
    """Times of runs by shape and number of rows. Its caller holds a lock."""

    def __init__(self) -> None:
        self._shapes: OrderedDict[Hashable, dict[int, deque[float]]] = OrderedDict()

    def add(self, key: Hashable, rows: int, run_s: float) -> None:
        """Note a run of rows of one shape."""
        times = self._shapes.setdefault(key, {})
        self._shapes.move_to_end(key)
        if len(self._shapes) > _MOST_KEYS:
            self._shapes.popitem(last=False)
        times.setdefault(rows, deque(maxlen=_KEPT)).append(run_s)

    def wants_single(self, key: Hashable) -> bool:
        """Whether the next row of a shape should run alone, so that batches can be compared."""
        times = self._shapes.get(key, {})
        batches = sum(len(one) for rows, one in times.items() if rows > 1)
        return batches >= _BATCHES_FIRST and len(times.get(1, ())) < _FEWEST

    @property
    def gain(self) -> float | None:
        """Seconds of rows that run alone over seconds of the same rows in batches.

        Over 1.0 batches pay. None until a shape has run often enough both ways.
        """
        alone_s = batched_s = 0.0
        for times in self._shapes.values():
            if len(times.get(1, ())) < _FEWEST:
                continue
            single_s = median(times[1])
            for rows, runs in times.items():
                if rows > 1 and len(runs) >= _FEWEST:
                    alone_s += len(runs) * rows * single_s
                    batched_s += len(runs) * median(runs)
        return alone_s / batched_s if batched_s else None
