"""Count what this process found in the caches on disk, for logs and metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from trireme.support.forks import register_at_fork

CacheResult = Literal["hit", "miss", "damaged", "foreign", "unwritable"]


class _Events:
    """How often each cache had what; any thread counts."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Replace, in a forked child, the lock that another thread may hold."""
        self.lock = threading.Lock()


_EVENTS = _Events()


def count_cache_event(cache: str, result: CacheResult) -> None:
    """Count a look into a cache, which is named by the suffix of its files."""
    with _EVENTS.lock:
        _EVENTS.counts[cache.lstrip("."), result] += 1


def cache_events() -> Mapping[tuple[str, str], int]:
    """Return how often each cache had an entry ("hit") or none ("miss") since the process began.

    A miss may also count as "damaged" or "foreign", which is an entry of another user. A cache that
    cannot be written counts as "unwritable".
    By (cache, result): the cache "program", "graph", "o" or "bin"
    """
    with _EVENTS.lock:
        return dict(_EVENTS.counts)
