"""Run a model on trireme in every way it can be loaded, and compare with the peer's answer."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.fuzz.oracle import Answer, same, wide
from trireme.placement.lock import Lock, lock
from trireme.placement.objective import Objective
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import TriremeError

ALLOWED = {
    "ops are not supported": "unsupported op",
    "is not known before it runs": "unknown shape",
    "on the open dimension": "unknown shape",
    "of known size": "unknown shape",
    "one dimension of known length": "unknown shape",
    "dimension of indices is not known": "unknown shape",
}
"""Sentences that an allowed error holds -> its kind."""


@dataclass(frozen=True)
class Failure:
    """What went wrong: in which way of running, and how."""

    way: str
    kind: str
    """"wrong", "untyped" or "refused"."""
    text: str


WAYS = ("bytes", "path", "cached")
"""From bytes, from a path with an empty model cache, and from the cache that this filled."""


def check(
    model: bytes,
    feeds: Mapping[str, Any],
    wanted: Mapping[str, Answer],
    devices: Sequence[Any] = ("cpu",),
    ways: Sequence[str] = WAYS,
    objective: Objective = "makespan",
) -> tuple[str, list[Failure]]:
    """Return "" or the kind of an allowed error, and what failed.

    Several devices are searched over in the first way; the others hold the placement found.
    """
    placed: Lock | None = None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"  # a .tflite file is told by its identifier
        path.write_bytes(model)
        cache = Path(folder) / "cache"
        for way in ways:
            source = model if way == "bytes" else path
            how = ExecutionOptions(model_cache=cache)
            options = {
                "placement": placed,
                "placement_options": PlacementOptions(objective=objective),
                "execution_options": how,
            }
            kind, found, placed = run_placed(way, source, feeds, wanted, devices, **options)
            if kind or found:
                return kind, found
    return "", []


def run_way(
    way: str,
    source: Any,
    feeds: Mapping[str, Any],
    wanted: Mapping[str, Answer],
    devices: Sequence[Any],
    **options: Any,
) -> tuple[str, list[Failure]]:
    """Return the same of one way."""
    return run_placed(way, source, feeds, wanted, devices, **options)[:2]


def run_placed(
    way: str,
    source: Any,
    feeds: Mapping[str, Any],
    wanted: Mapping[str, Answer],
    devices: Sequence[Any],
    ran: Counter[tuple[str, str]] | None = None,
    **options: Any,
) -> tuple[str, list[Failure], Lock | None]:
    """Return the same, and the placement to hold next where several devices were searched over.

    ran: where each node that ran is counted, by op and device
    """
    placed = None
    try:
        with Session(source, devices=devices, **options) as session:
            found = session.run(feeds)
            if ran is not None:
                where = session.placement
                ran.update((node.op, where.device_of[node.id]) for node in where.source.nodes)
            is_placed = len(devices) > 1 and not session.stages
            placed = lock(session.placement) if is_placed else None
    except TriremeError as error:
        kind, text = allowed(error), f"{type(error).__name__}: {error}"
        return kind, [] if kind else [Failure(way, "refused", text)], None
    except Exception as error:
        return "", [Failure(way, "untyped", f"{type(error).__name__}: {error}")], None
    texts = [difference(name, found[name], wanted[name]) for name in wanted]
    return "", [Failure(way, "wrong", text) for text in texts if text], placed


def allowed(error: TriremeError) -> str:
    """Return the kind of an error that a random model may end in; "" for others."""
    return next((kind for text, kind in ALLOWED.items() if text in str(error)), "")


def difference(name: str, found: Any, wanted: Answer) -> str:
    """Return how an output differs from what it must be, or ""."""
    array = wanted.array
    if found.shape != array.shape or found.dtype != array.dtype:
        return f"{name}: {found.dtype}{list(found.shape)}, not {array.dtype}{list(array.shape)}"
    a, b = wide(found), wide(array)
    with np.errstate(all="ignore"):
        off = np.where(same(a, b), 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
    bad = (off > wanted.allowed) & np.isfinite(wanted.allowed)
    if not bad.any():
        return ""
    at = tuple(int(v) for v in np.argwhere(bad)[0])
    return (
        f"{name}: {bad.sum()} of {bad.size} elements of {array.dtype}{list(array.shape)}, first "
        f"{list(at)}: {found[at]}, not {array[at]} "
        f"(off {off[at]:.3g}, allowed {wanted.allowed[at]:.3g})"
    )
