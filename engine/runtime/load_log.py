"""Log each load of a model: one line at INFO."""

from __future__ import annotations

import logging
import os
import time

from trireme.backend.registry import DEFAULT_DEVICE
from trireme.runtime.asked import Asked

_log = logging.getLogger(__name__)


def log_load(asked: Asked, is_stored: bool, begun_s: float) -> None:
    """Log what was loaded, on which devices, how long it took, and what the caches gave.

    begun_s: the start, by time.perf_counter
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    given = [DEFAULT_DEVICE] if asked.devices is None else asked.devices
    devices = ", ".join(one if isinstance(one, str) else one.spec.name for one in given)
    found = "its program from the cache" if is_stored else "prepared in this process"
    seconds = time.perf_counter() - begun_s
    _log.info("loaded %s on %s in %.3f s: %s", _name(asked.model), devices, seconds, found)


def _name(model: object) -> str:
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    if isinstance(model, bytes):
        return f"a model of {len(model)} bytes"
    return repr(getattr(model, "name", type(model).__name__))
