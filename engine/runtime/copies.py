"""Copy tasks: bound calls that move one value between two memory spaces, without waiting
where the device can."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

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
    if source.memory == HOST:
        return _HostToDevice(owner[target.memory], host_view(source, type), target, node)
    if target.memory == HOST:
        return _DeviceToHost(owner[source.memory], source, host_view(target, type), node)
    staging = host_view(host_alloc(max(type.nbytes, 1)), type)
    return _DeviceToDevice(
        _DeviceToHost(owner[source.memory], source, staging, node),
        _HostToDevice(owner[target.memory], staging, target, node),
    )


class _HostToDevice:
    """A copy from host memory, in which the array already lies."""

    def __init__(self, device: Device, source: Array, target: Buffer, node: int) -> None:
        self.device, self.source, self.target, self.node = device, source, target, node
        self.driver_queue = device.driver_queue

    def launch(self, profile: bool = False, after: Sequence[Event] = ()) -> Event:
        start = time.perf_counter()
        event = self.device.start_write(self.target, self.source, profile, after)
        return _timed(event, self.node, start) if profile else event


class _DeviceToHost:
    """A copy into host memory, where the array will lie."""

    def __init__(self, device: Device, source: Buffer, target: Array, node: int) -> None:
        self.device, self.source, self.target, self.node = device, source, target, node
        self.driver_queue = device.driver_queue

    def launch(self, profile: bool = False, after: Sequence[Event] = ()) -> Event:
        start = time.perf_counter()
        event = self.device.start_read(self.source, self.target, profile, after)
        return _timed(event, self.node, start) if profile else event


class _DeviceToDevice:
    """A copy between two devices' memories by way of a host array of its own."""

    def __init__(self, first: _DeviceToHost, second: _HostToDevice) -> None:
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
