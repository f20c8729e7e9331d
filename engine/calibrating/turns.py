"""What it takes to pass from one device to another: copies, and turns on silicon that both share.

`calibrate` measures runs of a session over small chains that cross again and again, so that what a
session overlaps or launches ahead is in the figures, and takes off what the tasks take alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from trireme.builder import GraphBuilder
from trireme.calibrating.calibration import Calibration
from trireme.calibrating.fit import least_squares
from trireme.calibrating.nets import NETS, build
from trireme.cost import supported_part
from trireme.device import WAKES, BoundCall, Device, held_s
from trireme.dtypes import numpy_dtype
from trireme.graph import Graph, TensorType
from trireme.optimise import optimise
from trireme.running.lane import Lane
from trireme.session import Session

Bind = Callable[[Device, Graph], BoundCall]
"""What compiles a graph for a device and puts it on memory."""
Crossing = tuple[float, float, float]
"""Of a copy the latency in seconds, and bytes a second; seconds that a kernel which wakes a core
takes less in turns (`calibration.Sharing`)."""
_ROUNDS, _PAIRS = 25, 3
_BEHIND = 16
_ELEMENTS = (256, 8 << 10, 64 << 10, 512 << 10, 2 << 20)
_CUTS: Mapping[str, tuple[int, ...]] = {
    "layers": (4,), "tiny": (2, 4, 6), "tiny int8": (2, 4), "small": (2, 4), "separable": (4,),
    "inverted": (4,),
}  # fmt: skip
"""The networks whose crossings are measured, and in how many stretches."""
_WHOLE: Mapping[str, tuple[int, ...]] = {
    name: (1,) for name in ("layers", "tiny", "tiny int8", "small maps", "separable", "inverted")
}
"""Those that run on one device, their inputs and outputs on the host."""
_VISIT_S, _LEAST_RUNS = 0.004, 3
"""Of a visit, the seconds and the least runs of each thing."""
_LEAST_S_PER_BYTE, _MOST_AWAKE_S = 1e-12, 1e-5
_OFTEN, _WITHIN = 0.25, 0.10
"""Of measurements, the share that makes a state, and how far apart those of one state are."""


class Crossings:
    """Runs that cross between devices, measured in turns with what else is measured.

    there: a device with memory of its own; here: one on host memory that takes turns with it;
        without it, the whole network runs there
    stack: what the runs' sessions are open until
    """

    def __init__(self, there: Device, here: Device | None, stack: ExitStack) -> None:
        self.runs = [_Crossing.of(graph, there, here, stack) for graph in _cut(there, here)]

    def visit(self) -> None:
        """Measure each run once more."""
        for run in self.runs:
            run.visit()

    @property
    def is_visited(self) -> bool:
        """Whether there is anything to tell."""
        return all(run.visits for run in self.runs)

    @property
    def figures(self) -> Crossing:
        """What a copy to the device with memory of its own, or from it, adds to a run.

        What is added to the tasks' own time: waking and telling of the end, what the host does
        meanwhile, and caches that then hold another core's values.
        """
        return crossing_of([run.row for run in self.runs])


def crossing_of(rows: Sequence[tuple[float, float, float, float, float]]) -> Crossing:
    """Return the figures that fit runs best, none negative.

    rows: of each run the copies, their bytes, the kernels that wake a core, the seconds more than
        the tasks take, and the whole seconds, of which errors are parts
    """
    table = np.array(rows, np.float64)
    terms = table[:, :3] * (1, 1, -1)
    limits = np.array([np.inf, np.inf, _MOST_AWAKE_S])
    found = least_squares(terms, table[:, 3], 1 / table[:, 4], np.zeros(3), limits)
    return float(found[0]), float(1 / max(found[1], _LEAST_S_PER_BYTE)), float(found[2])


@dataclass
class _Crossing:
    """A session on a network over one or two devices, and its tasks to run by themselves.

    lane: the memory of those tasks
    visits: of each, the seconds of a run, and those of its tasks alone
    """

    run: Callable[[], object]
    tasks: Sequence[Callable[[], object]]
    lane: Lane
    copies: int
    nbytes: int
    wakes: float
    visits: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph, there: Device, here: Device | None, stack: ExitStack) -> _Crossing:
        """Return it on memory, until the stack closes."""
        devices = [one for one in (here, there) if one is not None]
        session = stack.enter_context(
            Session(graph, devices=devices, passes=(), calibration=Calibration())
        )
        feeds = {
            value.name: np.zeros(value.type.dims, numpy_dtype(value.type.dtype))
            for value in session.inputs
        }
        lane = Lane(session.program)
        calls = zip(session.plan.tasks, lane.calls, strict=True)
        own = [_runner(call) for task, call in calls if not task.is_copy]
        moved = [task.outputs[0] for task in session.plan.tasks if task.is_copy]
        nbytes = sum(session.plan.graph.type(value).nbytes for value in moved)
        wakes = _wakes(session, there) if here else 0.0
        return cls(partial(session.run, feeds), own, lane, len(moved), nbytes, wakes)

    def visit(self) -> None:
        """Measure once more."""
        whole_s = _seconds(self.run, _VISIT_S)
        self.visits.append((whole_s, sum(_seconds(task, _VISIT_S) for task in self.tasks)))

    @property
    def row(self) -> tuple[float, float, float, float, float]:
        """Copies, bytes, waking kernels, the seconds beside the tasks' own, the seconds of all."""
        whole_s, own_s = (typical(each) for each in zip(*self.visits, strict=True))
        return self.copies, self.nbytes, self.wakes, whole_s - own_s, whole_s


