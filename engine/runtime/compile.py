"""Turn a plan into a program: each device compiles its tasks, all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trireme.backend.device import Device, Executable, Progress
from trireme.ir.graph import Graph
from trireme.plan.memory import check_fits
from trireme.plan.plan import Plan, Task
from trireme.runtime.program import Program
from trireme.support.errors import CompileError, InternalError, TriremeError


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
