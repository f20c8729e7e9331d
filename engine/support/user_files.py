"""Paths of this user's files: the cache folders, and the calibration of this machine.

The Python API and the command line both use these functions. So both follow two environment
variables: XDG_CACHE_HOME (the XDG base directory rule) and TRIREME_CALIBRATION.
"""

from __future__ import annotations

import os
from pathlib import Path

USERS_CACHE = Path("~")
"""As a folder of a cache: this user's."""


def cache_folder(kind: str) -> Path | None:
    """Return the folder of one cache ("models", "cpu", "opencl"); None for a user without a home.

    Source: XDG Base Directory Specification 0.8: a relative XDG_CACHE_HOME is ignored
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "trireme" / kind


def calibration_file() -> Path | None:
    """Return the calibration of this machine: TRIREME_CALIBRATION, else a file beside the caches.

    None for a user without a home.
    """
    if given := os.environ.get("TRIREME_CALIBRATION"):
        return Path(given)
    caches = cache_folder("")
    return None if caches is None else caches / "calibration.json"