def _wakes(session: Session, device: Device) -> float:
    """Return how many kernels of a device wake a core in a session."""
    placement = session.placement
    mine = {n for n, choice in placement.choices.items() if choice.device == device.spec.name}
    works = device.works(placement.source) or []
    return sum(work.terms.get(WAKES, 0.0) for work in works if mine.issuperset(work.nodes))


def typical(seconds: Sequence[float]) -> float:
    """Return the typical seconds in the faster of the states that were seen often enough.

    A virtual machine's cores may move apart for seconds (data passes between them in 160 ns, or in
    30), so that the median of what two cores do would be of neither state.
    """
    often = sorted(seconds)[int(_OFTEN * (len(seconds) - 1))]
    return statistics.median(each for each in seconds if each <= often * (1 + _WITHIN))


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


def measure_launch(device: Device, bind: Bind) -> float | None:
    """Return the seconds from launch to wait beside the kernel's own, of a task as short as any.

    None for a device that does not start one task after another by itself. In a run the host sleeps
    but briefly while such tasks run, and so is told of their end sooner than of a long one's.
    """
    graph = chain(_ELEMENTS[0], [device.spec.name])
    if device.chain is None or device.unsupported_reason(graph, graph.nodes[0]):
        return None
    call = bind(device, graph)
    own = []
    for _ in range(_ROUNDS):
        event = call.launch(profile=True)
        event.wait()
        own.append(sum(held_s(list(event.spans()))))
    return max(_seconds(_runner(call)) - statistics.median(own), 0.0)


def measure_issue(device: Device) -> float | None:
    """Return the seconds in which a session launches a task behind another of the device.

    None for a device that does not start one after another by itself. The tasks are so short that
    it is the host that limits how many run.
    """
    name, took = device.spec.name, []
    if device.chain is None:
        return None
    for count in (1, 1 + _BEHIND):
        graph = chain(_ELEMENTS[0], [name] * count)
        if device.unsupported_reason(graph, graph.nodes[0]):
            return None
        feeds = {"x": np.zeros(_ELEMENTS[0], np.float32)}
        with Session(
            graph, devices=[device], passes=(), calibration=Calibration(), execution="interactive"
        ) as session:
            took.append(_seconds(partial(session.run, feeds)))
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
    alone = _seconds(_runner(first)) + _seconds(_runner(second))
    return _seconds(partial(_together, first, second)) / alone


def _together(first: BoundCall, second: BoundCall) -> None:
    """Launch the second, which returns before it is over, then the first; wait for both."""
    for event in (second.launch(), first.launch()):
        event.wait()


def _runner(call: BoundCall) -> Callable[[], object]:
    return getattr(call, "run", None) or (lambda: call.launch().wait())


def _seconds(run: Callable[[], object], duration_s: float | None = None) -> float:
    """Return the median seconds of some runs, or of those in about that time."""
    run()
    seconds: list[float] = []
    end = time.perf_counter() + (duration_s or 0.0)
    least = _ROUNDS if duration_s is None else _LEAST_RUNS
    while len(seconds) < least or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
