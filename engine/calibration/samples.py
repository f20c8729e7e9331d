"""Time a network on a device, repeatedly, in the memory of a run: whole, and kernel by kernel.

`calibrate` interleaves the networks; `MachineSpeed` and `transfer_probe` use the same timing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trireme.backend.capabilities import ThreadedCall, runner_of
from trireme.backend.core_latency import UNKNOWN, Watch
from trireme.backend.device import BoundCall, Device, KernelCost, held_s
from trireme.ir.graph import Graph
from trireme.support.dtypes import numpy_dtype
from trireme.support.timing import RepeatLimits, collect, medians, warm_median

LAUNCHES = RepeatLimits(duration_s=0.01, least=3)
"""Launches of one measurement."""
_PROFILED = replace(LAUNCHES, most=60)
"""Profiled launches of one measurement."""


@dataclass
class Measured:
    """A measured network: its name, its kernels, its bound call, and its measurements.

    alone: whether the call runs on one thread, where it has the choice (`ThreadedCall`)
    samples: of each measurement: unprofiled seconds of launch and wait, seconds of each kernel, and
        the state of the cores (core_latency.py)
    """

    name: str
    cost_features: Sequence[KernelCost]
    call: BoundCall
    alone: bool = False
    samples: list[tuple[float, list[float], str]] = field(default_factory=list)

    def measure(self, watch: Watch) -> None:
        """Measure once more."""
        use_single_thread(self.call, self.alone)
        watch.begin()
        whole_s = timed(self.call)
        found = _kernel_seconds(self.call, self.cost_features)
        if not found and len({work.family for work in self.cost_features}) == 1:
            found = [whole_s / len(self.cost_features)] * len(self.cost_features)
        self.samples.append((whole_s, found, watch.end()))

    def found(self, apart: Iterable[str]) -> list[NetSample]:
        """Return the medians in each of these states of the cores; of all together for no state."""
        groups = {one: [v for v in self.samples if v[2] == one] for one in apart}
        groups = {one: samples for one, samples in groups.items() if samples}
        if not self.samples:
            return []
        return [
            NetSample(
                self,
                one,
                statistics.median(whole for whole, _, _ in samples),
                medians([seconds for _, seconds, _ in samples]),
                len(samples),
            )
            for one, samples in (groups or {UNKNOWN: self.samples}).items()
        ]


@dataclass(frozen=True)
class NetSample:
    """Medians of a network's measurements in one state of the cores.

    seconds: of each kernel; empty where the device does not report kernels
    samples: the number of measurements behind the medians
    """

    net: Measured
    apart: str
    whole_s: float
    seconds: list[float]
    samples: int


def use_single_thread(call: BoundCall, alone: bool) -> bool:
    """Let a call run on one thread or on all; return whether the call has the choice."""
    return isinstance(call, ThreadedCall) and call.use_single_thread(alone)


def bind(device: Device, graph: Graph) -> BoundCall:
    """Return a graph compiled for a device and bound to memory, with fixed random inputs."""
    (executable,) = device.compile([graph])
    args = [device.alloc(max(graph.type(v).nbytes, 1)) for v in (*graph.inputs, *graph.outputs)]
    rng = np.random.default_rng(0)
    for value, buffer in zip(graph.inputs, args, strict=False):
        type = graph.type(value)
        data = rng.standard_normal(type.dims) * (30 if type.quant else 1)
        device.write(buffer, np.ascontiguousarray(data.astype(numpy_dtype(type.dtype))))
    scratch = device.alloc(executable.scratch_bytes) if executable.scratch_bytes else None
    return executable.bind(args, scratch)


def _kernel_seconds(call: BoundCall, cost_features: Sequence[KernelCost]) -> list[float]:
    """Return the median seconds of each kernel, from its start to the start of the next.

    Work that a kernel leaves to wake up thus counts as the kernel's. Empty where the device does
    not report kernels.
    """

    def profiled() -> list[float]:
        event = call.launch(profile=True)
        event.wait()
        spans = list(event.spans())
        held = zip((span.nodes for span in spans), held_s(spans), strict=True)
        return _matched(cost_features, held)

    return medians(collect(profiled, _PROFILED))


def _matched(
    cost_features: Sequence[KernelCost], spans: Iterable[tuple[tuple[int, ...], float]]
) -> list[float]:
    """Return the seconds of each kernel, its pieces added up; empty if the kernels differ."""
    rows, seconds = iter(spans), []
    row = next(rows, None)
    for position, work in enumerate(cost_features):
        if row is None or row[0] != work.nodes:
            return []
        total, row = row[1], next(rows, None)
        after = cost_features[position + 1].nodes if position + 1 < len(cost_features) else ()
        while row is not None and row[0] == work.nodes != after:
            total, row = total + row[1], next(rows, None)
        seconds.append(total)
    return seconds if row is None else []


def timed(call: BoundCall) -> float:
    """Return the median seconds of a launch with its wait."""
    return warm_median(runner_of(call), LAUNCHES)
