"""Whether batches pay: the seconds of requests in batches beside those of requests that run apart.

Apart means as without a batcher: each alone, as many at once as the session runs. A batcher asks
which requests to run so for the comparison, and warns when batches lose time.
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
"""Batches of a shape before the requests of one run apart for the comparison."""


class _Times:
    """Seconds of one shape: of batches by rows, and of a row that ran apart."""

    def __init__(self) -> None:
        self.batches: dict[int, deque[float]] = {}
        self.apart: deque[float] = deque(maxlen=_KEPT)


class BatchGain:
    """Times of runs by shape and number of rows. Its caller holds a lock."""

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
