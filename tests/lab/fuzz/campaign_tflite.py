"""Many random .tflite models: counts, and the first operator that differs written down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.fuzz.campaign import CRASHED, REFUSED, Report, Runner, judged
from lab.fuzz.check import Failure, check
from lab.fuzz.peer import Refused
from lab.fuzz.tflite_graphs import (
    Grown,
    as_text,
    first_wrong,
    grow_tflite,
    litert_answer,
    litert_values,
)
from lab.fuzz.worker import Crashed, Worker


def on_devices(devices: Sequence[Any]) -> Runner:
    """Return what loads a model in every way and runs it on those devices."""
    return lambda grown, wanted: check(grown.content, grown.feeds, wanted, devices)


def outcome(grown: Grown, run: Runner, peer: Worker) -> tuple[str, list[Failure]]:
    """Return "equal", the kind of an allowed error, what the peer ended in, or how it failed."""
    try:
        wanted = peer(litert_answer, grown)
    except Refused:
        return REFUSED, []
    except Crashed:
        return CRASHED, []
    return judged(grown, wanted, run)


def campaign_tflite(
    seeds: Iterable[int], run: Runner, peer: Worker, folder: Path | None = None
) -> Report:
    """Return the report of some seeds; peer is the process that LiteRT is in."""
    report = Report()
    for seed in seeds:
        grown = grow_tflite(seed)
        kind, failures = outcome(grown, run, peer)
        report.counts[kind] += 1
        if not failures:
            continue
        values = peer(litert_values, grown)
        small = first_wrong(grown, values, lambda part: bool(outcome(part, run, peer)[1]))
        failure = [*outcome(small, run, peer)[1], *failures][0]
        report.failed.append(failure_text(small, seed, failure, folder))
    return report


def failure_text(small: Grown, seed: int, failure: Failure, folder: Path | None) -> str:
    """Return a failing model as text; it is written to `folder` for replay."""
    text = f"seed {seed}: {failure.kind} from {failure.way}: {failure.text}\n{as_text(small)}\n"
    if folder is not None:
        place = folder / f"tflite_{seed}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "model.tflite").write_bytes(small.content)
        np.savez(place / "feeds.npz", **small.feeds)
        (place / "failure.txt").write_text(text)
    return text
