"""Measure kernels, launches and copies on this machine's real devices.

Small networks (`nets`) are compiled, bound and launched as real runs are. Every kernel is timed
inside its network, with the caches in the state of a model's run. Each family of kernels gets one
curve. Simulated devices are not measured: their own model is their clock.

A machine's speed drifts by a tenth within a minute. So the measurements of all devices, and of the
cpu with each number of threads, interleave over the whole time.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest

import numpy as np

from trireme.backend.core_latency import UNKNOWN, CoreLatency, Watch, priced
from trireme.backend.device import HOST, Device, Progress
from trireme.calibration.fit import fit
from trireme.calibration.net_builder import Net, build
from trireme.calibration.nets import NETS
from trireme.calibration.samples import (
    LAUNCHES,
    Measured,
    NetSample,
    bind,
    timed,
    use_single_thread,
)
from trireme.calibration.transfer_probe import TransferCosts, measure_issue, measure_overlap
from trireme.cost.calibration import Calibration, Curve, DeviceCalibration, Sharing
from trireme.cost.model import variants_of
from trireme.cost.quality import Judgement, judge
from trireme.cost.work import generic_works, supported_part
from trireme.ir.graph import Graph
from trireme.passes.pipeline import optimise
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.arguments import checked
from trireme.support.errors import RunError
from trireme.support.timing import warm_median

_log = logging.getLogger(__name__)
LIMIT_S = 60.0
"""Time limit for all devices together. Networks without a measurement by then are left out."""
_ROUNDS = 15
"""Rounds of measurement, if there is time. A machine has slow and fast phases, so networks
interleave."""
_PREPARING = 0.5
"""No further network is compiled after this share of the time limit."""
_FIRST = 0.65
"""The first round ends after this share of the time limit, to leave time for device pairs."""
_PAIRING = 0.78
"""No further device pair is prepared after this share of the time limit."""
_MEASURING = 0.9
"""Measuring ends after this share of the time limit. The rest is for the fits and the caller."""
_EVERY = 2
"""Transfers between devices are measured in every second round only."""
_SHORT = 0.1
"""A launch above this share of a network's time hides the total of its kernels."""
_SCALES = (0.85, 1.2)
"""Limits of the total of a network's kernels, relative to their sum."""
_EMPTY = Net("empty", "float32", (1, 8), [("map", "relu")])
_TURNS = Net("turns", "float32", (1, 64, 64, 16), [("inverted", 24), ("inverted", 24), ("mean",)])


@checked(RunError)
def calibrate(
    devices: Sequence[Device], progress: Progress | None = None, limit_s: float = LIMIT_S
) -> Calibration:
    """Return the measured calibration of the open devices.

    It covers the cpu device with several numbers of threads, and the transfers of device pairs.
    `progress(step, done, total)` is called as networks are compiled and rounds measured.
    """
    begin, report = time.perf_counter(), progress or (lambda what, done, total: None)
    end = begin + _MEASURING * limit_s
    measured = [_MeasuredDevice(device) for device in devices if device.spec.clock == "wall"]
    _compile(measured, begin + _PREPARING * limit_s, limit_s > 0, report)
    with ExitStack() as stack:
        pairs: list[_DevicePair] = []
        for round in range(_ROUNDS):
            report("measuring: round", round, _ROUNDS)
            _measure_nets(measured, end if round else begin + _FIRST * limit_s)
            if not round and limit_s > 0:
                for device in measured:
                    device.prepare_launches(stack)
                pairs = [*_device_pairs(measured, stack, begin + _PAIRING * limit_s)]
            _measure_launches(measured, pairs if round % _EVERY == 0 else (), end)
            if time.perf_counter() > end:
                break
        report("measuring: round", _ROUNDS, _ROUNDS)
        known = [pair for pair in pairs if pair.transfers.is_measured]
        return Calibration.of_devices(*(one.calibration(known) for one in measured))


