"""The version of the code, a part of cache keys: changed code makes the entries again."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator


@functools.cache
def code_version() -> str:
    """Return a digest of the change times of the files that make graphs."""
    specs = map(importlib.util.find_spec, ("trireme", "trireme.converters", "trireme.devices"))
    roots = [root for spec in specs if spec for root in spec.submodule_search_locations or ()]
    stats = sorted({one for root in roots for one in _stats(root)})
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()


def _stats(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and change time of each source file in a folder."""
    for entry in os.scandir(folder):
        if entry.name.endswith(".py"):
            status = entry.stat()
            yield entry.path, status.st_size, status.st_mtime_ns
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _stats(entry.path)
