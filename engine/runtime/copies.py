"""Copy tasks: bound calls that move one value between two memory spaces, without waiting
where the device can."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from trireme.backend.capabilities import QueuedEvent
from trireme.backend.device import (
    HOST,
    BoundCall,
    Buffer,
    Device,
    Done,
    Event,
    NodeSpan,
    host_alloc,
    host_view,
)
from trireme.ir.graph import TensorType
from trireme.plan.plan import Task
from trireme.support.dtypes import Array


def copy_call(
    task: Task, source: Buffer, target: Buffer, type: TensorType, devices: Mapping[str, Device]
) -> BoundCall:
    """Return the bound call of a copy task between two places of the arenas."""
    owner = {device.spec.memory: device for device in devices.values()}
    node = task.nodes[0].id

    def write(array: Array) -> _StartedCopy:
        device = owner[target.memory]
        return _StartedCopy(device, device.start_write, target, array, node)

    def read(array: Array) -> _StartedCopy:
        device = owner[source.memory]
        return _StartedCopy(device, device.start_read, source, array, node)

    if source.memory == HOST:
        return write(host_view(source, type))
    if target.memory == HOST:
        return read(host_view(target, type))
    staging = host_view(host_alloc(max(type.nbytes, 1)), type)
    return _DeviceToDevice(read(staging), write(staging))


class _StartedCopy:
    """A copy between host memory, where the array lies, and a device's: begun by `start`."""

    def __init__(
        self, device: Device, start: Callable[..., Event], place: Buffer, array: Array, node: int
    ) -> None:
        self.start, self.place, self.array, self.node = start, place, array, node
        self.driver_queue = device.driver_queue

    def launch(self, profile: bool = False, after: Sequence[Event] = ()) -> Event:
        begin = time.perf_counter()
        event = self.start(self.place, self.array, profile, after)
        return _timed(event, self.node, begin) if profile else event


class _DeviceToDevice:
    """A copy between two devices' memories by way of a host array of its own."""

    def __init__(self, first: _StartedCopy, second: _StartedCopy) -> None:
        self.first, self.second = first, second

    def launch(self, profile: bool = False) -> Event:
        start = time.perf_counter()
        self.first.launch().wait()
        event = self.second.launch()
        return _timed(event, self.second.node, start) if profile else event


def _timed(event: Event, node: int, start: float) -> Event:
    if isinstance(event, Done):
        return Done([NodeSpan((node,), "copy", start, time.perf_counter())])
    return _Copying(event, node, start)


class _Copying:
    """A copy under way that tells when it ran: by the device's clock, if it keeps the time."""

    def __init__(self, event: Event, node: int, start: float) -> None:
        self.event, self.node, self.start, self.end = event, node, start, start
        self.driver_event = event.driver_event if isinstance(event, QueuedEvent) else None

    def wait(self) -> None:
        self.event.wait()
        self.end = time.perf_counter()

    def spans(self) -> Sequence[NodeSpan]:
        for span in self.event.spans():
            return [NodeSpan((self.node,), "copy", span.start_s, span.end_s)]
        return [NodeSpan((self.node,), "copy", self.start, self.end)]
