"""Measure the transfer from one device to another: copies, and turns on shared silicon.

`calibrate` runs sessions over small networks that change the device again and again. So the figures
include the session's overlap and launches ahead. The seconds of the tasks alone are subtracted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from trireme.backend.capabilities import runner_of
from trireme.backend.core_latency import UNKNOWN, CoreLatency, Watch
from trireme.backend.device import BoundCall, Device
from trireme.calibration.fit import least_squares
from trireme.calibration.net_builder import build
from trireme.calibration.nets import NETS
from trireme.cost.calibration import Calibration, Sharing
from trireme.cost.work import supported_part
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType
from trireme.passes.pipeline import optimise
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.options import AS_GIVEN, ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.dtypes import numpy_dtype
from trireme.support.timing import RepeatLimits, medians, warm_median

Bind = Callable[[Device, Graph], BoundCall]
"""Compiles a graph for a device and binds it to memory."""


@dataclass(frozen=True)
class TransferFigures:
    """The cost of a copy: seconds, and bytes a second, as in `calibration.Sharing`.

    flags: additional flags that pass between cores, a copy
    handed: additional bytes that pass between cores, a byte of the copy
    samples: number of runs behind the fit
    error: median error, relative to the run
    """

    latency_s: float
    bandwidth: float
    flags: float
    handed: float
    samples: int
    error: float

    def sharing(self, overlap: float) -> Sharing:
        """Return the figures in the calibration's form."""
        return Sharing(self.latency_s, self.bandwidth, self.flags, self.handed, overlap)


_ROUNDS, _PAIRS = RepeatLimits(least=25), 3
_BEHIND = 16
_ELEMENTS = (256, 8 << 10, 64 << 10, 512 << 10, 2 << 20)
_CUTS: Mapping[str, tuple[int, ...]] = {
    "layers": (4,),
    "tiny": (2, 4),
    "tiny int8": (4,),
    "small": (2, 4),
    "small int8": (2,),
    "small uint8": (2, 4),
    "middle": (2,),
    "separable": (4,),
    "inverted": (4,),
}
"""Networks that are cut between two devices, and the numbers of parts. A driver's threads wake
slower after a longer sleep: in 20 us after 10 us, and 150 us after 60 us on a virtual machine. So
the parts are as long as those of small models."""
_WHOLE: Mapping[str, tuple[int, ...]] = {
    name: (1,) for name in ("layers", "tiny", "tiny int8", "small maps", "separable", "inverted")
}
"""Networks that run on one device, with inputs and outputs on the host."""
_SAMPLE = RepeatLimits(duration_s=0.004, least=3)
"""How often one measurement repeats a run or a task."""
_LEAST_S_PER_BYTE = 1e-12
_USUAL = (15e-6, 1e-10, 130.0, 0.2)
"""Usual seconds a copy, seconds a byte, flags and handed bytes, measured in both states of the
cores. Measurements in one state cannot separate the part that depends on the cores."""
_MOST = (np.inf, np.inf, 300.0, 2.0)
"""Upper limits of the same figures. A byte of a copy passes between cores at most twice:
in and out."""


class TransferCosts:
    """Measured runs that change the device, interleaved with other measurements.

    remote: a device with memory of its own
    local: a device on host memory that takes turns with it; None runs the whole network there
    stack: closes the runs' sessions
    end: no run is prepared after this time (time.perf_counter), since compiling may take long
    """

    def __init__(
        self, remote: Device, local: Device | None, stack: ExitStack, end: float = math.inf
    ) -> None:
        self.watch = Watch(remote.core_latency if local else lambda: None)
        self.runs: list[_TransferRun] = []
        for graph in _cut(remote, local):
            if time.perf_counter() > end:
                break
            self.runs.append(_TransferRun.of(graph, remote, local, stack))

    def measure(self) -> None:
        """Measure each run once more."""
        for run in self.runs:
            run.measure(self.watch)

    @property
    def is_measured(self) -> bool:
        """Whether every run has a measurement."""
        return bool(self.runs) and all(run.samples for run in self.runs)

    @property
    def figures(self) -> TransferFigures:
        """The seconds that a copy to or from the device with its own memory adds to a run.

        They exclude the tasks' own time. They include waking up, signalling the end, the host's
        work meanwhile, and caches that hold another core's values.
        """
        cores = {apart: one for apart, one in self.watch.known.items() if apart != "shared"}
        rows = [row for run in self.runs for row in run.rows(cores)]
        return fit_transfers(
            rows or [row for run in self.runs for row in run.rows({UNKNOWN: None})]
        )


RunTimes = tuple[float, float, float, float, CoreLatency | None]
"""A run: copies, bytes copied, seconds beyond its tasks, whole seconds, core latency (None where
unknown). Errors are relative to the whole seconds."""


def fit_transfers(rows: Sequence[RunTimes]) -> TransferFigures:
    """Return the figures that fit the runs best, none negative."""
    cores = [row[4] or CoreLatency(0.0, 0.0) for row in rows]
    table = np.array([row[:4] for row in rows], np.float64)
    flags, handed = np.array([(one.flag_s, one.byte_s) for one in cores]).T
    copies, nbytes, more_s, whole_s = table.T
    terms = np.stack([copies, nbytes, copies * flags, nbytes * handed], axis=1)
    usual = np.array(_USUAL) if flags.any() else np.zeros(4)
    found = least_squares(terms, more_s, 1 / whole_s, usual, np.array(_MOST))
    latency_s, s_per_byte, *more = found.tolist()
    error = float(np.median(np.abs(terms @ found - more_s) / whole_s))
    bandwidth = 1 / max(s_per_byte, _LEAST_S_PER_BYTE)
    return TransferFigures(latency_s, bandwidth, more[0], more[1], len(rows), error)


