"""Measure what kernels, launches and copies take on this machine's real devices.

Small networks (`nets`) are compiled, bound and launched as real runs are, and every
kernel in them is timed where it stands, with the caches as they are within a model. A family of
kernels makes a curve. Simulated devices are not measured: their own model is their clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trireme.calibrating.calibration import Calibration, Curve, DeviceCalibration, Sharing
from trireme.calibrating.fit import fit
from trireme.calibrating.handover import UNKNOWN, Watch, priced
from trireme.calibrating.nets import NETS, Net, build
from trireme.calibrating.turns import (
    measure_crossings,
    measure_issue,
    measure_launch,
    measure_overlap,
)
from trireme.cost import generic_works, supported_part, ways_of
from trireme.device import HOST, BoundCall, Device, KernelWork, held_s
from trireme.dtypes import numpy_dtype
from trireme.graph import Graph
from trireme.optimise import optimise
from trireme.session import Session

Progress = Callable[[str, int, int], None]
LIMIT_S = 60.0
"""Seconds that all devices together may take; what is then not measured is left out."""
_RUNS, _RUNS_S, _LEAST_RUNS = 60, 0.01, 3
"""Of a visit: the most runs and about the seconds; the least runs, however long."""
_VISITS = 15
"""How often every network is visited, if there is time: in turns, as machines have phases."""
_PREPARING = 0.7
"""Of a device's time: what compiling and measuring all networks once may take."""
_TURNING = 0.2
"""Of all time: what is left for turns with other devices, if there are others."""
_PACE = ("separable", "inverted", "inverted int8", "encoder", "inception", "small")
"""The networks that tell how fast the machine is: of several kinds, and short."""
_EMPTY = Net("empty", "float32", (1, 8), [("map", "relu")])
_TURNS = Net("turns", "float32", (1, 64, 64, 16), [("inverted", 24), ("inverted", 24), ("mean",)])


def calibrate(
    devices: Mapping[str, Device],
    progress: Progress | None = None,
    limit_s: float = LIMIT_S,
    beside: Sequence[Device] = (),
) -> Calibration:
    """Return the measured calibration of the open devices.

    `progress(device, done, total)` is called after each network.
    beside: further open devices, not measured but for what turns with them cost
    """
    real = {name: device for name, device in devices.items() if device.spec.clock == "wall"}
    together = [*real.values(), *(one for one in beside if one.spec.clock == "wall")]
    if len(together) > 1:
        limit_s *= 1 - _TURNING
    end, measured = time.perf_counter() + limit_s, []
    for done, (name, device) in enumerate(real.items()):
        left = (end - time.perf_counter()) / (len(real) - done)
        measured.append(_calibrate_device(name, device, time.perf_counter() + left, progress))
    return Calibration.of_devices(
        *(
            _with_turns(one, device, [other for other in together if other is not device])
            for one, device in zip(measured, real.values(), strict=True)
        )
    )


