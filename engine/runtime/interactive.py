"""Watch a run from inside: every task in plan order, and after each the values it made, printable.

In a plan of execution "interactive" a task is one node, so every intermediate value is seen. In a
sunk plan the values that leave each region are seen. `Session.run_nodes` is the way in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trireme.backend.device import BoundCall
from trireme.ir.graph import Graph, Node
from trireme.plan.plan import Plan, Task
from trireme.runtime.execute import task_runner
from trireme.support.dtypes import Array


@dataclass(frozen=True)
class WatchedTask:
    """A task that ran: its nodes, its device, and its output arrays, by value id."""

    task: Task
    graph: Graph
    values: Mapping[int, Array]

    @property
    def node(self) -> Node:
        """The node of an interactive step; the last one of a sunk region."""
        return self.task.nodes[-1]

    @property
    def device(self) -> str:
        """The device that ran it; of a copy "from>to"."""
        return self.task.device

    def __str__(self) -> str:
        nodes = self.task.nodes
        what = nodes[0].label if len(nodes) == 1 else f"{len(nodes)} nodes to {nodes[-1].label}"
        lines = [f"{self.task.index:4} {self.device}: {what}"]
        for value, array in self.values.items():
            name, type = self.graph.values[value].first_name, self.graph.type(value)
            lines.append(f"       %{value} {name} {type}: {summary(array)}")
        return "\n".join(lines)


Watcher = Callable[[WatchedTask], None]


def run_steps(
    plan: Plan,
    calls: Sequence[BoundCall],
    read: Callable[[int], Array],
    watch: Watcher,
    order: Sequence[int],
) -> None:
    """Run every task in an order that respects the waits, and show `watch` what each made.

    `read` returns a value by id, as an array of its own.
    """
    for index in order:
        task = plan.tasks[index]
        task_runner(plan, calls, index)()
        watch(WatchedTask(task, plan.graph, {value: read(value) for value in task.outputs}))


def summary(array: Array) -> str:
    """Return a few words on an array: its numbers when they are few, else their spread."""
    if array.size <= 8:
        return str(array.reshape(-1).tolist())
    if array.dtype.kind not in "biufV":
        return f"{array.size} elements of {array.dtype}"
    numbers = array.astype(np.float64)
    odd = int(np.count_nonzero(~np.isfinite(numbers)))
    note = f", {odd} not finite" if odd else ""
    with np.errstate(all="ignore"):
        return f"min {numbers.min():.6g} mean {numbers.mean():.6g} max {numbers.max():.6g}{note}"