@dataclass
class _MeasuredDevice:
    """A measured device: its networks, its core latencies, and its launches.

    session: measures the seconds that a session adds to a launch
    session_s: the measurements of `session`
    issue_s: see `transfer_probe`; None where a device does not start one task after another by
        itself
    """

    device: Device
    nets: list[list[Measured]] = field(default_factory=list)
    session: Callable[[], float] | None = None
    session_s: list[float] = field(default_factory=list)
    issue_s: float | None = None

    def __post_init__(self) -> None:
        self.watch = Watch(self.device.core_latency)

    def compile(self, graph: Graph) -> None:
        """Compile a network, to measure each of its variants (alone or threaded)."""
        graph = supported_part(graph, self.device)
        if graph.nodes:
            cost_features = self.device.cost_features(graph)
            variants = variants_of(generic_works(graph) if cost_features is None else cost_features)
            call = bind(self.device, graph)
            self.nets.append(
                [
                    Measured(graph.name + " alone" * alone, kernels, call, alone)
                    for alone, kernels in variants.items()
                    if not alone or use_single_thread(call, True)
                ]
            )

    def prepare_launches(self, stack: ExitStack) -> None:
        """Measure `issue_s`, and prepare the measurement of a session's launches."""
        if self.nets:
            self.session = _session_on(self.device, stack)
            self.issue_s = measure_issue(self.device)

    def calibration(self, pairs: Sequence[_DevicePair]) -> DeviceCalibration:
        """Return the fitted figures; without measurements there are no curves."""
        cores = {apart: one for apart, one in self.watch.known.items() if apart != "shared"}
        found = [one for net in self.nets for variant in net for one in variant.found(cores)]
        fitted = _fitted(found, cores, self.device)
        judged = [*fitted.judged]
        measured = [x for x in pairs if (x.local or x.remote) is self.device]
        links = [(x, link) for x in measured if (link := x.link(judged)) is not None]
        more_s = max(statistics.median(self.session_s or [0.0]), 0.0)
        issue_s = self.issue_s
        if issue_s is not None:
            judged.append(judge("issue", issue_s, 1))
            issue_s = issue_s if judged[-1].used else None
        return replace(
            fitted,
            launch_s=None if fitted.launch_s is None else fitted.launch_s + more_s,
            copies={
                direction: (link.latency_s, link.bandwidth)
                for x, link in links
                if x.local is None
                for direction in ("read", "write")
            },
            sharing={x.remote.spec.name: link for x, link in links if x.local is not None},
            nets={
                apart: {one.net.name: one.whole_s for one in found if one.apart == apart}
                for apart in dict.fromkeys(one.apart for one in found)
            },
            issue_s=issue_s,
            cores=cores,
            apart=next(iter(cores), UNKNOWN),
            judged=tuple(judged),
        )


@dataclass(frozen=True)
class _DevicePair:
    """Two devices that take turns, or one device and the host: then `local` is None.

    overlap: seconds of both at once, relative to one after the other
    """

    remote: Device
    local: Device | None
    transfers: TransferCosts
    overlap: float = 1.0

    def link(self, judged: list[Judgement]) -> Sharing | None:
        """Return the figures of a copy; None where the measured latency is not used.

        The description's bandwidth replaces a measured one that is not used. The verdicts on the
        figures are added to `judged`.
        """
        found, spec = self.transfers.figures, self.remote.spec
        known = found.sharing(self.overlap)
        of = f"{'with' if self.local else 'to'} {spec.name}"
        latency_s, bandwidth = known.link(None)
        fitted = (found.samples, found.error, of)
        latency = judge("copy latency", latency_s, *fitted)
        bytes_a_second = judge("copy bandwidth", bandwidth, *fitted)
        overlap = judge("overlap", self.overlap, 1, of=of)
        judged += [latency, bytes_a_second, *([overlap] if self.local else [])]
        if not latency.used:
            return None
        if not bytes_a_second.used:
            known = replace(known, bandwidth=spec.link_bandwidth, handed=0.0)
        return known if overlap.used else replace(known, overlap=1.0)


def _compile(
    measured: Sequence[_MeasuredDevice], end: float, at_least_one: bool, report: Progress
) -> None:
    """Compile the networks for all devices. Devices of one kind share code; kinds share the time.

    at_least_one: whether to compile the first network even without time
    """
    kinds: dict[str, list[_MeasuredDevice]] = {}
    for one in measured:
        kinds.setdefault(one.device.spec.kind, []).append(one)
    spent_s, done = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0)
    graphs = cache(lambda number: optimise(build(NETS[number])))
    while open := [kind for kind in kinds if done[kind] < len(NETS)]:
        kind, begin = min(open, key=spent_s.__getitem__), time.perf_counter()
        if begin > end and (done[kind] or not at_least_one):
            break
        report(f"compiling for {kind}", done[kind], len(NETS))
        for one in kinds[kind]:
            one.compile(graphs(done[kind]))
        done[kind] += 1
        spent_s[kind] += time.perf_counter() - begin
    for kind in open:
        _log.warning(
            "%s: there was time to compile %d of %d networks; what is compiled is kept, so"
            " calibrate again to measure all",
            kind,
            done[kind],
            len(NETS),
        )


def _measure_nets(measured: Sequence[_MeasuredDevice], end: float) -> None:
    """Measure every network once on every device while there is time; the first network always."""
    for done, same in enumerate(zip_longest(*(one.nets for one in measured), fillvalue=())):
        for one, variants in zip(measured, same, strict=True):
            for variant in variants:
                if not done or time.perf_counter() < end:
                    variant.measure(one.watch)