@dataclass
class Measured:
    """A network that is measured: its name, kernels and call, and what every visit found.

    alone: which way the call is to run, where it has the choice (`BoundCall.choose`)
    visits: the seconds of a launch with its wait, profiling nothing; of each kernel; and how far
        apart the cores were (handover.py)
    """

    name: str
    works: Sequence[KernelWork]
    call: BoundCall
    alone: bool = False
    visits: list[tuple[float, list[float], str]] = field(default_factory=list)

    def visit(self, watch: Watch) -> None:
        """Measure once more."""
        choose(self.call, self.alone)
        watch.begin()
        whole_s = timed(self.call)
        found = _kernel_seconds(self.call, self.works)
        if not found and len({work.family for work in self.works}) == 1:
            found = [whole_s / len(self.works)] * len(self.works)
        self.visits.append((whole_s, found, watch.end()))

    def found(self, apart: Iterable[str]) -> list[Found]:
        """Return what was found with the cores so far apart; all together where none were."""
        groups = {one: [v for v in self.visits if v[2] == one] for one in apart}
        groups = {one: visits for one, visits in groups.items() if visits}
        return [
            Found(
                self, one, statistics.median(whole for whole, _, _ in visits),
                [statistics.median(each) for each in zip(*(s for _, s, _ in visits), strict=True)],
            )
            for one, visits in (groups or {UNKNOWN: self.visits}).items()
        ]  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Medians of a network's visits while the cores were so far apart.

    seconds: of each kernel; nothing where the device does not tell them
    """

    net: Measured
    apart: str
    whole_s: float
    seconds: list[float]


def _calibrate_device(
    name: str, device: Device, end: float, progress: Progress | None
) -> DeviceCalibration:
    begin = time.perf_counter()
    watch = Watch(device.handover)
    nets = list(_prepared(name, device, watch, begin + _PREPARING * (end - begin), progress))
    for visit in range(1, _VISITS):
        for net in nets:
            if time.perf_counter() < end:
                net.visit(watch)
        if progress:
            progress(name, visit + 1, _VISITS)
    cores = {apart: one for apart, one in watch.known.items() if apart != "shared"}
    found = [one for net in nets for one in net.found(cores)]
    known = [one for one in found if one.seconds]
    whole = fit(
        [{"kernels": float(len(n.seconds)), "kernels_s": sum(n.seconds)} for n in known],
        [net.whole_s for net in known], 0.0, min([net.whole_s for net in known], default=0.0),
    ) if known else Curve(0.0, {})  # fmt: skip
    scale = whole.per.get("kernels_s", 1.0)
    rows: dict[str, list[tuple[Mapping[str, float], float]]] = {}
    for one in known:
        for work, seconds in zip(one.net.works, one.seconds, strict=True):
            terms = priced(work.terms, cores.get(one.apart))
            rows.setdefault(work.family, []).append((terms, scale * seconds))
    least_s = min((s for one in known for s in one.seconds), default=0.0)
    curves = {
        family: fit(
            [t for t, _ in mine], [s for _, s in mine], whole.fixed_s / 4, least_s,
            device.term_limits,
        )
        for family, mine in rows.items()
    }  # fmt: skip
    short_s = measure_launch(device, _bind)
    launch_s = whole.fixed_s if short_s is None else min(short_s, whole.fixed_s)
    return DeviceCalibration(
        device.spec.name, device.spec.description, launch_s + _run_s(device),
        whole.per.get("kernels", 0.0), curves, {}, {},
        {
            apart: {one.net.name: one.whole_s for one in found if one.apart == apart}
            for apart in dict.fromkeys(one.apart for one in found)
        },
        measure_issue(device), cores, next(iter(cores), UNKNOWN),
    )  # fmt: skip


def _run_s(device: Device) -> float:
    """Return what a session adds to a launch where values are passed by address: on the host."""
    graph = supported_part(build(_EMPTY), device)
    if device.spec.memory != HOST or not graph.nodes:
        return 0.0
    call = _bind(device, graph)
    feeds = {"x": np.zeros(_EMPTY.shape, np.float32)}
    with Session(graph, devices=[device], passes=(), calibration=Calibration()) as session:
        more = [_seconds(lambda: session.run(feeds)) - timed(call) for _ in range(_VISITS)]
    return max(statistics.median(more), 0.0)


def _with_turns(
    measured: DeviceCalibration, device: Device, others: Sequence[Device]
) -> DeviceCalibration:
    """Return a device's calibration with its copies, and with what turns with others cost it."""
    copies: dict[str, tuple[float, float]] = {}
    sharing: dict[str, Sharing] = {}
    if device.spec.memory != HOST:
        alone = measure_crossings(device, None)
        if alone:
            copies = dict.fromkeys(("read", "write"), alone[:2])
        return replace(measured, copies=copies)
    graph = supported_part(build(_TURNS), device)
    for other in others:
        shares = device.spec.resource_group == other.spec.resource_group != ""
        theirs = supported_part(build(_TURNS), other)
        if shares and other.spec.memory != HOST and graph.nodes and theirs.nodes:
            crossing = measure_crossings(other, device)
            if crossing:
                overlap = measure_overlap(_bind(device, graph), _bind(other, theirs))
                sharing[other.spec.name] = Sharing(*crossing, overlap)
    return replace(measured, sharing=sharing)


