"""Rows of a profile and of a prediction: a task, a node, a memory, a value in an arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trireme.backend.device import Clock
from trireme.backend.links import link_ends
from trireme.cost.estimate import SPREAD, Estimate, interval
from trireme.ir.graph import Graph, Node
from trireme.plan.plan import Plan, Task
from trireme.support.records import dataclass


@dataclass(frozen=True)
class NodeRow:
    """One node, or several fused into one kernel: prediction beside measurement, in seconds.

    names: of the nodes, as the model's outputs call them
    ops: of the nodes
    shapes: the output types of the last node, as text
    nbytes: of the values that the nodes read and make together
    """

    nodes: tuple[int, ...]
    task: int
    label: str
    device: str
    kernel: str
    clock: Clock
    estimate_s: float
    seconds: float
    cycles: int
    detail: Mapping[str, float]
    names: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    shapes: str = ""
    nbytes: int = 0


@dataclass(frozen=True)
class TaskRow:
    """One task or copy. `seconds` is on the device's clock; `nbytes` are the bytes of a copy.

    Tasks of one launch batch share the batch's time: see `launch_batches`.

    low_s, high_s: the interval of the estimate
    makers: the tasks that made the values that this task reads
    """

    task: int
    device: str
    label: str
    clock: Clock
    estimate_s: float
    seconds: float
    nbytes: int
    low_s: float = 0.0
    high_s: float = 0.0
    makers: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryRow:
    """Bytes of a memory space: values between tasks, scratch inside tasks, packed constants."""

    memory: str
    arena_bytes: int
    lower_bound_bytes: int
    scratch_bytes: int
    constant_bytes: int

    def with_part(self, other: MemoryRow) -> MemoryRow:
        """Return the bytes of both, as of a graph and of a body in it."""
        return MemoryRow(
            self.memory,
            self.arena_bytes + other.arena_bytes,
            self.lower_bound_bytes + other.lower_bound_bytes,
            self.scratch_bytes + other.scratch_bytes,
            self.constant_bytes + other.constant_bytes,
        )


@dataclass(frozen=True)
class ValueRow:
    """One value between tasks: its place in memory, and the tasks between which it lives.

    maker: the task that makes it; None for an input of the run
    readers: the tasks that read it
    is_output: whether it lives on to the end of the run
    """

    name: str
    memory: str
    nbytes: int
    maker: int | None
    readers: tuple[int, ...]
    is_output: bool


def value_rows(plan: Plan) -> tuple[ValueRow, ...]:
    """Return a row for every value that has a slot in an arena."""
    maker = {value: task.index for task in plan.tasks for value in task.outputs}
    readers: dict[int, list[int]] = {}
    for task in plan.tasks:
        for value in task.inputs:
            readers.setdefault(value, []).append(task.index)
    graph = plan.graph
    return tuple(
        ValueRow(
            graph.values[value].first_name,
            slot.memory,
            slot.nbytes,
            maker.get(value),
            tuple(readers.get(value, ())),
            graph.is_output(value),
        )
        for value, slot in plan.slots.items()
    )


def task_rows(plan: Plan) -> list[TaskRow]:
    """Return a row for every task, with its estimate in place of a measurement."""
    maker = {value: task.index for task in plan.tasks for value in task.outputs}
    rows = []
    for task in plan.tasks:
        made_by = (maker[value] for value in task.inputs if value in maker)
        label, nbytes = f"{len(task.nodes)} nodes, {task.nodes[0].label} ...", 0
        if task.is_copy:
            label = f"copy {plan.graph.values[task.inputs[0]].first_name}"
            nbytes = plan.graph.type(task.outputs[0]).nbytes
        rows.append(
            TaskRow(
                task.index,
                task.device,
                label,
                clock_of(plan, task),
                task.estimate_s,
                task.estimate_s,
                nbytes,
                *task_interval(plan, task),
                tuple(dict.fromkeys(made_by)),
            )
        )
    return rows


def node_row(
    plan: Plan, task: Task, nodes: Sequence[Node], names: Mapping[int, str], kernel: str = ""
) -> NodeRow:
    """Return the row of one kernel's nodes, with their estimate in place of a measurement.

    The row of a kernel without nodes names the kernel's task.
    """
    choices = plan.placement.choices
    known = [choices[node.id] for node in nodes if node.id in choices]
    estimate_s = sum(choice.estimates[task.device].seconds for choice in known)
    first = nodes[0] if nodes else task.nodes[0]
    label = "+".join(node.op for node in nodes) or first.op
    made = [value for node in nodes[-1:] for value in node.outputs]
    return NodeRow(
        nodes=tuple(node.id for node in nodes),
        task=task.index,
        label=f"{label} ({first.source})",
        device=task.device,
        kernel=kernel,
        clock=clock_of(plan, task),
        estimate_s=estimate_s,
        seconds=estimate_s,
        cycles=0,
        detail={},
        names=tuple(names[node.id] for node in nodes),
        ops=tuple(node.op for node in nodes),
        shapes=", ".join(str(plan.graph.type(value)) for value in made),
        nbytes=moved_bytes(plan.graph, nodes),
    )


def estimates_of(plan: Plan, task: Task) -> list[Estimate]:
    """Return the estimates of a task's nodes; none for a copy."""
    if task.is_copy:
        return []
    return [plan.placement.choices[node.id].estimates[task.device] for node in task.nodes]


def task_interval(plan: Plan, task: Task) -> tuple[float, float]:
    """Return the low and high seconds that the estimate of a task expects."""
    if task.is_copy:
        low, high = SPREAD["calibration"]
        return task.estimate_s * low, task.estimate_s * high
    estimates = estimates_of(plan, task)
    own_s = sum(estimate.seconds for estimate in estimates)
    return interval(estimates, max(task.estimate_s - own_s, 0.0))


def clock_of(plan: Plan, task: Task) -> Clock:
    """Return the clock of a task; a copy is virtual when it touches a simulated memory."""
    specs = plan.placement.specs
    if not task.is_copy:
        return specs[task.device].clock
    virtual = {spec.memory for spec in specs.values() if spec.clock == "virtual"}
    return "virtual" if virtual & set(link_ends(task.device)) else "wall"


def moved_bytes(graph: Graph, nodes: Sequence[Node]) -> int:
    """Return the bytes that one kernel's nodes read and make, without values that stay inside."""
    made = {value for node in nodes for value in node.outputs}
    read = {value for node in nodes for value in node.used}
    inside = {value for value in made & read if not graph.is_output(value)}
    values = (made | read) - inside
    return sum(graph.type(value).nbytes for value in values if graph.type(value).is_static)
