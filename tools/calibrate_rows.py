"""Rows of a check: each model measured in turns with the calibration's networks.

`calibrate_check` judges the rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trireme.backend.calibrate_hint import command
from trireme.backend.core_latency import Watch
from trireme.backend.device import Device
from trireme.backend.registry import open_devices
from trireme.calibration.machine_speed import MachineSpeed
from trireme.calibration.transfer_probe import in_parts
from trireme.cost.calibration import Calibration, DeviceCalibration, load_calibration
from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.model_file.cache import optimised
from trireme.placement.options import PLAIN
from trireme.placement.place import place
from trireme.profiling.profile import Profile
from trireme.runtime.loop.execute import launch_batches
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.feeds import random_feeds
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError
from trireme.support.timing import RepeatLimits, collect, medians, seconds_of
from trireme.tools.calibrate_rank import (
    MOST,
    TRIALS,
    apart_of,
    as_seen,
    run_seconds,
    watch_of,
)
from trireme.tools.parsed import calibration_given, device_list, device_options, thread_counts
from trireme.tools.progress import Progress

QUIET = 0.05
"""How far the machine's pace may be off for it to count as quiet."""
_TURNS = 8
"""How often a model takes turns with the calibration's networks."""
_TURN = RepeatLimits(duration_s=0.05, least=3, most=MOST)
"""How often a model runs in a turn."""
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


def measured_rows(options: argparse.Namespace, progress: Progress) -> Iterator[CheckRow]:
    """Yield the rows of every model on each device alone and on all together."""
    names = device_list(options)
    graphs = {Path(model).name: optimised(model) for model in options.models}
    calibration = load_calibration(calibration_given(options))
    written = ("-o", options.output) if options.output else ()
    for devices in [*([name] for name in names), *([names] if len(names) > 1 else [])]:
        for threads in thread_counts(options, devices):
            opened, _ = open_devices(devices, device_options(options), threads)
            try:
                paces = [MachineSpeed(d, _known(calibration, d, written)) for d in opened.values()]
                for model, graph in graphs.items():
                    progress(f"checking {model} on {'+'.join(devices)}")
                    if all(_runs(graph, device) for device in opened.values()):
                        yield from _measured(model, graph, opened, threads, calibration, paces)
            finally:
                for device in opened.values():
                    device.close()


def _known(calibration: Calibration, device: Device, written: Sequence[str]) -> DeviceCalibration:
    """Return the curves of a device; written: the options that have them measured."""
    found = calibration.of(device.spec)
    if found is None:
        raise RunError(
            f"{device.spec.name} ({device.spec.description}) was not measured",
            fix=command([device.spec.name], *written),
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
    pinned, label = in_parts(graph, list(devices), _PARTS), "+".join(devices)
    watch = watch_of(devices)
    for _ in range(TRIALS):
        at = as_seen(calibration, devices)
        apart = apart_of(at, devices)
        with Session(
            pinned, devices=list(devices.values()), execution_options=AS_GIVEN, calibration=at
        ) as session:
            profile = session.profile(random_feeds(session.inputs), runs=_TURN.least)
            context = ExecutionContext(session.program)
            parts = launch_batches(session.plan, context.calls)
            turns = list(_turns(session, parts, paces, watch, apart))
        if len(turns) >= _TURNS // 2:
            break
    now = max(pace.since() for pace in paces)
    if not turns:
        return
    run_s, *own = medians(turns)
    row = partial(CheckRow, name, label, threads)
    for (tasks, _), seconds in zip(parts, own, strict=True) if len(parts) > 1 else ():
        yield row(*_predicted(profile, tasks), seconds, now, apart)
    filed_s = place(pinned, CostModel(devices, calibration), PLAIN).makespan_s
    yield row("run", profile.predicted_s, *profile.interval_s, run_s, now, apart, filed_s)


def _predicted(profile: Profile, tasks: Sequence[int]) -> tuple[str, float, float, float]:
    """Return what is said of tasks that are waited for at once: name, seconds, and the interval."""
    rows = [profile.tasks[task] for task in tasks]
    where = next((row.device for row in rows if not row.nbytes), rows[0].device)
    return (
        f"{tasks[0]}: {where}",
        sum(row.estimate_s for row in rows),
        sum(row.low_s for row in rows),
        sum(row.high_s for row in rows),
    )


Part = tuple[Sequence[int], Callable[[], None]]
"""A batch that a serial run launches and waits for at once: its tasks, and their executor."""


def _turns(
    session: Session, parts: Sequence[Part], paces: Sequence[MachineSpeed], watch: Watch, apart: str
) -> Iterator[list[float]]:
    """Yield the seconds of a run, and of each of its parts, in each turn in which the cores stayed
    so far apart.
    """
    feeds = random_feeds(session.inputs)
    for pace in paces:
        pace.since()
    for _ in range(_TURNS):
        watch.begin()
        seconds = [run_seconds(session, feeds, _TURN), *part_seconds(parts)]
        for pace in paces:
            pace.measure(apart)
        if watch.end() == apart:
            yield seconds
        else:
            for pace in paces:
                pace.forget()


def part_seconds(parts: Sequence[Part]) -> list[float]:
    """Return the median seconds of each part of a run, in runs of all of them."""
    return medians(collect(lambda: [seconds_of(run) for _, run in parts], _TURN))
