"""The predicted run of a plan: a profile's rows without measurements, as text and JSON.

A described machine has no hardware, so this is its profile; it opens as a trace too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trireme.ir.graph import node_names
from trireme.placement.virtual_time import Slice, end_s, timeline
from trireme.plan.plan import Plan
from trireme.profiling.rows import (
    MemoryRow,
    NodeRow,
    TaskRow,
    ValueRow,
    node_row,
    task_rows,
    value_rows,
)
from trireme.profiling.sums import sum_lines, sums_by_device, sums_by_op
from trireme.support.showing import Shown
from trireme.support.units import bytes_text, time_text


@dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """A run of a plan in virtual time, each task taking its estimate.

    interval_s: the low and high seconds of the whole run
    slices: when each task runs
    """

    model: str
    predicted_s: float
    interval_s: tuple[float, float]
    tasks: tuple[TaskRow, ...]
    nodes: tuple[NodeRow, ...]
    memory: tuple[MemoryRow, ...]
    values: tuple[ValueRow, ...]
    slices: tuple[Slice, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the prediction as plain data."""
        measured = {"seconds", "cycles", "detail", "kernel"}
        return {
            "model": self.model,
            "predicted_s": self.predicted_s,
            "interval_s": list(self.interval_s),
            "by_device": [vars(row) for row in sums_by_device(self.tasks)],
            "by_op": [vars(row) for row in sums_by_op(self.nodes)],
            "tasks": [_without(row, measured) for row in self.tasks],
            "nodes": [_without(row, measured) for row in self.nodes],
            "memory": [vars(row) for row in self.memory],
            "values": [vars(row) for row in self.values],
            "slices": [vars(one) for one in self.slices],
        }

    def __str__(self) -> str:
        low, high = map(time_text, self.interval_s)
        lines = [
            f"prediction for {self.model!r}: {time_text(self.predicted_s)} a run ({low} to {high})",
            *sum_lines("device", "tasks", sums_by_device(self.tasks)),
            *sum_lines("op", "kernels", sums_by_op(self.nodes)),
            "",
            f"  {'task':4} {'device':12} {'start':>9} {'estimate':>9} {'between':>19}  what",
        ]
        for row, piece in zip(self.tasks, self.slices, strict=True):
            lines.append(
                f"  {row.task:4} {row.device:12} {time_text(piece.start_s):>9}"
                f" {time_text(row.estimate_s):>9} {time_text(row.low_s):>9}"
                f" {time_text(row.high_s):>9}  {row.label}"
            )
        lines += ["", f"  {'device':12} {'estimate':>9}  node"]
        lines += [
            f"  {row.device:12} {time_text(row.estimate_s):>9}  {row.ops[0]} {row.names[0]}"
            for row in self.nodes
        ]
        lines += [
            f"  memory {row.memory}: arena {bytes_text(row.arena_bytes)}, "
            f"scratch {bytes_text(row.scratch_bytes)}, weights {bytes_text(row.constant_bytes)}"
            for row in self.memory
        ]
        return "\n".join(lines)


def _without(row: object, left_out: set[str]) -> dict[str, Any]:
    return {key: value for key, value in vars(row).items() if key not in left_out}


def predict(plan: Plan, serial: bool = False) -> Prediction:
    """Return the predicted run of the plan.

    serial: whether its tasks run one after another
    """
    rows, names = task_rows(plan), node_names(plan.graph)
    nodes = [
        node_row(plan, task, [node], names)
        for task in plan.tasks
        if not task.is_copy
        for node in task.nodes
    ]
    ends = ([row.low_s for row in rows], [row.high_s for row in rows])
    low_s, high_s = (end_s(timeline(plan.tasks, seconds, serial)) for seconds in ends)
    slices = timeline(plan.tasks, [row.estimate_s for row in rows], serial)
    memory = [
        MemoryRow(name, packing.nbytes, packing.lower_bound, use.scratch, use.weights)
        for name, packing in plan.arenas.items()
        for use in [plan.memory[name]]
    ]
    return Prediction(
        plan.graph.name,
        end_s(slices),
        (low_s, high_s),
        tuple(rows),
        tuple(nodes),
        tuple(memory),
        value_rows(plan),
        tuple(slices),
    )