class Pace:
    """How fast the machine is, beside when it was calibrated: a few of the networks again.

    They are visited in turns with what is to be compared, so that both see the same machine, and
    compared with what they took with the cores as far apart; where the device has but one, with
    what they took; where that was not seen, alone, which does not depend on it.
    """

    def __init__(self, device: Device, measured: DeviceCalibration) -> None:
        self._nets = measured.nets
        self._rows: list[tuple[BoundCall, str, list[float]]] = []
        for net in NETS:
            if net.name in _PACE and any(net.name in nets for nets in measured.nets.values()):
                graph = supported_part(optimise(build(net)), device)
                self._rows.append((_bind(device, graph), net.name, []))

    def visit(self, apart: str = UNKNOWN) -> None:
        """Measure each network once more, with the cores so far apart."""
        for call, name, ratios in self._rows:
            then = (self._nets.get(apart) or self._nets.get(UNKNOWN, {})).get(name)
            is_alone = then is None
            if then is None:
                alone = (nets.get(f"{name} alone") for nets in self._nets.values())
                then = next((seconds for seconds in alone if seconds), None)
            if then is not None:
                choose(call, is_alone)
                ratios.append(timed(call) / then)

    def forget(self) -> None:
        """Take back the last visit: the machine was another one meanwhile."""
        for _, _, ratios in self._rows:
            del ratios[-1:]

    def since(self) -> float:
        """Return the seconds of the visits since the last time, of those of the calibration: 1.1
        is a tenth slower; 1.0 if nothing is known.
        """
        found = [statistics.median(ratios) for _, _, ratios in self._rows if ratios]
        for _, _, ratios in self._rows:
            ratios.clear()
        return statistics.median(found or [1.0])


def choose(call: BoundCall, alone: bool) -> bool:
    """Let a call run alone or with its device's other threads; whether it has the choice."""
    ask: Callable[[bool], bool] | None = getattr(call, "choose", None)
    return ask is not None and ask(alone)


def _prepared(
    name: str, device: Device, watch: Watch, end: float, progress: Progress | None
) -> Iterator[Measured]:
    """Yield the networks that the device runs, compiled and measured once; in each way."""
    for done, net in enumerate(NETS, 1):
        graph = supported_part(optimise(build(net)), device)
        if graph.nodes and time.perf_counter() < end:
            works = device.works(graph)
            ways = ways_of(generic_works(graph) if works is None else works)
            call = _bind(device, graph)
            for alone, kernels in ways.items():
                if not alone or choose(call, True):
                    found = Measured(net.name + " alone" * alone, kernels, call, alone)
                    found.visit(watch)
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
    """Return the median seconds of each kernel, until the next one begins: between two kernels of a
    driver lies what the first left to wake up; nothing where the device does not tell them.
    """
    runs: list[list[float]] = []
    end = time.perf_counter() + _RUNS_S
    while len(runs) < _LEAST_RUNS or (len(runs) < _RUNS and time.perf_counter() < end):
        event = call.launch(profile=True)
        event.wait()
        spans = list(event.spans())
        held = zip((span.nodes for span in spans), held_s(spans), strict=True)
        runs.append(_matched(works, held))
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


def timed(call: BoundCall) -> float:
    """Return the median seconds of a launch with its wait."""
    return _seconds(getattr(call, "run", None) or (lambda: call.launch().wait()))


def _seconds(run: Callable[[], object]) -> float:
    run()
    seconds: list[float] = []
    end = time.perf_counter() + _RUNS_S
    while len(seconds) < _LEAST_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
