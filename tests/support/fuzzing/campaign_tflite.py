"""Many random .tflite models: counts, and the first operator that differs written down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.campaign import Report
from fuzzing.check import Failure, check
from fuzzing.peer import Refused
from fuzzing.tflite_graphs import Grown, as_text, first_wrong, grow_tflite, litert_answer


def outcome(grown: Grown, devices: Sequence[Any]) -> tuple[str, list[Failure]]:
    """Return "equal", the kind of an allowed error, "refused by the peer", or how it failed."""
    try:
        wanted = litert_answer(grown)
    except Refused:
        return "refused by the peer", []
    kind, failures = check(grown.content, grown.feeds, wanted, devices)
    return (failures[0].kind if failures else kind or "equal"), failures


def campaign_tflite(
    seeds: Iterable[int], devices: Sequence[Any], folder: Path | None = None
) -> Report:
    """Return the report of some seeds."""
    report = Report()
    for seed in seeds:
        grown = grow_tflite(seed)
        kind, failures = outcome(grown, devices)
        report.counts[kind] += 1
        if not failures:
            continue
        small = first_wrong(grown, lambda part: bool(outcome(part, devices)[1]))
        again = outcome(small, devices)[1] or failures
        text = f"seed {seed}: {kind} from {again[0].way}: {again[0].text}\n{as_text(small)}\n"
        report.failed.append(text)
        if folder is not None:
            place = folder / f"tflite_{seed}"
            place.mkdir(parents=True, exist_ok=True)
            (place / "model.tflite").write_bytes(small.content)
            np.savez(place / "feeds.npz", **small.feeds)
            (place / "failure.txt").write_text(text)
    return report
