"""Inject faults into devices: a device, a point, the number of the call.

    with inject(Fault("npu", "launch", nth=2)):
        session = Session(model, devices=["npu", "cpu"])

`inject` replaces the declaration of a kind in the registry, so only devices that are opened inside
the block are watched. A device that is opened elsewhere has no hook and pays nothing. Injected
devices store no program and share none.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from trireme.backend.capabilities import StatefulExecutable, TimedEvent, on_states
from trireme.backend.device import BoundCall, Buffer, Device, Event, Executable, NodeSpan, kind_of
from trireme.backend.device_kind import DeviceInstance
from trireme.backend.registry import kind_named, register_device
from trireme.ir.effects import States
from trireme.support.errors import DeviceError, FaultKind

Point = Literal["open", "compile", "alloc", "launch", "wait", "read"]
_KIND_OF: dict[Point, FaultKind] = {
    "open": FaultKind.UNAVAILABLE,
    "compile": FaultKind.COMPILE_FAILED,
    "alloc": FaultKind.OUT_OF_MEMORY,
    "launch": FaultKind.LAUNCH_FAILED,
    "wait": FaultKind.WAIT_FAILED,
    "read": FaultKind.CHECKSUM,
}


@dataclass(frozen=True)
class Fault:
    """One fault of a device.

    nth: the first call of the point that fails, from 1; calls of all devices of the name count
    kind: of the error; the point's own when None. After LOST every later call of the device fails.
        A HANG lasts until the block of `inject` ends
    delay_s: seconds that the call takes longer; such a call does not fail
    """

    device: str
    point: Point
    nth: int = 1
    kind: FaultKind | None = None
    delay_s: float = 0.0


class FaultPoints:
    """The calls of each point so far, and the faults to come. Any thread may call any method.

    calls: by device and point; raised: the faults that happened
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults, self._lock = faults, threading.Lock()
        self._lost: set[str] = set()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.raised: list[Fault] = []
        self.over = threading.Event()

    def reach(self, device: str, point: Point, most_s: float | None = None) -> bool:
        """Count a call; return False where it hangs longer than `most_s`.

        Errors: DeviceError, where a fault is due or the device is lost
        """
        with self._lock:
            self.calls[device, point] += 1
            number = self.calls[device, point]
            due = [f for f in self._faults if (f.device, f.point, f.nth) == (device, point, number)]
            self.raised += due
            lost = device in self._lost
            self._lost |= {one.device for one in due if one.kind is FaultKind.LOST}
        for one in due:
            time.sleep(one.delay_s)
            if one.kind is FaultKind.HANG and not self.over.wait(most_s):
                return False
        failing = [one for one in due if not one.delay_s]
        if failing or lost:
            kind = FaultKind.LOST if lost else failing[0].kind or _KIND_OF[point]
            error = DeviceError(f"{device}: {kind} at {point} {number} (injected)")
            raise error.of_device(device).of_kind(kind)
        return True


@contextmanager
def inject(*faults: Fault) -> Iterator[FaultPoints]:
    """Inject the faults into devices that are opened in the block.

    Errors: DeviceError, if a device's kind is unknown
    """
    points = FaultPoints(faults)
    kinds = [kind_named(name) for name in dict.fromkeys(kind_of(one.device) for one in faults)]
    try:
        for kind in kinds:

            def opened(options: Any, instance: DeviceInstance, open: Any = kind.open) -> Device:
                points.reach(instance.name, "open")
                device: Device = open(options, instance)
                _watch(device, points)
                return device

            register_device(replace(kind, open=opened, open_image=None))
        yield points
    finally:
        points.over.set()
        for kind in kinds:
            register_device(kind)


def _watch(device: Device, points: FaultPoints) -> None:
    """Replace the methods of one open device by ones that reach the points first."""
    name, own, watched = device.spec.name, device.compile_with_progress, vars(device)
    compile, alloc, start_read = device.compile, device.alloc, device.start_read

    def compiled(graphs: Any) -> list[Executable]:
        points.reach(name, "compile")
        return [_watched(one, name, points) for one in compile(graphs)]

    def compiled_with_progress(graphs: Any, progress: Any) -> list[Executable]:
        made = own(graphs, progress)
        if all(isinstance(one, _WatchedExecutable) for one in made):
            return made  # it asked `compile`
        points.reach(name, "compile")
        return [_watched(one, name, points) for one in made]

    def allocated(nbytes: int) -> Buffer:
        points.reach(name, "alloc")
        return alloc(nbytes)

    def read_started(*args: Any, **kwargs: Any) -> Event:
        points.reach(name, "read")
        return start_read(*args, **kwargs)

    watched["start_read"] = read_started
    watched["compile"] = compiled
    watched["compile_with_progress"] = compiled_with_progress
    watched["alloc"] = allocated


class _WatchedExecutable(Executable):
    """An executable whose calls reach the points; it has no capability but that of states."""

    def __init__(self, inner: Executable, device: str, points: FaultPoints) -> None:
        self._inner, self._device, self._points = inner, device, points
        self.kernels, self.scratch_bytes = inner.kernels, inner.scratch_bytes
        self.constant_bytes, self.code_bytes = inner.constant_bytes, inner.code_bytes

    def bind(self, args: Sequence[Buffer], scratch: Buffer | None) -> BoundCall:
        return _WatchedCall(self._inner.bind(args, scratch), self._device, self._points)


class _WatchedStateful(_WatchedExecutable):
    """A watched executable that reads and writes states."""

    def with_states(self, states: States) -> Executable:
        """See StatefulExecutable."""
        return _WatchedExecutable(on_states(self._inner, states), self._device, self._points)


def _watched(inner: Executable, device: str, points: FaultPoints) -> Executable:
    is_stateful = isinstance(inner, StatefulExecutable)
    return (_WatchedStateful if is_stateful else _WatchedExecutable)(inner, device, points)


class _WatchedCall:
    def __init__(self, inner: BoundCall, device: str, points: FaultPoints) -> None:
        self._inner, self._device, self._points = inner, device, points

    def launch(self, profile: bool = False) -> Event:
        """Reach "launch" before the launch."""
        self._points.reach(self._device, "launch")
        event = self._inner.launch(profile)
        kind = _WatchedTimedEvent if isinstance(event, TimedEvent) else _WatchedEvent
        return kind(event, self._device, self._points)


class _WatchedEvent:
    def __init__(self, inner: Event, device: str, points: FaultPoints) -> None:
        self._inner, self._device, self._points = inner, device, points

    def wait(self) -> None:
        """Reach "wait" once the launch is over, so that a fault leaves nothing under way."""
        self._inner.wait()
        self._points.reach(self._device, "wait")

    def spans(self) -> Sequence[NodeSpan]:
        """See Event."""
        return self._inner.spans()


class _WatchedTimedEvent(_WatchedEvent):
    """A watched event whose wait can be given up."""

    def wait_for(self, most_s: float) -> bool:
        """See TimedEvent and `wait`."""
        if not self._inner.wait_for(most_s):  # type: ignore[attr-defined]
            return False
        return self._points.reach(self._device, "wait", most_s)
