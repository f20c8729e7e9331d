"""Turn a plan into a program: each device compiles its tasks, all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trireme.backend.capabilities import states_of
from trireme.backend.device import Device, Executable, Progress
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.plan.memory import check_fits
from trireme.plan.plan import Plan, Task
from trireme.runtime.control.executable import ControlExecutable
from trireme.runtime.program.program import Program
from trireme.support.errors import CompileError, InternalError, TriremeError


def compile_plan(
    plan: Plan,
    devices: Mapping[str, Device],
    progress: Progress | None = None,
    timeout_s: float | None = None,
) -> Program:
    """Return the program of a plan: an executable for every task that is not a copy.

    timeout_s: seconds after which a run of a loop is given up; None for no end
    Errors: CompileError, when a device cannot compile a node that it supports; PlanError, if the
    compiled tasks do not fit its memory
    """
    bodies = {b: compile_plan(one, devices, progress, timeout_s) for b, one in plan.bodies.items()}
    executables: dict[int, Executable] = {}
    for name, device in devices.items():
        mine = [task for task in plan.tasks if task.device == name]
        driven = [task for task in mine if any(map(is_driven, task.nodes))]
        plain = [task for task in mine if task not in driven]
        executables.update(_compile_tasks(plan, name, device, plain, progress))
        for task in driven:
            states = states_of(device)
            kept = None if states is None else states.arrays
            graph = task_graph(plan, task)
            executables[task.index] = ControlExecutable(graph, bodies, kept, timeout_s)
    made = tuple(executables.get(task.index) for task in plan.tasks)
    program = Program(plan, devices, made, bodies)
    for use in program.memory_uses().values():
        check_fits(plan.placement, use, plan.arenas[use.memory].lower_bound)
    return program


def is_driven(node: Node) -> bool:
    """Whether a node is control flow, which the host drives."""
    return get_op(node.op).has_body


def _compile_tasks(
    plan: Plan, name: str, device: Device, mine: Sequence[Task], progress: Progress | None
) -> dict[int, Executable]:
    """Return the executables of tasks of one device, by task index; tell `progress` how far it is.

    Errors: CompileError, naming the device
    """
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