@dataclass
class _TransferRun:
    """A session on a network over one or two devices, and its tasks for runs alone.

    context: the memory of the tasks
    samples: of each measurement: seconds of a run, of its tasks alone, and the state of the cores
    """

    run: Callable[[], object]
    tasks: Sequence[Callable[[], object]]
    context: ExecutionContext
    copies: int
    nbytes: int
    samples: list[tuple[float, float, str]] = field(default_factory=list)

    @classmethod
    def of(
        cls, graph: Graph, remote: Device, local: Device | None, stack: ExitStack
    ) -> _TransferRun:
        """Return the session and the tasks on memory, until the stack closes.

        The workers stay awake for tasks alone, because waking is a part of the transfer.
        """
        devices = [one for one in (local, remote) if one is not None]
        session = stack.enter_context(
            Session(graph, devices=devices, execution_options=AS_GIVEN, calibration=Calibration())
        )
        feeds = {
            value.name: np.zeros(value.type.dims, numpy_dtype(value.type.dtype))
            for value in session.inputs
        }
        context = ExecutionContext(session.program)
        context.set_idle(False)
        calls = zip(session.plan.tasks, context.calls, strict=True)
        own = [runner_of(call) for task, call in calls if not task.is_copy]
        moved = [task.outputs[0] for task in session.plan.tasks if task.is_copy]
        nbytes = sum(session.plan.graph.type(value).nbytes for value in moved)
        return cls(partial(session.run, feeds), own, context, len(moved), nbytes)

    def measure(self, watch: Watch) -> None:
        """Measure once more."""
        watch.begin()
        whole_s = warm_median(self.run, _SAMPLE)
        own_s = sum(warm_median(task, _SAMPLE) for task in self.tasks)
        self.samples.append((whole_s, own_s, watch.end()))

    def rows(self, cores: Mapping[str, CoreLatency | None]) -> Iterator[RunTimes]:
        """Yield the medians of the measurements in each state of the cores."""
        for apart, core_latency in cores.items():
            own = [sample[:2] for sample in self.samples if sample[2] == apart or apart == UNKNOWN]
            if own:
                whole_s, own_s = medians(own)
                yield self.copies, self.nbytes, whole_s - own_s, whole_s, core_latency


def _cut(remote: Device, local: Device | None) -> Iterator[Graph]:
    """Yield networks that all the devices run, in parts; chains of maps if there are none."""
    devices = [one for one in (local, remote) if one is not None]
    names = [one.spec.name for one in devices]
    graphs = [
        in_parts(optimise(build(net)), names, parts)
        for net in NETS
        for parts in (_CUTS if local else _WHOLE).get(net.name, ())
    ]
    chains = [chain(elements, names * (_PAIRS if local else 1)) for elements in _ELEMENTS]
    for some in (graphs, chains):
        mine = [g for g in some if all(supported_part(g, d) is g for d in devices)]
        yield from mine
        if mine:
            return


def in_parts(graph: Graph, devices: Sequence[str], parts: int) -> Graph:
    """Return the graph in `parts` contiguous parts, pinned to the devices in turn."""
    if len(devices) < 2:
        return graph
    size = -(-len(graph.nodes) // parts)
    pins = (devices[k // size % len(devices)] for k in range(len(graph.nodes)))
    nodes = (replace(node, pin=pin) for node, pin in zip(graph.nodes, pins, strict=False))
    return replace(graph, nodes=tuple(nodes))


def measure_issue(device: Device) -> float | None:
    """Return the seconds in which a session launches a task behind another of the device.

    None for a device that does not start one after another by itself. The tasks are so short that
    the host limits their rate.
    """
    name, took = device.spec.name, []
    if device.driver_queue is None:
        return None
    for count in (1, 1 + _BEHIND):
        graph = chain(_ELEMENTS[0], [name] * count)
        if device.unsupported_reason(graph, graph.nodes[0]):
            return None
        feeds = {"x": np.zeros(_ELEMENTS[0], np.float32)}
        with Session(
            graph,
            devices=[device],
            execution_options=ExecutionOptions(passes=(), execution="interactive"),
            calibration=Calibration(),
        ) as session:
            took.append(warm_median(partial(session.run, feeds), _ROUNDS))
    return max(took[1] - took[0], 0.0) / _BEHIND


def chain(elements: int, devices: Sequence[str]) -> Graph:
    """Return a chain of maps, one pinned to each of the devices."""
    b = GraphBuilder("transfers")
    value = b.input("x", TensorType((elements,), "float32"))
    for name in devices:
        value = b.add("relu", value, pin=name)
    return b.finish(value)


def measure_overlap(first: BoundCall, second: BoundCall) -> float:
    """Return the seconds of two networks at once, relative to one after the other."""
    alone = sum(warm_median(runner_of(call), _ROUNDS) for call in (first, second))
    return warm_median(partial(_together, first, second), _ROUNDS) / alone


def _together(first: BoundCall, second: BoundCall) -> None:
    """Launch the second, which returns before its end, then the first; wait for both."""
    for event in (second.launch(), first.launch()):
        event.wait()
