"""What it takes to pass from one device to another: copies, and turns on silicon that both share.

`calibrate` measures runs of a session over small chains that cross again and again, so that what a
session overlaps or launches ahead is in the figures, and takes off what the tasks take alone.
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
from trireme.cost.model import supported_part
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType
from trireme.passes.pipeline import optimise
from trireme.runtime.context import ExecutionContext
from trireme.runtime.options import AS_GIVEN, ExecutionOptions
from trireme.runtime.session import Session
from trireme.support.dtypes import numpy_dtype
from trireme.support.timing import Repeat, medians, warm_median

Bind = Callable[[Device, Graph], BoundCall]
"""What compiles a graph for a device and puts it on memory."""


@dataclass(frozen=True)
class Crossing:
    """What a copy takes: seconds, and bytes a second, as `calibration.Sharing` has them.

    flags, handed: what the copy takes more, in flags and in bytes that pass between cores
    samples, error: how many runs it was fitted to, and their median error, relative to the run
    """

    latency_s: float
    bandwidth: float
    flags: float
    handed: float
    samples: int
    error: float

    def sharing(self, overlap: float) -> Sharing:
        """Return the figures as a calibration keeps them."""
        return Sharing(self.latency_s, self.bandwidth, self.flags, self.handed, overlap)


_ROUNDS, _PAIRS = Repeat(least=25), 3
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
"""The networks whose crossings are measured, and in how many stretches: the longer a driver's
threads have slept meanwhile, the longer they take to wake (20 us after 10, 150 after 60 and more on
a virtual machine), so stretches are as long as small models' are."""
_WHOLE: Mapping[str, tuple[int, ...]] = {
    name: (1,) for name in ("layers", "tiny", "tiny int8", "small maps", "separable", "inverted")
}
"""Those that run on one device, their inputs and outputs on the host."""
_VISIT = Repeat(duration_s=0.004, least=3)
"""How often each thing is run in a visit."""
_LEAST_S_PER_BYTE = 1e-12
_USUAL = (15e-6, 1e-10, 130.0, 0.2)
"""About what was found with the cores near and far: which part depends on them cannot be told where
one state alone was seen."""
_MOST = (np.inf, np.inf, 300.0, 2.0)
"""A byte of a copy passes between cores once on its way in and once on its way out, at the most."""


class TransferCosts:
    """Runs that cross between devices, measured in turns with what else is measured.

    there: a device with memory of its own; here: one on host memory that takes turns with it;
        without it, the whole network runs there
    stack: what the runs' sessions are open until
    end: when no more runs are prepared (time.perf_counter); compiling them may take long
    """

    def __init__(
        self, there: Device, here: Device | None, stack: ExitStack, end: float = math.inf
    ) -> None:
        self.watch = Watch(there.core_latency if here else lambda: None)
        self.runs: list[_Crossing] = []
        for graph in _cut(there, here):
            if time.perf_counter() > end:
                break
            self.runs.append(_Crossing.of(graph, there, here, stack))

    def visit(self) -> None:
        """Measure each run once more."""
        for run in self.runs:
            run.visit(self.watch)

    @property
    def is_visited(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.runs) and all(run.visits for run in self.runs)

    @property
    def figures(self) -> Crossing:
        """What a copy to the device with memory of its own, or from it, adds to a run.

        What is added to the tasks' own time: waking and telling of the end, what the host does
        meanwhile, and caches that then hold another core's values.
        """
        cores = {apart: one for apart, one in self.watch.known.items() if apart != "shared"}
        rows = [row for run in self.runs for row in run.rows(cores)]
        return crossing_of(rows or [row for run in self.runs for row in run.rows({UNKNOWN: None})])


Row = tuple[float, float, float, float, CoreLatency | None]
"""Of a run the copies, their bytes, the seconds more than the tasks take, the whole seconds, of
which errors are parts; and how far apart the cores were, None where nobody can tell."""


def crossing_of(rows: Sequence[Row]) -> Crossing:
    """Return the figures that fit runs best, none negative."""
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
    return Crossing(latency_s, bandwidth, more[0], more[1], len(rows), error)


@dataclass
class _Crossing:
    """A session on a network over one or two devices, and its tasks to run by themselves.

    context: the memory of those tasks
    visits: of each, the seconds of a run, of its tasks alone, and how far apart the cores were
    """

    run: Callable[[], object]
    tasks: Sequence[Callable[[], object]]
    context: ExecutionContext
    copies: int
    nbytes: int
    visits: list[tuple[float, float, str]] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph, there: Device, here: Device | None, stack: ExitStack) -> _Crossing:
        """Return it on memory, until the stack closes.

        By themselves tasks are not parked: that workers have to be woken is a part of crossing.
        """
        devices = [one for one in (here, there) if one is not None]
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

    def visit(self, watch: Watch) -> None:
        """Measure once more."""
        watch.begin()
        whole_s = warm_median(self.run, _VISIT)
        own_s = sum(warm_median(task, _VISIT) for task in self.tasks)
        self.visits.append((whole_s, own_s, watch.end()))

    def rows(self, cores: Mapping[str, CoreLatency | None]) -> Iterator[Row]:
        """Yield what the visits found, for each of the states of the cores."""
        for apart, core_latency in cores.items():
            mine = [visit[:2] for visit in self.visits if visit[2] == apart or apart == UNKNOWN]
            if mine:
                whole_s, own_s = medians(mine)
                yield self.copies, self.nbytes, whole_s - own_s, whole_s, core_latency


def _cut(there: Device, here: Device | None) -> Iterator[Graph]:
    """Yield networks, in stretches, that the devices run; chains of maps, if there are none."""
    devices = [one for one in (here, there) if one is not None]
    names = [one.spec.name for one in devices]
    graphs = [
        in_stretches(optimise(build(net)), names, parts)
        for net in NETS
        for parts in (_CUTS if here else _WHOLE).get(net.name, ())
    ]
    chains = [chain(elements, names * (_PAIRS if here else 1)) for elements in _ELEMENTS]
    for some in (graphs, chains):
        mine = [g for g in some if all(supported_part(g, d) is g for d in devices)]
        yield from mine
        if mine:
            return


def in_stretches(graph: Graph, devices: Sequence[str], parts: int) -> Graph:
    """Return the graph with its nodes pinned, in so many stretches, to the devices in turn."""
    if len(devices) < 2:
        return graph
    size = -(-len(graph.nodes) // parts)
    pins = (devices[k // size % len(devices)] for k in range(len(graph.nodes)))
    nodes = (replace(node, pin=pin) for node, pin in zip(graph.nodes, pins, strict=False))
    return replace(graph, nodes=tuple(nodes))


def measure_issue(device: Device) -> float | None:
    """Return the seconds in which a session launches a task behind another of the device.

    None for a device that does not start one after another by itself. The tasks are so short that
    it is the host that limits how many run.
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
    b = GraphBuilder("crossings")
    value = b.input("x", TensorType((elements,), "float32"))
    for name in devices:
        value = b.add("relu", value, pin=name)
    return b.finish(value)


def measure_overlap(first: BoundCall, second: BoundCall) -> float:
    """Return what two networks at once take, of one after the other."""
    alone = sum(warm_median(runner_of(call), _ROUNDS) for call in (first, second))
    return warm_median(partial(_together, first, second), _ROUNDS) / alone


def _together(first: BoundCall, second: BoundCall) -> None:
    """Launch the second, which returns before it is over, then the first; wait for both."""
    for event in (second.launch(), first.launch()):
        event.wait()
