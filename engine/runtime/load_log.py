"""Log each load of a model: one line at INFO."""

from __future__ import annotations

import logging
import os
import time

from trireme.backend.registry import DEFAULT_DEVICE
from trireme.runtime.session_arguments import SessionArguments
from trireme.support.cache_events import cache_events

_log = logging.getLogger(__name__)
_GRAPH_HIT = ("graph", "hit")


class LoadLog:
    """The line of a load: the model, the devices, seconds, and what the caches gave."""

    def __init__(self, arguments: SessionArguments) -> None:
        self._arguments, self._begun_s = arguments, time.perf_counter()
        self._hits = cache_events().get(_GRAPH_HIT, 0)

    def end(self, is_stored: bool) -> None:
        """Log that the model is loaded. is_stored: its program comes from the cache"""
        if not _log.isEnabledFor(logging.INFO):
            return
        arguments = self._arguments
        given = [DEFAULT_DEVICE] if arguments.devices is None else arguments.devices
        devices = ", ".join(one if isinstance(one, str) else one.spec.name for one in given)
        found = "prepared in this process"
        if is_stored:
            found = "its program from the cache"
        elif cache_events().get(_GRAPH_HIT, 0) > self._hits:
            found = "its graph from the cache"
        seconds = time.perf_counter() - self._begun_s
        _log.info("loaded %s on %s in %.3f s: %s", _name(arguments.model), devices, seconds, found)


def _name(model: object) -> str:
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    if isinstance(model, bytes):
        return f"a model of {len(model)} bytes"
    return repr(getattr(model, "name", type(model).__name__))
