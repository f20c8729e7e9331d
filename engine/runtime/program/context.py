"""A context: arenas of a program, with every executable and copy task bound to its places."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trireme.backend.capabilities import IdlingCall, QueuedEvent, on_states
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
from trireme.ir.effects import States
from trireme.ir.graph import TensorType
from trireme.plan.plan import Task
from trireme.runtime.program.io_binding import IOBinding, bind_io
from trireme.runtime.program.program import Program
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import from_device


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


Scratch = Mapping[str, Buffer | None]


class ExecutionContext:
    """Memory for one run of a program.

    scratch: the memory that each device needs inside its tasks, by device; new when None
    places: the places of values in host memory outside the arena, by value
    states: those of the session, for tasks that read or write some
    beside: another context of the program, whose arenas this one shares: they take turns
    calls: the bound calls of the plan's tasks, in order
    """

    def __init__(
        self,
        program: Program,
        scratch: Scratch | None = None,
        places: Mapping[int, Buffer] | None = None,
        states: States | None = None,
        beside: ExecutionContext | None = None,
    ) -> None:
        plan, devices = program.plan, program.devices
        self.program, self._places, self.states = program, places or {}, states
        self._arenas: dict[str, Buffer] = (
            beside._arenas
            if beside
            else {m: _alloc(m, packing.nbytes, devices) for m, packing in plan.arenas.items()}
        )
        self.scratch = _scratch(program) if scratch is None else scratch
        self.calls: list[BoundCall] = []
        for task, executable in zip(plan.tasks, program.executables, strict=True):
            args = [self._buffer(value) for value in (*task.inputs, *task.outputs)]
            if executable is None:
                type = plan.graph.type(task.outputs[0])
                self.calls.append(copy_call(task, args[0], args[1], type, devices))
            else:
                with from_device(task.device, f"bind task {task.index}"):
                    bound = on_states(executable, states)
                    self.calls.append(bound.bind(args, self.scratch[task.device]))
        self.set_idle(True)

    @cached_property
    def ports(self) -> IOBinding:
        """The binding that puts inputs in and takes outputs out."""
        plan = self.program.plan
        ends = (*plan.graph.inputs, *plan.graph.outputs)
        return bind_io(plan, self.calls, {value: self.view(value) for value in ends})

    def set_idle(self, sleeps: bool) -> None:
        """Let idle threads of a device sleep at once where another works on its silicon; or not.

        Threads that go on looking for work take the core from it, for as long as they look.
        """
        plan = self.program.plan
        specs = {task.device: plan.placement.specs.get(task.device) for task in plan.tasks}
        groups = [spec.resource_group for spec in specs.values() if spec]
        for task, call in zip(plan.tasks, self.calls, strict=True):
            spec = specs[task.device]
            shared = spec and spec.resource_group and groups.count(spec.resource_group) > 1
            if shared and isinstance(call, IdlingCall):
                call.set_idle(sleeps)

    def read(self, value: int) -> Array:
        """Return a value as an array of its own, from whatever memory it lives in."""
        buffer, type = self._buffer(value), self.program.plan.graph.type(value)
        if buffer.memory == HOST:
            return host_view(buffer, type).copy()
        array = np.empty(type.dims, numpy_dtype(type.dtype))
        devices = self.program.devices.values()
        owner = next(d for d in devices if d.spec.memory == buffer.memory)
        owner.read(buffer, array)
        return array

    def _buffer(self, value: int) -> Buffer:
        if value in self._places:
            return self._places[value]
        slot = self.program.plan.slots[value]
        return self._arenas[slot.memory].at(slot.offset, slot.nbytes)

    def view(self, value: int) -> Array:
        """Return the place of a value in host memory as an array, without a copy."""
        graph = self.program.plan.graph
        data = graph.values[value].data
        return data if data is not None else host_view(self._buffer(value), graph.type(value))


def _scratch(program: Program) -> Scratch:
    needs, found = program.scratch_bytes(), dict[str, Buffer | None]()
    for name, nbytes in needs.items():
        with from_device(name, f"give {nbytes} bytes of scratch"):
            found[name] = program.devices[name].alloc(nbytes) if nbytes else None
    return found


def _alloc(memory: str, nbytes: int, devices: Mapping[str, Device]) -> Buffer:
    owners = [(n, d) for n, d in devices.items() if d.spec.memory == memory]
    if not owners:
        return host_alloc(max(nbytes, 1))
    name, owner = max(owners, key=lambda one: one[1].spec.alignment)
    with from_device(name, f"give {nbytes} bytes for the arena"):
        return owner.alloc(max(nbytes, 1))
