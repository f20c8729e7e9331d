"""The part `faults`: a fault at every point and call ends in a typed error or the right result.

Each subject is a set of devices. The faults that a model reaches are counted in a run without any.
Then each case injects one fault, or a storm of two, into a session: it opens and runs twice. Each
run gives the right bits or a typed error, and after the faults a new session gives the right bits
again.

The subjects of hangs have a launch, a wait or a read of a device beside the host never return. Such
a run goes to other devices; each case takes the watchdog's second.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from faults import Fault, Point, inject
from random_graphs import random_graph

from lab.stress.children import Attempt, run_cases
from lab.stress.part import StressPart, StressRun
from lab.stress.rows import StressRow
from trireme.backend.registry import open_device
from trireme.ir.graph import node_names
from trireme.model_file.convert import convert
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.feeds import random_array
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import DeviceError, FaultKind, PlacementError, TriremeError

DEVICES = {
    "cpu": ("cpu",),
    "npu+cpu": ("npu", "cpu"),
    "opencl+cpu": ("opencl", "cpu"),
    "npu+opencl+cpu": ("npu", "opencl", "cpu"),
}
HANGS = {f"hangs-{name}": devices for name, devices in DEVICES.items() if name != "cpu"}
"""Subjects whose devices hang. The cpu is not watched: it works on the caller's own thread."""
GRAPHS = 6
"""Random graphs that faults are injected into, beside the caller's models."""
RUNS = 2
_KINDS = {
    "launch": (FaultKind.LOST,),
    "wait": (FaultKind.LOST, FaultKind.CHECKSUM),
}
"""Further kinds of faults of a point, beside its own; that of a read is CHECKSUM."""
_WITHIN_S = 60.0
"""The deadline of a run that may hang: it has a thread of its own, which is left behind."""
GOOD = ("right", "error", "moved", "unreached")
Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class Target:
    """A model on some devices: its feeds, and what runs without a fault give.

    pins: the device of each node that several can run, so that all have tasks
    calls: how often each device reached each point
    """

    model: Any
    devices: tuple[str, ...]
    pins: Mapping[str, str]
    feeds: Outputs
    calls: Mapping[tuple[str, str], int]

    def session(self, devices: Sequence[str], fallback: bool) -> Session:
        """Return a session that stores nothing and is not measured; pins to others are gone."""
        pins = {node: device for node, device in self.pins.items() if device in devices}
        return Session(
            self.model,
            devices=list(devices),
            threads=1,
            fallback=fallback,
            placement_options=PlacementOptions(objective="serial", multi_device="any", pins=pins),
            execution_options=ExecutionOptions(model_cache=None),
        )


def target(model: Any, devices: tuple[str, ...], number: int) -> Target:
    """Return a model on devices, with the calls that opening and running it takes."""
    rng = np.random.default_rng(number)
    never = [Fault(name, "open", nth=1 << 40) for name in devices]
    made = Target(model, devices, _spread(Target(model, devices, {}, {}, {}), number), {}, {})
    with inject(*never) as points, made.session(devices, False) as session:
        feeds = {value.name: random_array(value, rng) for value in session.inputs}
        for _ in range(RUNS):
            session.run(feeds)
        return Target(model, devices, made.pins, feeds, Counter(points.calls))


def _spread(found: Target, number: int) -> dict[str, str]:
    """Return a device for each node that several devices can run: each in turn.

    Small models would all run on the cpu, and no fault of another device would ever happen.
    """
    with found.session(found.devices, False) as session:
        placement = session.placement
        names, turn = node_names(placement.source), itertools.count(number)
        able = {
            names[node]: [name for name in found.devices if name in choice.estimates]
            for node, choice in placement.choices.items()
        }
    several = {name: devices for name, devices in able.items() if len(devices) > 1}
    return {name: devices[next(turn) % len(devices)] for name, devices in several.items()}


def sweep(found: Target) -> list[Fault]:
    """Return a fault for every point and call of every device, and one lost for each."""
    faults = []
    for (device, point), count in sorted(found.calls.items()):
        for nth in range(1, count + 1):
            kinds = (None, *_KINDS.get(point, ()))
            faults += [Fault(device, cast(Point, point), nth, kind) for kind in kinds]
    return faults


