"""The version of the code, a part of cache keys: changed code makes the entries again."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
from pathlib import Path


@functools.cache
def code_version() -> str:
    """Return a digest of the change times of the files that make graphs."""
    specs = map(importlib.util.find_spec, ("trireme", "trireme.converters"))
    roots = [root for spec in specs if spec for root in spec.submodule_search_locations or ()]
    files = sorted(file for root in roots for file in Path(root).rglob("*.py"))
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()
