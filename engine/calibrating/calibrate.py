"""Measure what kernels, launches and copies take on this machine's real devices.

Small networks (`nets`) are compiled, bound and launched as real runs are, and every
kernel in them is timed where it stands, with the caches as they are within a model. A family of
kernels makes a curve. Simulated devices are not measured: their own model is their clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

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
from trireme.calibrating.visits import Measured, bind, choose, seconds_of, timed
from trireme.cost import generic_works, supported_part, ways_of
from trireme.device import HOST, Device
from trireme.optimise import optimise
from trireme.session import Session

Progress = Callable[[str, int, int], None]
LIMIT_S = 60.0
"""Seconds that all devices together may take; what is then not measured is left out."""
_VISITS = 15
"""How often every network is visited, if there is time: in turns, as machines have phases."""
_PREPARING = 0.7
"""Of a device's time: what compiling and measuring all networks once may take."""
_TURNING = 0.2
"""Of all time: what is left for turns with other devices, if there are others."""
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
    short_s = measure_launch(device, bind)
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
    call = bind(device, graph)
    feeds = {"x": np.zeros(_EMPTY.shape, np.float32)}
    with Session(graph, devices=[device], passes=(), calibration=Calibration()) as session:
        more = [seconds_of(lambda: session.run(feeds)) - timed(call) for _ in range(_VISITS)]
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
                overlap = measure_overlap(bind(device, graph), bind(other, theirs))
                sharing[other.spec.name] = Sharing(*crossing, overlap)
    return replace(measured, sharing=sharing)


def _prepared(
    name: str, device: Device, watch: Watch, end: float, progress: Progress | None
) -> Iterator[Measured]:
    """Yield the networks that the device runs, compiled and measured once; in each way."""
    for done, net in enumerate(NETS, 1):
        graph = supported_part(optimise(build(net)), device)
        if graph.nodes and time.perf_counter() < end:
            works = device.works(graph)
            ways = ways_of(generic_works(graph) if works is None else works)
            call = bind(device, graph)
            for alone, kernels in ways.items():
                if not alone or choose(call, True):
                    found = Measured(net.name + " alone" * alone, kernels, call, alone)
                    found.visit(watch)
                    yield found
        if progress:
            progress(name, done, len(NETS))
