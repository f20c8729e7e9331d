"""`trireme calibrate --check MODEL...`: predictions beside measurements, on models that were not
measured when the curves were made."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trireme.backend.calibrate_hint import command
from trireme.backend.core_latency import Watch
from trireme.backend.device import Device
from trireme.backend.registry import open_devices
from trireme.calibration.machine_speed import MachineSpeed
from trireme.calibration.transfer_probe import in_stretches
from trireme.cost.calibration import Calibration, DeviceCalibration, load_calibration
from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.model_file.cache import optimised
from trireme.placement.options import PLAIN
from trireme.placement.place import place
from trireme.runtime.context import ExecutionContext
from trireme.runtime.execute import launch_batches
from trireme.runtime.options import AS_GIVEN
from trireme.runtime.session import Session
from trireme.support.errors import RunError
from trireme.tools.calibrate_rank import (
    MOST,
    TRIALS,
    apart_of,
    as_seen,
    random_feeds,
    rank,
    run_seconds,
    watch_of,
)
from trireme.tools.options import (
    Progress,
    calibration_path,
    device_list,
    device_options,
)

NEAR, SHARE, MEDIAN = 0.10, 0.80, 0.05
"""What is asked: so many of the runs so near, and a median error of so much."""
QUIET = 0.05
"""How far the machine's pace may be off for it to count as quiet."""
_TURNS, _TURN_S, _TURN_RUNS = 8, 0.05, 3
"""How often a model takes turns with the calibration's networks; of a turn, the seconds and the
least runs."""
_PARTS = 4
"""A model over several devices is cut into so many stretches, which go to the devices in turn."""


