"""Count what this process found in the caches on disk, for logs and metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Literal

_COUNTS: Counter[tuple[str, str]] = Counter()
_LOCK = threading.Lock()

CacheResult = Literal["hit", "miss", "damaged", "foreign", "unwritable"]


def count_cache_event(cache: str, result: CacheResult) -> None:
    """Count a look into a cache, which is named by the suffix of its files."""
    with _LOCK:
        _COUNTS[cache.lstrip("."), result] += 1


def cache_events() -> Mapping[tuple[str, str], int]:
    """Return how often each cache had an entry ("hit") or none ("miss") since the process began.

    A miss may also count as "damaged" or "foreign", which is an entry of another user. A cache that
    cannot be written counts as "unwritable".
    By (cache, result): the cache "program", "graph", "o" or "bin"
    """
    with _LOCK:
        return dict(_COUNTS)
