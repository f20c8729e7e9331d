"""The arguments of a Session as one value, and the line of the log about each load."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trireme.backend.registry import DEFAULT_DEVICE
from trireme.support.cache_events import cache_events
from trireme.support.records import dataclass

if TYPE_CHECKING:
    from trireme.backend.device import Device, Progress
    from trireme.cost.calibration import Calibration
    from trireme.ir.bind_shapes import Shapes
    from trireme.model_file.cache import Model
    from trireme.placement.options import FixedPlacement, PlacementOptions
    from trireme.runtime.loop.executors import Mode
    from trireme.runtime.program.options import ExecutionOptions
    from trireme.runtime.states.rules import StateRules


@dataclass(frozen=True)
class SessionArguments:
    """The arguments of a Session, under their names there; not checked."""

    model: Model
    devices: Sequence[str | Device] | None = None
    threads: int | None = None
    fallback: bool = False
    mode: Mode = "auto"
    contexts: int | None = None
    placement: FixedPlacement | None = None
    measure: bool = False
    calibration: Calibration | str | os.PathLike[str] | None = None
    shapes: Shapes | None = None
    states: StateRules | None = None
    buckets: Mapping[str, Sequence[int]] | None = None
    batch: int | None = None
    progress: Progress | None = None
    placement_options: PlacementOptions | None = None
    execution_options: ExecutionOptions | None = None


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
