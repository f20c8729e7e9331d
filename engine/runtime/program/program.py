"""A program: a plan with code, and its use of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from trireme.backend.arena import MemoryUse
from trireme.backend.device import Device, Executable
from trireme.ir.graph import Graph
from trireme.plan.memory import compiled_use
from trireme.plan.plan import Plan
from trireme.profiling.rows import MemoryRow
from trireme.support.records import dataclass

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Program:
    """A plan with code: immutable, shared by sessions and threads. A copy has no executable.

    bodies: the program of one turn of each body of control flow, by body
    """

    plan: Plan
    devices: Mapping[str, Device]
    executables: tuple[Executable | None, ...]
    bodies: Mapping[Graph, Program] = field(default_factory=dict)

    def devices_used(self) -> list[Device]:
        """Return the devices that tasks are on, those of bodies included."""
        names = {task.device for task in self.plan.tasks if not task.is_copy}
        bodies = [device for body in self.bodies.values() for device in body.devices_used()]
        return [self.devices[name] for name in sorted(names)] + bodies

    def scratch_bytes(self) -> dict[str, int]:
        """Return, by device, the bytes that intermediates inside its regions need."""
        needs = dict.fromkeys(self.devices, 0)
        for task, executable in zip(self.plan.tasks, self.executables, strict=True):
            if executable is not None:
                needs[task.device] = max(needs[task.device], executable.scratch_bytes)
        return needs

    def memory_uses(self) -> dict[str, MemoryUse]:
        """Return the use of each memory space, as compiled, that of bodies included."""
        specs, made = self.plan.placement.specs, dict[str, dict[int, Executable]]()
        for task, executable in zip(self.plan.tasks, self.executables, strict=True):
            if executable is not None:
                made.setdefault(specs[task.device].memory, {})[task.index] = executable
        device_of = {task.index: task.device for task in self.plan.tasks}
        found = {
            memory: compiled_use(use, made.get(memory, {}), device_of)
            for memory, use in self.plan.memory.items()
        }
        for body in self.bodies.values():
            for memory, use in body.memory_uses().items():
                found[memory] = found[memory].with_part(use) if memory in found else use
        return found

    def listings(self, form: str) -> dict[str, str]:
        """Return the generated code as text by file name, bodies included; form: "ir" or "asm"."""
        made = (one for one in self.executables if one is not None)
        return {name: text for one in made for name, text in one.listings(form).items()}

    def constant_bytes(self) -> dict[str, int]:
        """Return, by device, the bytes its packed weights take."""
        total = dict.fromkeys(self.devices, 0)
        for task, executable in zip(self.plan.tasks, self.executables, strict=True):
            if executable is not None:
                total[task.device] += executable.constant_bytes
        return total


def memory_rows(program: Program) -> list[MemoryRow]:
    """Return a program's use of each memory space, that of its bodies included."""
    scratch, constants = program.scratch_bytes(), program.constant_bytes()
    inner = [row for body in program.bodies.values() for row in memory_rows(body)]
    rows = []
    for memory, packing in program.plan.arenas.items():
        mine = [n for n, d in program.devices.items() if d.spec.memory == memory]
        rows.append(
            MemoryRow(
                memory,
                packing.nbytes,
                packing.lower_bound,
                sum(scratch[n] for n in mine),
                sum(constants[n] for n in mine),
            )
        )
    return _added([*rows, *inner])


def _added(rows: Sequence[MemoryRow]) -> list[MemoryRow]:
    """Return one row for each memory space, the sum of its rows."""
    found: dict[str, MemoryRow] = {}
    for row in rows:
        old = found.get(row.memory)
        found[row.memory] = row if old is None else old.with_part(row)
    return list(found.values())
