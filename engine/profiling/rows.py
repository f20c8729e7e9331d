"""Rows of a profile and of a prediction: a task, a node, a memory, a value in an arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trireme.backend.device import Clock, link_ends
from trireme.cost.model import SPREAD, Estimate, interval
from trireme.ir.graph import Graph, Node
from trireme.plan.plan import Plan, Task


@dataclass(frozen=True)
class NodeRow:
    """One node, or several fused into one kernel: prediction beside measurement, in seconds.

    names: of the nodes, as the model's outputs call them; ops: likewise
    shapes: the types of what the last node makes, as text
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
    """One task or copy. `seconds` is on the device's clock; `nbytes` is what a copy moves.

    Tasks that are launched one behind the other and waited for together share that time out:
    profiling/launch_batches.py.

    low_s, high_s: between which the estimate expects the seconds
    makers: the tasks that made what this one reads
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


def estimates_of(plan: Plan, task: Task) -> list[Estimate]:
    """Return the estimates of a task's nodes; none for a copy."""
    if task.is_copy:
        return []
    return [plan.placement.choices[node.id].estimates[task.device] for node in task.nodes]


def task_interval(plan: Plan, task: Task) -> tuple[float, float]:
    """Return between which a task's seconds are expected."""
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
    """Return the bytes that nodes of one kernel read and make, what passes between them aside."""
    made = {value for node in nodes for value in node.outputs}
    read = {value for node in nodes for value in node.used}
    inside = {value for value in made & read if not graph.is_output(value)}
    values = (made | read) - inside
    return sum(graph.type(value).nbytes for value in values if graph.type(value).is_static)
