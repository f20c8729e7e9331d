"""Measure what kernels, launches and copies take on this machine's real devices.

Small networks (`calibration_nets`) are compiled, bound and launched as real runs are, and every
kernel in them is timed where it stands, with the caches as they are within a model. A family of
kernels makes a curve. Simulated devices are not measured: their own model is their clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trireme.calibration import Calibration, DeviceCalibration
from trireme.calibration_nets import NETS, build
from trireme.cost import generic_works, supported_part
from trireme.device import HOST, BoundCall, Buffer, Device, Event, KernelWork, host_alloc
from trireme.dtypes import Array, numpy_dtype
from trireme.fit import fit
from trireme.graph import Graph
from trireme.optimise import optimise

Progress = Callable[[str, int, int], None]
LIMIT_S = 60.0
"""Seconds that all devices together may take; what is then not measured is left out."""
_RUNS, _RUNS_S, _LEAST_RUNS = 60, 0.07, 4
_VISITS = 3
"""How often every network is measured, apart in time; the best counts, as machines have phases."""
_COPY_ROUNDS = 12
_COPY_BYTES = (1 << 10, 16 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20)


def calibrate(
    devices: Mapping[str, Device], progress: Progress | None = None, limit_s: float = LIMIT_S
) -> Calibration:
    """Return the measured calibration of the open devices.

    `progress(device, done, total)` is called after each network.
    """
    real = {name: device for name, device in devices.items() if device.spec.clock == "wall"}
    end, measured = time.perf_counter() + limit_s, []
    for done, (name, device) in enumerate(real.items()):
        left = (end - time.perf_counter()) / (len(real) - done)
        measured.append(_calibrate_device(name, device, time.perf_counter() + left, progress))
    return Calibration.of_devices(*measured)


@dataclass
class Measured:
    """A network that is measured: its kernels, its call, and the best seconds so far.

    seconds: of each kernel; whole_s: of a launch with its wait, profiling nothing
    """

    works: Sequence[KernelWork]
    call: BoundCall
    seconds: list[float] = field(default_factory=list)
    whole_s: float = float("inf")

    def visit(self) -> None:
        """Measure once more."""
        self.whole_s = min(self.whole_s, _timed(self.call))
        found = _kernel_seconds(self.call, self.works)
        if not found and len({work.family for work in self.works}) == 1:
            found = [self.whole_s / len(self.works)] * len(self.works)
        self.seconds = list(map(min, found, self.seconds)) if self.seconds else found


def _calibrate_device(
    name: str, device: Device, end: float, progress: Progress | None
) -> DeviceCalibration:
    nets = list(_prepared(name, device, end, progress))
    for _ in range(_VISITS - 1):
        for done, net in enumerate(nets, 1):
            if time.perf_counter() < end:
                net.visit()
            if progress:
                progress(name, done, len(nets))
    known = [net for net in nets if net.seconds]
    rest = fit(
        [{"kernels": float(len(net.works))} for net in known],
        [max(net.whole_s - sum(net.seconds), 0.0) for net in known], 1e-6,
    )  # fmt: skip
    rows: dict[str, list[tuple[Mapping[str, float], float]]] = {}
    for net in known:
        for work, seconds in zip(net.works, net.seconds, strict=True):
            rows.setdefault(work.family, []).append((work.terms, seconds))
    least_s = min((s for net in known for s in net.seconds), default=0.0)
    curves = {
        family: fit(
            [t for t, _ in mine], [s for _, s in mine], rest.fixed_s / 4, least_s,
            device.term_limits,
        )
        for family, mine in rows.items()
    }  # fmt: skip
    copies = _copies(device, nets[0].call) if device.spec.memory != HOST and nets else {}
    return DeviceCalibration(
        device.spec.name, device.spec.description, rest.fixed_s, rest.per.get("kernels", 0.0),
        curves, copies,
    )  # fmt: skip


def _prepared(
    name: str, device: Device, end: float, progress: Progress | None
) -> Iterator[Measured]:
    """Yield the networks that the device runs, compiled and measured once."""
    for done, net in enumerate(NETS, 1):
        graph = supported_part(optimise(build(net)), device)
        if graph.nodes and time.perf_counter() < end:
            works = device.works(graph)
            works = generic_works(graph) if works is None else works
            found = Measured(works, _bind(device, graph))
            found.visit()
            yield found
        if progress:
            progress(name, done, len(NETS))


def _bind(device: Device, graph: Graph) -> BoundCall:
    (executable,) = device.compile([graph])
    args = [device.alloc(max(graph.type(v).nbytes, 1)) for v in (*graph.inputs, *graph.outputs)]
    rng = np.random.default_rng(0)
    for value, buffer in zip(graph.inputs, args, strict=False):
        type = graph.type(value)
        data = rng.standard_normal(type.dims) * (30 if type.quant else 1)
        device.write(buffer, np.ascontiguousarray(data.astype(numpy_dtype(type.dtype))))
    scratch = device.alloc(executable.scratch_bytes) if executable.scratch_bytes else None
    return executable.bind(args, scratch)


def _kernel_seconds(call: BoundCall, works: Sequence[KernelWork]) -> list[float]:
    """Return the median seconds of each kernel; nothing where the device does not tell them."""
    runs: list[list[float]] = []
    end = time.perf_counter() + _RUNS_S
    while len(runs) < _LEAST_RUNS or (len(runs) < _RUNS and time.perf_counter() < end):
        event = call.launch(profile=True)
        event.wait()
        spans = [(span.nodes, span.end_s - span.start_s) for span in event.spans()]
        runs.append(_matched(works, spans))
    return [statistics.median(each) for each in zip(*runs, strict=True)]


def _matched(
    works: Sequence[KernelWork], spans: Iterable[tuple[tuple[int, ...], float]]
) -> list[float]:
    """Return the seconds of each kernel; a kernel may have run in pieces. Empty if they differ."""
    rows, seconds = iter(spans), []
    row = next(rows, None)
    for position, work in enumerate(works):
        if row is None or row[0] != work.nodes:
            return []
        total, row = row[1], next(rows, None)
        after = works[position + 1].nodes if position + 1 < len(works) else ()
        while row is not None and row[0] == work.nodes != after:
            total, row = total + row[1], next(rows, None)
        seconds.append(total)
    return seconds if row is None else []


def _timed(call: BoundCall) -> float:
    """Return the median seconds of a launch with its wait."""
    run = getattr(call, "run", None) or (lambda: call.launch().wait())
    run()
    run()
    seconds: list[float] = []
    end = time.perf_counter() + _RUNS_S
    while len(seconds) < _LEAST_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _copies(device: Device, busy: BoundCall) -> dict[str, tuple[float, float]]:
    """Return latency and bandwidth of both ways, each copy between two launches as in a run."""
    device_end: Buffer = device.alloc(max(_COPY_BYTES))
    host = host_alloc(max(_COPY_BYTES)).handle
    ways: Mapping[str, Callable[[Buffer, Array], Event]] = {
        "write": device.start_write,
        "read": device.start_read,
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(_COPY_ROUNDS):
        for size in _COPY_BYTES:
            part, array = device_end.at(0, size), host[:size]
            for way, start in ways.items():
                array[:] = 1
                begin = time.perf_counter()
                start(part, array).wait()
                seconds.setdefault((way, size), []).append(time.perf_counter() - begin)
                busy.launch().wait()
    figures = {}
    for way in ways:
        medians = [statistics.median(seconds[way, size]) for size in _COPY_BYTES]
        curve = fit([{"bytes": float(size)} for size in _COPY_BYTES], medians)
        figures[way] = (curve.fixed_s, 1 / max(curve.per.get("bytes", 0.0), 1e-15))
    return figures