def hang_sweep(found: Target) -> list[Fault]:
    """Return a hang for every call of a run of every device beside the host.

    Those of the second run: a simulated device is watched from then on, by what the first took.
    """
    return [
        Fault(device, cast(Point, point), nth, FaultKind.HANG)
        for (device, point), count in sorted(found.calls.items())
        if device != "cpu" and point in ("launch", "wait", "read")
        for nth in range(count // RUNS + 1, count + 1)
    ]


class FaultCases:
    """Runs case n of a set of devices: every fault of every model in turn, then storms of two."""

    def __init__(
        self, devices: tuple[str, ...], seed: int, models: Sequence[Path], hangs: bool = False
    ) -> None:
        made = [random_graph(seed * 100 + n, 8, quantised=bool(n % 2)) for n in range(GRAPHS)]
        graphs = [*made, *(convert(str(path)) for path in models)]
        self._seed = seed
        self._targets = [target(graph, devices, n) for n, graph in enumerate(graphs)]
        self._within_s = _WITHIN_S if hangs else None
        swept = hang_sweep if hangs else sweep
        self._sweep = [(one, fault) for one in self._targets for fault in swept(one)]
        self._right: dict[tuple[int, tuple[str, ...]], Outputs] = {}

    def faults(self, number: int) -> tuple[Target, list[Fault], bool]:
        """Return the model, the faults and `fallback` of a case."""
        if self._within_s is not None:
            one, fault = self._sweep[number % len(self._sweep)]
            return one, [fault], True
        at, fallback = divmod(number, 2)
        if at < len(self._sweep):
            one, fault = self._sweep[at]
            return one, [fault], bool(fallback)
        rng = random.Random(f"storm {self._seed} {number}")
        one = rng.choice(self._targets)
        return one, rng.sample(sweep(one), 2), bool(fallback)

    def attempt(self, number: int) -> str:
        """Return how a case ends."""
        one, faults, fallback = self.faults(number)
        told = f"{faults}, fallback={fallback}"
        for devices in _subsets(one.devices):  # outside of the block, whose faults they would meet
            self._run(one, devices)
        with inject(*faults) as points:
            try:
                ended = self._runs(one, fallback)
            except DeviceError as error:
                ended = _typed(error)
            except PlacementError:
                ended = "error"  # what is left cannot run the model
            except TriremeError as error:
                ended = f"wrong {type(error).__name__}: {error}"
            raised = list(points.raised)
        if ended.startswith("wrong"):
            return f"{ended} after {told}"
        with one.session(one.devices, False) as session:
            if not self._is_right(one, session.run(one.feeds)):
                return f"wrong the next session is wrong after {told}"
        return ended if raised else "unreached"

    def _runs(self, one: Target, fallback: bool) -> str:
        ended = "right"
        with one.session(one.devices, fallback) as session:
            for _ in range(RUNS + 2):
                out = {
                    v.name: np.full(v.type.dims, 85, numpy_dtype(v.dtype)) for v in session.outputs
                }
                try:
                    session.run(one.feeds, out=out, timeout_s=self._within_s)
                except DeviceError as error:
                    if (ended := _typed(error)) != "error":
                        return ended
                    continue
                if not self._is_right(one, out):
                    return "wrong a run gave other bits"
                ended = "moved" if session.events and ended == "right" else ended
        return ended

    def _is_right(self, one: Target, found: Outputs) -> bool:
        """Return whether outputs have the bits of a session on some of the devices."""
        return any(
            left and all(_same(found[name], array) for name, array in left.items())
            for left in (self._run(one, devices) for devices in _subsets(one.devices))
        )

    def _run(self, one: Target, devices: tuple[str, ...]) -> Outputs:
        """Return the outputs of a session on devices without a fault; or none."""
        key = self._targets.index(one), devices
        if key not in self._right:
            self._right[key] = {}
            with suppress(PlacementError), one.session(devices, False) as session:
                found = session.run(one.feeds)
                self._right[key] = {name: array.copy() for name, array in found.items()}
        return self._right[key]


def _typed(error: DeviceError) -> str:
    return f"wrong no kind: {error}" if error.kind is FaultKind.UNKNOWN else "error"


def _subsets(devices: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return every choice of the devices, all of them first."""
    counts = range(len(devices), 0, -1)
    return [one for count in counts for one in itertools.combinations(devices, count)]


def _same(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def cases(seed: int, models: Sequence[Path], subject: str) -> Attempt:
    """Return what runs the cases of a set of devices."""
    return FaultCases(_devices_of(subject), seed, models, subject in HANGS).attempt


def _devices_of(subject: str) -> tuple[str, ...]:
    return {**DEVICES, **HANGS}[subject]


def run(asked: StressRun) -> StressRow:
    """Inject faults into the devices that are the subject."""
    for name in _devices_of(asked.subject):
        try:
            open_device(name).close()
        except DeviceError as error:
            return asked.skipped(f"{name} cannot be opened: {error}")
    return run_cases(asked, __name__, "cases", GOOD)


PART = StressPart(
    "a fault at every point and call of devices, and storms of two",
    (*DEVICES, *HANGS),
    "cases",
    {
        "": {"change": 60, "night": 2_000, "release": 20_000},
        **dict.fromkeys(HANGS, {"change": 4, "night": 100, "release": 400}),
    },
    run,
)
