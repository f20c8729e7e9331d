"""`trireme calibrate --check MODEL...`: predictions beside measurements, on models that were not
measured when the curves were made."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trireme.backend.registry import open_devices
from trireme.cost.calibration import load_calibration
from trireme.model_file.cache import optimised
from trireme.support.errors import RunError
from trireme.tools.calibrate_rank import rank
from trireme.tools.calibrate_rows import QUIET, CheckRow, measured_rows
from trireme.tools.parsed import calibration_given, device_list, device_options, thread_counts
from trireme.tools.progress import Progress

NEAR, SHARE, MEDIAN = 0.10, 0.80, 0.05
"""The bars: the share of runs within a distance, and the median error."""


def check(options: argparse.Namespace) -> tuple[list[str], dict[str, Any], int]:
    """Return the lines and the data of a check, and 1 where the bars are missed, else 0."""
    progress = Progress()
    rows = [row for _ in range(options.repeat) for row in measured_rows(options, progress)]
    progress.done()
    if not rows:
        raise RunError("nothing to check: no model runs on these devices")
    runs, regions = _split(rows)
    lines = [
        f"{'model':30} {'devices':11} thr {'what':14} {'predicted':>9} (interval)  measured ms"
        "   error  pace  error at that pace",
        *map(str, rows),
    ]
    for what, mine in (("runs", runs), ("regions", regions)):
        lines += [*summary_of(what, mine), *repeated(what, mine)] if mine else []
    ranks = _ranks(options, progress) if options.placements else {}
    lines += [
        f"{m}: rank correlation {r:.3f} of {n} random placements" for m, (r, n) in ranks.items()
    ]
    is_met, why = verdict(runs)
    data = [
        asdict(row) | {"error": row.error, "paced_error": row.paced_error, "is_held": row.is_held}
        for row in rows
    ]
    found = {"rows": data, "met": is_met, "verdict": why, "ranks": ranks}
    return [*lines, why], found, int(not is_met)


def verdict(runs: Sequence[CheckRow]) -> tuple[bool, str]:
    """Return whether the bars are met, and that in a sentence.

    They are bars of a quiet machine: runs while it was at another pace than at its calibration are
    not judged, and if those are many, nothing is met.
    """
    quiet = [row for row in runs if row.is_quiet]
    if not runs or len(quiet) < SHARE * len(runs):
        pace = statistics.median([row.pace for row in runs] or [1.0])
        paced = [abs(row.paced_error) for row in runs] or [0.0]
        return False, (
            f"not met: only {len(quiet)} of {len(runs)} runs saw the machine within {QUIET:.0%} of"
            f" the pace of its calibration (it takes {pace:.2f} of the time it took then; at that"
            f" pace {near(paced):.0%} would be within {NEAR:.0%}, and the median error"
            f" {statistics.median(paced):.1%}), so it is not the quiet machine that the bars are"
            " for; fix: trireme calibrate, then check again"
        )
    errors = [abs(row.error) for row in quiet]
    is_met = statistics.median(errors) <= MEDIAN and near(errors) >= SHARE
    return is_met, (
        f"{'met' if is_met else 'not met'}: of {len(quiet)} runs at the pace of the calibration,"
        f" {near(errors):.0%} are within {NEAR:.0%} ({SHARE:.0%} required), and the median error"
        f" is {statistics.median(errors):.1%} ({MEDIAN:.0%} required)"
    )


def _split(rows: Sequence[CheckRow]) -> tuple[list[CheckRow], list[CheckRow]]:
    return [r for r in rows if r.what == "run"], [r for r in rows if r.what != "run"]


def near(errors: Sequence[float]) -> float:
    """Return the share of errors that are small enough."""
    return statistics.mean(error <= NEAR for error in errors)


def summary_of(what: str, rows: Sequence[CheckRow]) -> list[str]:
    """Return the errors over all rows, over those on a quiet machine, and at the machine's pace."""
    quiet = [abs(row.error) for row in rows if row.is_quiet]
    paced = [abs(row.paced_error) for row in rows]
    held = statistics.mean(row.is_held for row in rows)
    lines = []
    for name, errors in (
        ("as measured", [abs(row.error) for row in rows]),
        (f"while the pace was within {QUIET:.0%}", quiet),
        ("at the calibration's pace", paced),
    ):
        if errors:
            lines.append(
                f"{what}, {name}: {len(errors)}, median error {statistics.median(errors):.1%},"
                f" {near(errors):.0%} within {NEAR:.0%}"
            )
    lines.append(f"{what}: {held:.0%} in the interval")
    filed = [abs(row.filed_s / row.measured_s - 1) for row in rows if row.filed_s]
    if any(row.filed_s != row.predicted_s for row in rows if row.filed_s):
        lines.append(
            f"{what}, predicted with the core latency of the file: {len(filed)}, median"
            f" error {statistics.median(filed):.1%}, {near(filed):.0%} within {NEAR:.0%}"
        )
    return lines


def repeated(what: str, rows: Sequence[CheckRow]) -> list[str]:
    """Return how far what was measured is from the median of what else was measured of the same:
    what no prediction does better than; nothing where nothing was measured again.
    """
    same: dict[tuple[object, ...], list[float]] = {}
    for row in rows:
        key = row.model, row.devices, row.threads, row.what
        same.setdefault(key, []).append(row.measured_s)
    off = [
        abs(statistics.median(others) / one - 1)
        for seconds in same.values()
        for k, one in enumerate(seconds)
        if (others := seconds[:k] + seconds[k + 1 :])
    ]
    if not off:
        return []
    return [
        f"{what}, each predicted by the median of its other checks: {len(off)}, median error"
        f" {statistics.median(off):.1%}, {near(off):.0%} within {NEAR:.0%}"
    ]


def _ranks(options: argparse.Namespace, progress: Progress) -> dict[str, tuple[float, int]]:
    """Return, for each model, how predictions rank random placements, and of how many."""
    found, count = {}, options.placements
    calibration = load_calibration(calibration_given(options))
    names = device_list(options)
    threads = thread_counts(options, names)[0]
    opened, _ = open_devices(names, device_options(options), threads)
    try:
        for model in options.models:
            tell = partial(progress, f"placing {model} at random", total=count)
            found[Path(model).name] = (
                rank(optimised(model), opened, calibration, count, tell),
                count,
            )
    finally:
        progress.done()
        for device in opened.values():
            device.close()
    return found
