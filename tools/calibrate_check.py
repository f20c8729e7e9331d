"""`trireme calibrate --check MODEL...`: predictions beside measurements, on models that were not
measured when the curves were made."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trireme.calibration import load_calibration
from trireme.device import Device, open_device
from trireme.graph import Graph
from trireme.model_cache import optimised
from trireme.session import Session
from trireme.tools.options import Progress, calibration_path, device_list, random_array

_DURATION_S, _LEAST, _MOST = 0.5, 8, 400
_PARTS = 4
"""A model over several devices is cut into so many stretches, which go to the devices in turn."""


@dataclass(frozen=True)
class Row:
    """One model on one set of devices: seconds predicted, their interval, seconds measured."""

    model: str
    devices: str
    threads: int | None
    what: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """How far the prediction is off, of the measurement."""
        return self.predicted_s / self.measured_s - 1

    def __str__(self) -> str:
        held = "" if self.low_s <= self.measured_s <= self.high_s else "  outside"
        return (
            f"{self.model:30.30} {self.devices:11} {self.threads or 'all':>3} {self.what:12.12}"
            f" {_ms(self.predicted_s):>9} ({_ms(self.low_s)} to {_ms(self.high_s)})"
            f" {_ms(self.measured_s):>9} ms {self.error:+6.1%}{held}"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def check(options: argparse.Namespace) -> tuple[list[str], dict[str, Any], int]:
    """Return the lines and the data of a check, and 1 where the bars are missed, else 0."""
    progress, rows = Progress(), []
    for model in options.models:
        progress(f"checking {model}")
        rows += list(_rows(model, options))
    progress.done()
    whole = [abs(row.error) for row in rows if row.what == "run"]
    regions = [abs(row.error) for row in rows if row.what != "run"]
    lines = [
        f"{'model':30} {'devices':11} thr {'what':12} {'predicted ms':>9} (interval) measured",
        *map(str, rows), *(_summary(n, e) for n, e in (("runs", whole), ("regions", regions)) if e),
    ]  # fmt: skip
    held = [row.low_s <= row.measured_s <= row.high_s for row in rows]
    lines.append(f"{statistics.mean(held):.0%} lay within the interval")
    missed = statistics.median(whole) > 0.05 or statistics.mean(e <= 0.1 for e in whole) < 0.8
    return lines, {"rows": [asdict(row) | {"error": row.error} for row in rows]}, int(missed)


def _summary(what: str, errors: Sequence[float]) -> str:
    near = statistics.mean(error <= 0.1 for error in errors)
    return (
        f"{len(errors)} {what}: median error {statistics.median(errors):.1%},"
        f" {near:.0%} within 10 % (asked: 5 %, 80 %)"
    )


def _rows(model: str, options: argparse.Namespace) -> Iterator[Row]:
    names = device_list(options)
    graph = optimised(model)
    counts = [int(n) for n in options.threads.split(",")] if options.threads else [None]
    for devices in [*([name] for name in names), *([names] if len(names) > 1 else [])]:
        for threads in counts if "cpu" in devices else [None]:
            opened: dict[str, Device] = {}
            try:
                for name in devices:
                    opened[name] = open_device(
                        name, **({"threads": threads} if name == "cpu" and threads else {})
                    )
                if all(_runs(graph, device) for device in opened.values()):
                    yield from _measured(Path(model).name, graph, opened, threads)
            finally:
                for device in opened.values():
                    device.close()


def _runs(graph: Graph, device: Device) -> bool:
    return all(device.unsupported_reason(graph, node) is None for node in graph.nodes)


def in_stretches(graph: Graph, devices: Sequence[str], parts: int = _PARTS) -> Graph:
    """Return the graph with its nodes pinned, in stretches, to the devices in turn."""
    if len(devices) < 2:
        return graph
    size = -(-len(graph.nodes) // parts)
    pins = (devices[k // size % len(devices)] for k in range(len(graph.nodes)))
    nodes = (replace(node, pin=pin) for node, pin in zip(graph.nodes, pins, strict=False))
    return replace(graph, nodes=tuple(nodes))


def _measured(
    name: str, graph: Graph, devices: dict[str, Device], threads: int | None
) -> Iterator[Row]:
    pinned = in_stretches(graph, list(devices))
    calibration = load_calibration(calibration_path())
    with Session(
        pinned, devices=list(devices.values()), passes=(), calibration=calibration
    ) as session:
        rng = np.random.default_rng(0)
        feeds = {value.name: random_array(value, rng) for value in session.inputs}
        run_s = run_seconds(session, feeds)
        profile = session.profile(feeds, runs=_LEAST)
        label = "+".join(devices)
        yield Row(name, label, threads, "run", profile.predicted_s, *profile.interval_s, run_s)
        if len(profile.tasks) > 1:
            for task in profile.tasks:
                yield Row(
                    name, label, threads, task.label, task.estimate_s, task.low_s, task.high_s,
                    task.seconds,
                )  # fmt: skip


def run_seconds(session: Session, feeds: dict[str, Any]) -> float:
    """Return the median seconds of a run."""
    seconds: list[float] = []
    session.run(feeds)
    session.run(feeds)
    end = time.perf_counter() + _DURATION_S
    while len(seconds) < _LEAST or (len(seconds) < _MOST and time.perf_counter() < end):
        start = time.perf_counter()
        session.run(feeds)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
