"""A context: one set of arenas of a program, with every executable and copy bound to its places.

A session has one. A pipeline has several, so that a run can begin before the last one is over. They
share the scratch of each device, which runs one task at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trireme.backend.capabilities import IdlingCall, on_states
from trireme.backend.device import HOST, BoundCall, Buffer, Device, host_alloc, host_view
from trireme.ir.effects import States
from trireme.runtime.copies import copy_call
from trireme.runtime.io_binding import IOBinding, bind_io
from trireme.runtime.program import Program
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import from_device

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