@dataclass(frozen=True)
class CheckRow:
    """One model on one set of devices: seconds predicted, their interval, seconds measured.

    what: "run" for the whole, else the first task and the device of what is waited for at once
    pace: what the calibration's networks took in turns with the model, of what they took then
    apart: how far apart the cores were, which the prediction is for; "" where nobody can tell
    filed_s: the prediction for cores as far apart as the file has it
    """

    model: str
    devices: str
    threads: int | None
    what: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    pace: float
    apart: str = ""
    filed_s: float = 0.0

    @property
    def error(self) -> float:
        """How far the prediction is off, of the measurement."""
        return self.predicted_s / self.measured_s - 1

    @property
    def paced_error(self) -> float:
        """How far it would be off, were the machine as fast as when it was calibrated."""
        return self.predicted_s * self.pace / self.measured_s - 1

    @property
    def is_held(self) -> bool:
        """Whether the measurement is in the interval."""
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def is_quiet(self) -> bool:
        """Whether the machine was as fast as when it was calibrated."""
        return abs(self.pace - 1) <= QUIET

    def __str__(self) -> str:
        return (
            f"{self.model:30.30} {self.devices:11} {self.threads or 'all':>3} {self.what:14.14}"
            f" {_ms(self.predicted_s):>9} ({_ms(self.low_s)} to {_ms(self.high_s)})"
            f" {_ms(self.measured_s):>9} {self.error:+7.1%} {self.pace:5.2f}"
            f" {self.paced_error:+7.1%} {self.apart}{'' if self.is_held else '  outside'}"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def check(options: argparse.Namespace) -> tuple[list[str], dict[str, Any], int]:
    """Return the lines and the data of a check, and 1 where the bars are missed, else 0."""
    progress = Progress()
    rows = [row for _ in range(options.repeat) for row in _rows(options, progress)]
    progress.done()
    if not rows:
        raise RunError("nothing to check: no model runs on these devices")
    runs, regions = _split(rows)
    lines = [
        f"{'model':30} {'devices':11} thr {'what':14} {'predicted':>9} (interval)  measured ms"
        "   error  pace at pace",
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
        f" {near(errors):.0%} are within {NEAR:.0%} ({SHARE:.0%} are asked), and the median error"
        f" is {statistics.median(errors):.1%} ({MEDIAN:.0%} is asked)"
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
        (f"of them, while the pace was within {QUIET:.0%}", quiet),
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
            f"{what}, predicted for cores as far apart as the file has it: {len(filed)}, median"
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
        f"{what}, were each predicted by the median of its other checks: {len(off)}, median error"
        f" {statistics.median(off):.1%}, {near(off):.0%} within {NEAR:.0%}"
    ]


def _rows(options: argparse.Namespace, progress: Progress) -> Iterator[CheckRow]:
    names, counts = device_list(options), _counts(options)
    graphs = {Path(model).name: optimised(model) for model in options.models}
    calibration = load_calibration(calibration_path())
    for devices in [*([name] for name in names), *([names] if len(names) > 1 else [])]:
        for threads in counts if "cpu" in devices else [None]:
            opened, _ = open_devices(devices, device_options(options), threads)
            try:
                paces = [MachineSpeed(d, _known(calibration, d)) for d in opened.values()]
                for model, graph in graphs.items():
                    progress(f"checking {model} on {'+'.join(devices)}")
                    if all(_runs(graph, device) for device in opened.values()):
                        yield from _measured(model, graph, opened, threads, calibration, paces)
            finally:
                for device in opened.values():
                    device.close()


def _counts(options: argparse.Namespace) -> Sequence[int | None]:
    """Return the numbers of threads asked for; None for all."""
    return tuple(options.threads or (None,))


def _ranks(options: argparse.Namespace, progress: Progress) -> dict[str, tuple[float, int]]:
    """Return, for each model, how predictions rank random placements, and of how many."""
    found, count = {}, options.placements
    calibration = load_calibration(calibration_path())
    opened, _ = open_devices(device_list(options), device_options(options), _counts(options)[0])
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


def _known(calibration: Calibration, device: Device) -> DeviceCalibration:
    found = calibration.of(device.spec)
    if found is None:
        raise RunError(
            f"{device.spec.name} ({device.spec.description}) was not measured",
            fix=command([device.spec.name]),
        )
    return found


def _runs(graph: Graph, device: Device) -> bool:
    return all(device.unsupported_reason(graph, node) is None for node in graph.nodes)


def _measured(
    name: str,
    graph: Graph,
    devices: dict[str, Device],
    threads: int | None,
    calibration: Calibration,
    paces: Sequence[MachineSpeed],
) -> Iterator[CheckRow]:
    """Yield the rows of a model, measured in turns with the calibration's networks.

    Estimates are for cores as far apart as they are now; should they move meanwhile, again.
    """
    pinned, label = in_stretches(graph, list(devices), _PARTS), "+".join(devices)
    watch = watch_of(devices)
    for trial in range(TRIALS):
        at = as_seen(calibration, devices)
        apart = apart_of(at, devices)
        with Session(
            pinned, devices=list(devices.values()), execution_options=AS_GIVEN, calibration=at
        ) as session:
            profile = session.profile(random_feeds(session), runs=_TURN_RUNS)
            context = ExecutionContext(session.program)
            parts = launch_batches(session.plan, context.calls)
            turns = list(_turns(session, parts, paces, watch, apart))
        if len(turns) < _TURNS // 2 and trial < TRIALS - 1:
            continue
        now = max(pace.since() for pace in paces)
        if not turns:
            return
        run_s, *own = (statistics.median(each) for each in zip(*turns, strict=True))
        filed_s = place(pinned, CostModel(devices, calibration), PLAIN).makespan_s
        for (tasks, _), seconds in zip(parts, own, strict=True) if len(parts) > 1 else ():
            rows = [profile.tasks[task] for task in tasks]
            where = next((row.device for row in rows if not row.nbytes), rows[0].device)
            yield CheckRow(
                name,
                label,
                threads,
                f"{tasks[0]}: {where}",
                sum(row.estimate_s for row in rows),
                sum(row.low_s for row in rows),
                sum(row.high_s for row in rows),
                seconds,
                now,
                apart,
            )
        yield CheckRow(
            name,
            label,
            threads,
            "run",
            profile.predicted_s,
            *profile.interval_s,
            run_s,
            now,
            apart,
            filed_s,
        )
        return


Part = tuple[Sequence[int], Callable[[], None]]
"""What a serial run launches and waits for at once: its tasks, and what runs them."""


def _turns(
    session: Session, parts: Sequence[Part], paces: Sequence[MachineSpeed], watch: Watch, apart: str
) -> Iterator[list[float]]:
    """Yield the seconds of a run, and of each of its parts, in each turn in which the cores stayed
    so far apart.
    """
    feeds = random_feeds(session)
    for pace in paces:
        pace.since()
    for _ in range(_TURNS):
        watch.begin()
        seconds = [run_seconds(session, feeds, _TURN_S, _TURN_RUNS), *part_seconds(parts)]
        for pace in paces:
            pace.visit(apart)
        if watch.end() == apart:
            yield seconds
        else:
            for pace in paces:
                pace.forget()


def part_seconds(parts: Sequence[Part]) -> list[float]:
    """Return the median seconds of each part of a run, in runs of all of them."""
    runs: list[list[float]] = []
    end = time.perf_counter() + _TURN_S
    while len(runs) < _TURN_RUNS or (len(runs) < MOST and time.perf_counter() < end):
        stamps = [time.perf_counter()]
        for _, run in parts:
            run()
            stamps.append(time.perf_counter())
        runs.append([after - before for before, after in itertools.pairwise(stamps)])
    return [statistics.median(each) for each in zip(*runs, strict=True)]
