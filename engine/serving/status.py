"""Collect the status page: models, their devices and placements, queues and latencies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from trireme.placement.placement import Placement
from trireme.runtime.session.session import Session
from trireme.runtime.shapes.instance import StageReport
from trireme.serving.errors import public_text
from trireme.serving.models import ServedModel
from trireme.serving.observed import ObservedModel
from trireme.serving.protocol import TensorSpec
from trireme.serving.service import InferenceService
from trireme.support.errors import TriremeError
from trireme.support.live_objects import LiveKeys
from trireme.version import __version__

PAGE = Path(__file__).parent / "page"
FILES = {
    "": ("status.html", "text/html; charset=utf-8"),
    "page/status.css": ("status.css", "text/css; charset=utf-8"),
    "page/status.js": ("status.js", "text/javascript; charset=utf-8"),
}
"""Where each file of the page is, and its type."""

MOST_EVENTS = 5
"""Faults of devices that the page shows of a model."""
MOST_PIECES = 400
"""Pieces of the strip that shows a placement; the rest is one piece."""


class StatusPage:
    """Gives the page's data. A placement is summed up once a model, an open one once its sizes."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        self._placements = LiveKeys[Session, tuple[tuple[StageReport, ...], dict[str, Any]]]()

    def status(self) -> dict[str, Any]:
        """Return what changes: the state of the server and of each model."""
        service = self._service
        return {
            "version": __version__,
            "ready": service.is_ready,
            "draining": service.is_draining,
            "uptime_s": round(time.monotonic() - self._began_s, 1),
            "models": list(self._rows()),
        }

    def _rows(self) -> Iterator[dict[str, Any]]:
        service = self._service
        for one in service.models.index():
            row: dict[str, Any] = {
                "name": one.name,
                "version": one.version,
                "state": one.state,
                "reason": public_text(one.reason),
            }
            try:
                with service.models.lease(one.name, one.version) as model:
                    yield {**row, **self._live(model)}
            except TriremeError:
                yield row

    def _live(self, model: ServedModel) -> dict[str, Any]:
        waiting, running = self._service.depth(model.name)
        sums = self._service.statistics.of_model(model.name, model.version)["inference_stats"]
        return {
            "waiting": waiting,
            "running": running,
            "concurrency": model.concurrency,
            "max_queue": self._service.limits.max_queue,
            "answered": sums["success"]["count"],
            **self._service.statistics.recent(model.name, model.version),
            "inputs": list(map(_shown, model.inputs)),
            "outputs": list(map(_shown, model.outputs)),
            **_devices(model),
            **_faults(model),
        }

    def placement(self, name: str, version: str) -> dict[str, Any]:
        """Return where the nodes of a model run: shares of devices, and a strip in run order.

        With open shapes it is that of the last run, at its sizes; none before a run.

        For a model that runs a stored program this prepares the model, which takes a while.
        Errors: ServingError, if there is no such model
        """
        with self._service.models.lease(name, version) as model, self._lock:
            if model.session is None:
                return {"why": "a pipeline has no placement of its own"}
            stages = model.session.stages
            known = self._placements.get(model.session)
            if known is None or known[0] != stages:
                known = self._placements[model.session] = stages, _summed_up(model.session)
            return known[1]


def _devices(model: ServedModel) -> dict[str, Any]:
    """Return the devices of a model, those that it does without, and whether its program is stored.

    A stored program does not tell its devices: asking it would prepare the model. So the devices
    are those that the model was opened for, where that is known.
    """
    session = model.session
    if session is None:
        return {"devices": [], "dropped": {}, "is_stored": False}
    is_stored = session.is_stored
    devices = () if is_stored else tuple(session.devices)
    if isinstance(model, ObservedModel):
        devices = model.facts.devices
    dropped = {name: public_text(str(why)) for name, why in session.dropped.items()}
    return {"devices": list(devices), "dropped": dropped, "is_stored": is_stored}


def _faults(model: ServedModel) -> dict[str, Any]:
    """Return the devices that runs pass over, and the last faults of devices, the newest first."""
    session = model.session
    if session is None:
        return {"devices_out": [], "events": []}
    last = reversed(session.events[-MOST_EVENTS:])
    return {
        "devices_out": sorted(session.devices_out),
        "events": [public_text(str(event)) for event in last],
    }


def _shown(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype}[{','.join(map(str, spec.shape))}]"


def _summed_up(session: Session) -> dict[str, Any]:
    try:
        if not session.has_open_shapes:
            return _strip([session.placement])
        stages = {"stages": [str(stage) for stage in session.stages]}
        placements = session.region_placements()
        return {**_strip(placements), **stages} if placements else stages
    except TriremeError as error:
        return {"why": public_text(error.summary)}


def _strip(placements: Sequence[Placement]) -> dict[str, Any]:
    """Return the predicted seconds of each device, and pieces of nodes that follow each other.

    placements: of regions that run in turn
    """
    steps = [step for placement in placements for step in _steps(placement)]
    pieces = list(_pieces(steps))
    shares: dict[str, float] = {}
    for device, _, seconds in steps:
        shares[device] = shares.get(device, 0.0) + seconds
    clocks = {name: spec.clock for one in placements for name, spec in one.specs.items()}
    unused = {name: why for one in placements for name, why in one.unused.items()}
    return {
        "makespan_s": sum(one.makespan_s for one in placements),
        "devices": shares,
        "simulated": [name for name in shares if clocks[name] == "virtual"],
        "copies": sum(len(one.copies()) for one in placements),
        "pieces": pieces[:MOST_PIECES],
        "more": max(0, len(pieces) - MOST_PIECES),
        "unused": {n: public_text(why) for n, why in unused.items() if n not in shares},
    }


def _steps(placement: Placement) -> Iterator[tuple[str, str, float]]:
    """Yield (device, op, predicted seconds) of each node in run order."""
    for node in sorted(placement.source.nodes, key=lambda n: placement.stage_of.get(n.id, 0)):
        choice = placement.choices.get(node.id)
        if choice is not None:
            estimate = choice.estimates.get(choice.device)
            yield choice.device, node.op, estimate.seconds if estimate else 0.0


def _pieces(steps: Iterable[tuple[str, str, float]]) -> Iterator[dict[str, Any]]:
    """Yield a piece of the strip for each stretch of nodes on one device."""
    for device, group in groupby(steps, key=lambda step: step[0]):
        inside = list(group)
        ops = list(dict.fromkeys(op for _, op, _ in inside))
        yield {
            "device": device,
            "nodes": len(inside),
            "seconds": sum(seconds for *_, seconds in inside),
            "ops": ", ".join(ops[:6]) + (", ..." if len(ops) > 6 else ""),
        }
