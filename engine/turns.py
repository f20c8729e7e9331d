"""What it takes to pass from one device to another: copies, and turns on silicon that both share.

`calibrate` measures runs of a session over small chains that cross again and again, so that what a
session overlaps or launches ahead is in the figures, and takes off what the tasks take alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from trireme.builder import GraphBuilder
from trireme.calibration import Calibration, Sharing
from trireme.device import BoundCall, Device, held_s
from trireme.fit import fit
from trireme.graph import Graph, TensorType
from trireme.session import Session

Bind = Callable[[Device, Graph], BoundCall]
"""What compiles a graph for a device and puts it on memory."""
Line = tuple[float, float]
"""Latency in seconds, and bytes a second."""
_ROUNDS, _PAIRS = 25, 3
_BEHIND = 16
_ELEMENTS = (256, 8 << 10, 64 << 10, 512 << 10, 2 << 20)


def measure_crossings(there: Device, here: Device | None, bind: Bind) -> Line | None:
    """Return what a copy takes, to a device with memory of its own or from it, on average.

    here: a device on host memory that takes turns with it; without it, a task reads the inputs and
    makes the outputs of the graph
    """
    rows: list[tuple[int, float]] = []
    for elements in _ELEMENTS:
        names = [here.spec.name, there.spec.name] * _PAIRS if here else [there.spec.name]
        graph = chain(elements, names)
        devices = [one for one in (here, there) if one is not None]
        one = chain(elements, names[:1])
        if any(d.unsupported_reason(one, one.nodes[0]) for d in devices):
            return None
        alone = {d.spec.name: _seconds(_runner(bind(d, one))) for d in devices}
        feeds = {"x": np.zeros(elements, np.float32)}
        with Session(graph, devices=devices, passes=(), calibration=Calibration()) as session:
            whole = _seconds(partial(session.run, feeds))
        crossings = 2 * _PAIRS if here else 2
        own = sum(alone[name] for name in names)
        rows.append((4 * elements, max(whole - own, 0.0) / crossings))
    curve = fit([{"bytes": float(nbytes)} for nbytes, _ in rows], [s for _, s in rows], 1e-5)
    return curve.fixed_s, 1 / max(curve.per.get("bytes", 0.0), 1e-15)


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


def sharing_of(alone: Line | None, beside: Line | None, overlap: float) -> Sharing:
    """Return what turns cost: what crossings between busy devices take longer than others."""
    switch_s = beside[0] - alone[0] if alone and beside else 0.0
    return Sharing(switch_s, overlap)


def _together(first: BoundCall, second: BoundCall) -> None:
    """Launch the second, which returns before it is over, then the first; wait for both."""
    for event in (second.launch(), first.launch()):
        event.wait()


def _runner(call: BoundCall) -> Callable[[], None]:
    return lambda: call.launch().wait()


def _seconds(run: Callable[[], object]) -> float:
    """Return the median seconds of some runs."""
    run()
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
