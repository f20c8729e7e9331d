"""Count what sessions did for the models of a server: device seconds, copies, faults, caches.

A session whose program has one device keeps that device busy for as long as a run takes. Of a
session with several devices one run in SAMPLE_EVERY is watched, and the runs between are taken to
spend the same share of their time on each device. Bytes of copies are those of the plan.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trireme.backend.links import link_ends
from trireme.plan.plan import Plan
from trireme.profiling.rows import clock_of
from trireme.profiling.spans import TaskSpan
from trireme.runtime.session.session import Session
from trireme.support.cache_events import cache_events
from trireme.support.errors import DeviceError
from trireme.support.fault_events import FaultEvent

SAMPLE_EVERY = 64
"""Runs of a session with several devices for each run that is watched."""
_WEIGHT = 0.05
"""The share that one run adds to the mean of the prediction ratio."""


@dataclass(frozen=True)
class RunFacts:
    """The facts of each run of a session that need no measurement.

    copied: bytes of a run by link, where the shapes are fixed
    arena_bytes: by memory space; none for a program of an earlier process
    predicted_s: seconds of a run; None where a device is simulated, or shapes are open
    """

    devices: tuple[str, ...]
    copied: Mapping[tuple[str, str], int] = field(default_factory=dict)
    arena_bytes: Mapping[str, int] = field(default_factory=dict)
    predicted_s: float | None = None


def facts_of(session: Session, devices: Sequence[str]) -> RunFacts:
    """Return the facts of a session.

    devices: those that it was asked for: a stored program does not tell without being prepared
    """
    if session.is_stored:
        return RunFacts(tuple(devices))
    if session.has_open_shapes:
        return RunFacts(tuple(session.devices))
    plan = session.plan
    used = tuple(dict.fromkeys(task.device for task in plan.tasks if not task.is_copy))
    copied: dict[tuple[str, str], int] = defaultdict(int)
    for task in plan.tasks:
        if task.is_copy:
            source, target = link_ends(task.device)
            copied[source, target] += plan.slots[task.outputs[0]].nbytes
    is_wall = all(clock_of(plan, task) == "wall" for task in plan.tasks)
    arenas = {memory: packing.nbytes for memory, packing in plan.arenas.items()}
    predicted_s = plan.placement.makespan_s if is_wall else None
    return RunFacts(used, dict(copied), arenas, predicted_s)


def busy_of(plan: Plan, spans: Sequence[TaskSpan]) -> dict[str, float]:
    """Return the seconds that each device of a watched run was busy, on the device's own clock."""
    busy: dict[str, float] = defaultdict(float)
    for span in spans:
        task = plan.tasks[span.task]
        if not task.is_copy:
            is_wall = clock_of(plan, task) == "wall"
            virtual_s = max((node.end_s for node in span.nodes), default=0.0)
            busy[task.device] += span.end_s - span.start_s if is_wall else virtual_s
    return dict(busy)


class FinishedRun(NamedTuple):
    """A run that succeeded: what it was of, what it took, and how long devices were busy.

    rows: of a batch; 1 for a request that ran alone
    """

    model: str
    version: str
    facts: RunFacts
    took_s: float
    busy_s: Mapping[str, float]
    rows: int = 1


RunListener = Callable[[FinishedRun], None]


class Usage:
    """Sums over every session since the server began. Any thread may call any method.

    busy_s: by device; copied: bytes by link; faults: by device and kind; fallbacks: by the device
    that was left out and the one that serves
    lock: guards all of these
    listeners: told each run
    ratio: measured over predicted seconds of a run, by model: a mean that forgets
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.busy_s: dict[str, float] = defaultdict(float)
        self.copied: dict[tuple[str, ...], int] = defaultdict(int)
        self.faults: dict[tuple[str, ...], int] = defaultdict(int)
        self.fallbacks: dict[tuple[str, ...], int] = defaultdict(int)
        self._caches = cache_events()
        self.ratio: dict[str, float] = {}
        self.listeners: list[RunListener] = []

    @property
    def caches(self) -> Mapping[tuple[str, ...], int]:
        """Looks into caches on disk, by cache and result, since the sums began."""
        before = self._caches
        return {key: count - before.get(key, 0) for key, count in cache_events().items()}

    def add_load(self, session: Session, facts: RunFacts) -> None:
        """Count a session that was opened, and from now on the faults of its devices."""
        for event in session.events:
            self.add_event(replace(event, to=facts.devices))
        session.on_event(self.add_event)

    def add_event(self, event: FaultEvent) -> None:
        """Count a fault that a session met, and the devices that ran or serve instead."""
        with self.lock:
            self.faults[event.device, event.kind.value] += 1
            for other in event.to:
                self.fallbacks[event.device, other] += 1

    def add_run(self, run: FinishedRun) -> None:
        """Count a run."""
        facts = run.facts
        for listen in self.listeners:
            listen(run)
        with self.lock:
            for device, seconds in run.busy_s.items():
                self.busy_s[device] += seconds
            for link, nbytes in facts.copied.items():
                self.copied[link] += nbytes
            if facts.predicted_s:
                ratio = run.took_s / facts.predicted_s
                old = self.ratio.get(run.model, ratio)
                self.ratio[run.model] = old + _WEIGHT * (ratio - old)

    def add_fault(self, error: DeviceError) -> None:
        """Count an error of a device that comes out of a run, unless an event told of it."""
        if not error.causes:
            with self.lock:
                self.faults[error.device, error.kind.value] += 1
