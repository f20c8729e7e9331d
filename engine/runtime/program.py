"""Turn a plan into a program: each device compiles its tasks, all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trireme.backend.arena import MemoryUse
from trireme.backend.device import Device, Executable, Progress
from trireme.ir.graph import Graph
from trireme.plan.memory import check_fits, compiled_use
from trireme.plan.plan import Plan, Task
from trireme.profiling.rows import MemoryRow
from trireme.support.errors import CompileError, InternalError, TriremeError


@dataclass(frozen=True)
class Program:
    """A plan with code: immutable, shared by sessions and threads. A copy has no executable."""

    plan: Plan
    devices: Mapping[str, Device]
    executables: tuple[Executable | None, ...]

    def scratch_bytes(self) -> dict[str, int]:
        """Return, by device, the bytes that intermediates inside its regions need."""
        needs = dict.fromkeys(self.devices, 0)
        for task, executable in zip(self.plan.tasks, self.executables, strict=True):
            if executable is not None:
                needs[task.device] = max(needs[task.device], executable.scratch_bytes)
        return needs

    def memory_uses(self) -> dict[str, MemoryUse]:
        """Return what is needed of each memory space, as compiled."""
        specs, made = self.plan.placement.specs, dict[str, dict[int, Executable]]()
        for task, executable in zip(self.plan.tasks, self.executables, strict=True):
            if executable is not None:
                made.setdefault(specs[task.device].memory, {})[task.index] = executable
        device_of = {task.index: task.device for task in self.plan.tasks}
        return {
            memory: compiled_use(use, made.get(memory, {}), device_of)
            for memory, use in self.plan.memory.items()
        }

    def constant_bytes(self) -> dict[str, int]:
        """Return, by device, the bytes its packed weights take."""
        total = dict.fromkeys(self.devices, 0)
        for task, executable in zip(self.plan.tasks, self.executables, strict=True):
            if executable is not None:
                total[task.device] += executable.constant_bytes
        return total


def memory_rows(program: Program) -> list[MemoryRow]:
    """Return what a program needs of each memory space."""
    scratch, constants = program.scratch_bytes(), program.constant_bytes()
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
    return rows


def compile_plan(
    plan: Plan, devices: Mapping[str, Device], progress: Progress | None = None
) -> Program:
    """Return the program of a plan: an executable for every task that is not a copy.

    Errors: CompileError, when a device cannot compile what it said it supports; PlanError, if what
    was compiled does not fit its memory
    """
    executables: dict[int, Executable] = {}
    for name, device in devices.items():
        executables.update(_compile_tasks(plan, name, device, progress))
    program = Program(plan, devices, tuple(executables.get(task.index) for task in plan.tasks))
    for use in program.memory_uses().values():
        check_fits(plan.placement, use, plan.arenas[use.memory].lower_bound)
    return program


def _compile_tasks(
    plan: Plan, name: str, device: Device, progress: Progress | None
) -> dict[int, Executable]:
    """Return the executables of one device's tasks, by task index; tell `progress` how far it is.

    Errors: CompileError, naming the device
    """
    mine = [task for task in plan.tasks if task.device == name]
    if not mine:
        return {}
    try:
        graphs = [task_graph(plan, task) for task in mine]
        made = (
            device.compile_with_progress(graphs, progress) if progress else device.compile(graphs)
        )
    except TriremeError as error:
        error.of_device(name)
        raise
    except Exception as error:
        ops = ", ".join(sorted({node.op for task in mine for node in task.nodes}))
        raise CompileError(
            f"{name} failed to compile {len(mine)} tasks: {error}", facts=[f"ops: {ops}"]
        ).of_device(name) from error
    if len(made) != len(mine):
        raise InternalError(f"{name} made {len(made)} executables of {len(mine)} tasks")
    return dict(zip((task.index for task in mine), made, strict=True))


def task_graph(plan: Plan, task: Task) -> Graph:
    """Return the graph a device compiles for a task: its nodes, with constants and their data."""
    used = {value for node in task.nodes for value in (*node.used, *node.outputs)}
    inside = {node.id for node in task.nodes}
    nodes = tuple(
        replace(node, after=tuple(other for other in node.after if other in inside))
        for node in task.nodes
    )
    return Graph(
        f"{plan.graph.name}.task{task.index}",
        task.inputs,
        task.outputs,
        nodes,
        {value: plan.graph.values[value] for value in sorted(used)},
    )
