"""Copy tasks: bound calls that move one value between two memory spaces, by read and write."""

from __future__ import annotations

import time
from collections.abc import Mapping

from trireme.device import (
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
from trireme.dtypes import Array
from trireme.graph import TensorType
from trireme.plan import Task


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

    def launch(self, profile: bool = False) -> Event:
        start = time.perf_counter()
        self.device.write(self.target, self.source)
        return _copied(self.node, start, profile)


class _DeviceToHost:
    """A copy into host memory, where the array will lie."""

    def __init__(self, device: Device, source: Buffer, target: Array, node: int) -> None:
        self.device, self.source, self.target, self.node = device, source, target, node

    def launch(self, profile: bool = False) -> Event:
        start = time.perf_counter()
        self.device.read(self.source, self.target)
        return _copied(self.node, start, profile)


class _DeviceToDevice:
    """A copy between two devices' memories by way of a host array of its own."""

    def __init__(self, first: _DeviceToHost, second: _HostToDevice) -> None:
        self.first, self.second = first, second

    def launch(self, profile: bool = False) -> Event:
        start = time.perf_counter()
        self.first.launch()
        self.second.launch()
        return _copied(self.second.node, start, profile)


def _copied(node: int, start: float, profile: bool) -> Done:
    return Done([NodeSpan((node,), "copy", start, time.perf_counter())] if profile else ())