def _measure_launches(
    measured: Sequence[_MeasuredDevice], pairs: Sequence[_DevicePair], end: float
) -> None:
    """Measure sessions' launches and device pairs while there is time; each at least once."""
    for one in measured:
        if one.session and (not one.session_s or time.perf_counter() < end):
            one.session_s.append(one.session())
    for pair in pairs:
        if not pair.transfers.is_measured or time.perf_counter() < end:
            pair.transfers.measure()


def _device_pairs(
    measured: Sequence[_MeasuredDevice], stack: ExitStack, end: float
) -> Iterator[_DevicePair]:
    """Yield the device pairs, ready for measurement until the stack closes.

    end: no pair is prepared after this time; each pair gets its share of the time
    """
    pairs = [*_pairs([one.device for one in measured])]
    for number, (remote, local) in enumerate(pairs):
        now = time.perf_counter()
        if now > end:
            return
        transfers = TransferCosts(remote, local, stack, now + (end - now) / (len(pairs) - number))
        overlap = 1.0
        if local is not None:
            own, other = (supported_part(build(_TURNS), one) for one in (local, remote))
            if not own.nodes or not other.nodes:
                continue
            overlap = measure_overlap(bind(local, own), bind(remote, other))
        if transfers.runs:
            yield _DevicePair(remote, local, transfers, overlap)


def _pairs(devices: Sequence[Device]) -> Iterator[tuple[Device, Device | None]]:
    """Yield each device with its own memory: alone, and with each host device on its silicon."""
    for remote in (one for one in devices if one.spec.memory != HOST):
        yield remote, None
        for local in (one for one in devices if one.spec.memory == HOST):
            if local.spec.resource_group == remote.spec.resource_group != "":
                yield remote, local


def _session_on(device: Device, stack: ExitStack) -> Callable[[], float] | None:
    """Return a function that measures the seconds that a session adds to a launch.

    None for devices off the host: only the host passes values by address.
    """
    graph = supported_part(build(_EMPTY), device)
    if device.spec.memory != HOST or not graph.nodes:
        return None
    call = bind(device, graph)
    feeds = {"x": np.zeros(_EMPTY.shape, np.float32)}
    session = stack.enter_context(
        Session(graph, devices=[device], execution_options=AS_GIVEN, calibration=Calibration())
    )
    return lambda: warm_median(lambda: session.run(feeds), LAUNCHES) - timed(call)


def _scale(one: NetSample, launch: Curve) -> float:
    """Return the seconds of a network's kernels without profiling, relative to the profiled sum.

    Medians of single kernels add up to less than the median of the whole.
    """
    own_s = one.whole_s - launch.fixed_s - launch.per.get("kernels", 0.0) * len(one.seconds)
    if launch.fixed_s > _SHORT * one.whole_s:
        return launch.per.get("kernels_s", 1.0)
    return min(max(own_s / sum(one.seconds), _SCALES[0]), _SCALES[1])


def _fitted(
    found: Sequence[NetSample], cores: Mapping[str, CoreLatency], device: Device
) -> DeviceCalibration:
    """Return the fitted launch, seconds between kernels, and curves of the kernel families."""
    known, spec = [one for one in found if one.seconds], device.spec
    if not known:
        return DeviceCalibration(spec.name, spec.description, None)
    launch = fit(
        [{"kernels": float(len(n.seconds)), "kernels_s": sum(n.seconds)} for n in known],
        [net.whole_s for net in known],
        0.0,
        min(net.whole_s for net in known),
    )
    nets = len({one.net.name for one in known})
    verdict = judge("launch", launch.fixed_s, nets, launch.error, described=spec.launch_s)
    launch = launch if verdict.used else Curve(spec.launch_s, {})
    rows: dict[str, list[_KernelSample]] = {}
    for one in known:
        for work, seconds in zip(one.net.cost_features, one.seconds, strict=True):
            terms = priced(work.terms, cores.get(one.apart))
            row = _KernelSample(terms, _scale(one, launch) * seconds, one.samples)
            rows.setdefault(work.family, []).append(row)
    least_s = min(s for n in known for s in n.seconds)
    curves, judged = {}, [verdict]
    for family, own in rows.items():
        curve = fit(
            [row.terms for row in own],
            [row.seconds for row in own],
            launch.fixed_s / 4,
            least_s,
            device.term_limits,
        )
        samples = sum(row.samples for row in own)
        judged.append(judge("kernels", curve.fixed_s, samples, curve.error, family))
        if judged[-1].used:
            curves[family] = curve
    launch_s = launch.fixed_s if verdict.used else None
    return DeviceCalibration(
        spec.name,
        spec.description,
        launch_s,
        launch.per.get("kernels", 0.0),
        curves,
        judged=tuple(judged),
    )


@dataclass(frozen=True)
class _KernelSample:
    """A kernel of a network: its amounts, its median seconds, and the number of measurements."""

    terms: Mapping[str, float]
    seconds: float
    samples: int
