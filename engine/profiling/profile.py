"""A run's times next to their predictions: table, JSON and a Chrome trace.

The profile has two clocks and never adds them. Wall time is measured here. Virtual time is the time
of the described machine: a discrete-event run of the plan. In it, real devices take measured
durations and simulated devices take modelled ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

from trireme.backend.calibrate_hint import command
from trireme.backend.core_latency import Cores
from trireme.backend.device import HOST, BodySpan, held_s
from trireme.backend.links import link_ends
from trireme.ir.graph import node_names
from trireme.placement.virtual_time import Slice, end_s, timeline
from trireme.plan.plan import Plan, Task
from trireme.profiling.launch_batches import took_s
from trireme.profiling.prediction_error import PredictionError, prediction_error_of
from trireme.profiling.rows import (
    MemoryRow,
    NodeRow,
    TaskRow,
    ValueRow,
    estimates_of,
    node_row,
    task_rows,
    value_rows,
)
from trireme.profiling.spans import TaskSpan
from trireme.profiling.sums import SumRow, sum_lines, sums_by_device, sums_by_op
from trireme.support.fault_events import FaultEvent, event_lines
from trireme.support.records import dataclass
from trireme.support.showing import Shown
from trireme.support.units import bytes_text, time_text


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """The profile of some runs of one program; rows hold medians over the runs.

    virtual_s: the virtual seconds of the rows
    best_virtual_s: the least virtual seconds of one run
    interval_s: the low and high seconds that the prediction expects
    prediction_errors: the prediction error of each device and link
    cores: core latencies of devices, as measured after the runs and as priced
    bodies: kernels of bodies of control flow in the last run, by the number of the node's row
    events: the faults of devices that the session met so far, and what became of each
    """

    model: str
    runs: int
    wall_s: tuple[float, ...]
    simulating_s: float
    predicted_s: float
    virtual_s: float
    best_virtual_s: float
    tasks: tuple[TaskRow, ...]
    nodes: tuple[NodeRow, ...]
    memory: tuple[MemoryRow, ...]
    predicted: tuple[Slice, ...]
    virtual: tuple[Slice, ...]
    last_run: tuple[TaskSpan, ...]
    values: tuple[ValueRow, ...]
    interval_s: tuple[float, float] = (0.0, 0.0)
    prediction_errors: tuple[PredictionError, ...] = ()
    cores: tuple[Cores, ...] = ()
    bodies: Mapping[int, tuple[BodySpan, ...]] = field(default_factory=dict)
    events: tuple[FaultEvent, ...] = ()

    @property
    def copied_bytes(self) -> dict[str, int]:
        """Bytes copied a run, by "from>to"."""
        pairs: dict[str, int] = {}
        for row in self.tasks:
            if row.nbytes:
                pairs[row.device] = pairs.get(row.device, 0) + row.nbytes
        return pairs

    @property
    def by_op(self) -> tuple[SumRow, ...]:
        """The measured seconds of nodes summed by op, the slowest first."""
        return sums_by_op(self.nodes)

    @property
    def by_device(self) -> tuple[SumRow, ...]:
        """The measured seconds of tasks and copies summed by device, the slowest first."""
        return sums_by_device(self.tasks)

    def to_json(self) -> dict[str, Any]:
        """Return the profile as plain data."""
        return {
            "model": self.model,
            "runs": self.runs,
            "wall_s": {
                "median": statistics.median(self.wall_s),
                "best": min(self.wall_s),
                "all": list(self.wall_s),
                "simulating": self.simulating_s,
            },
            "virtual_s": {
                "predicted": self.predicted_s,
                "interval": list(self.interval_s),
                "measured": self.virtual_s,
                "best": self.best_virtual_s,
            },
            "prediction_errors": [
                vars(one) | {"change": one.change, "is_reported": one.is_reported}
                for one in self.prediction_errors
            ],
            "cores": [
                asdict(one) | {"have_moved": one.have_moved, "text": str(one)} for one in self.cores
            ],
            "by_device": [vars(row) for row in self.by_device],
            "by_op": [vars(row) for row in self.by_op],
            "tasks": [vars(row) for row in self.tasks],
            "nodes": [
                vars(row)
                | {
                    "detail": dict(row.detail),
                    "bodies": [asdict(one) for one in self.bodies.get(number, ())],
                }
                for number, row in enumerate(self.nodes)
            ],
            "memory": [vars(row) for row in self.memory],
            "values": [vars(row) for row in self.values],
            "copied_bytes": self.copied_bytes,
            "events": [one.to_json() for one in self.events],
        }

    def __str__(self) -> str:
        wall = f"median {time_text(statistics.median(self.wall_s))}"
        wall += f", best {time_text(min(self.wall_s))}"
        if self.simulating_s:
            wall += f"; simulating took {time_text(self.simulating_s)} of a watched run"
        low, high = map(time_text, self.interval_s)
        predicted = f"{time_text(self.predicted_s)} ({low} to {high})"
        lines = [
            f"profile of {self.model!r}, {self.runs} runs",
            f"  wall clock     {wall}",
            f"  virtual clock  predicted {predicted}, measured {time_text(self.virtual_s)}",
            *(f"  cores          {one}" for one in self.cores),
            *(f"  mispredicted   {one}" for one in self.prediction_errors if one.is_reported),
            *event_lines(self.events),
            *sum_lines("device", "tasks", self.by_device),
            *sum_lines("op", "kernels", self.by_op),
            "",
            f"  {'task':4} {'device':12} {'clock':8} {'estimate':>12} {'between':>25}"
            f" {'measured':>12}  what",
        ]
        lines += [
            f"  {r.task:4} {r.device:12} {r.clock:8} {time_text(r.estimate_s):>12}"
            f" {time_text(r.low_s):>12} {time_text(r.high_s):>12}"
            f" {time_text(r.seconds):>12}  {r.label}"
            for r in self.tasks
        ]
        lines += ["", f"  {'device':8} {'clock':8} {'estimate':>12} {'measured':>12}  node, kernel"]
        for number, r in enumerate(self.nodes):
            times = f"{time_text(r.estimate_s):>12} {time_text(r.seconds):>12}"
            lines.append(f"  {r.device:8} {r.clock:8} {times}  {r.label}, {r.kernel}")
            lines += [_body_line(one) for one in self.bodies.get(number, ())]
        lines += [
            "",
            f"  {'memory':8} {'arena':>12} {'bound':>12} {'scratch':>12} {'constants':>12}",
        ]
        lines += [
            f"  {r.memory:8} {bytes_text(r.arena_bytes):>12} {bytes_text(r.lower_bound_bytes):>12}"
            f" {bytes_text(r.scratch_bytes):>12} {bytes_text(r.constant_bytes):>12}"
            for r in self.memory
        ]
        lines += [
            f"  copied {pair}: {bytes_text(n)} a run" for pair, n in self.copied_bytes.items()
        ]
        return "\n".join(lines)


def _body_line(one: BodySpan) -> str:
    """Return the row of a kernel of a body, below the row of its control node."""
    times = f"{time_text(one.estimate_s):>12} {time_text(one.seconds):>12}"
    where = " / ".join((*one.path, one.label))
    turns = f"{one.turns:,} turn{'s' if one.turns != 1 else ''}"
    return f"  {one.device:8} {one.clock:8} {times}    {where}, {one.kernel}, {turns}"


def make_profile(
    plan: Plan,
    runs: Sequence[Sequence[TaskSpan]],
    wall_s: Sequence[float],
    memory: Sequence[MemoryRow],
    serial: bool = False,
    cores: tuple[Cores, ...] = (),
) -> Profile:
    """Return the profile of runs of a plan; `wall_s` holds each whole run's seconds.

    serial: whether its tasks ran one after another
    cores: the core latency of each device, which can explain a prediction error
    """
    took = [took_s(plan, run) for run in runs]
    tasks = [
        _measured_task(plan, row, [run[row.task] for run in runs], [one[row.task] for one in took])
        for row in task_rows(plan)
    ]
    names = node_names(plan.graph)
    nodes = [
        row
        for task in plan.tasks
        if not task.is_copy
        for row in _node_rows(plan, task, [run[task.index] for run in runs], names)
    ]

    def slices(seconds: Sequence[float]) -> list[Slice]:
        return timeline(plan.tasks, seconds, serial)

    predicted = slices([task.estimate_s for task in plan.tasks])
    ends = [end_s(slices([getattr(row, end) for row in tasks])) for end in _ENDS]
    virtual = slices([row.seconds for row in tasks])
    best_s = min(end_s(slices(_seconds(tasks, one))) for one in took)
    last = runs[-1]
    simulating = sum(
        last[row.task].end_s - last[row.task].start_s for row in tasks if row.clock == "virtual"
    )
    return Profile(
        model=plan.graph.name,
        runs=len(runs),
        wall_s=tuple(wall_s),
        simulating_s=simulating,
        predicted_s=end_s(predicted),
        virtual_s=end_s(virtual),
        best_virtual_s=best_s,
        tasks=tuple(tasks),
        nodes=tuple(nodes),
        memory=tuple(memory),
        predicted=tuple(predicted),
        virtual=tuple(virtual),
        last_run=tuple(runs[-1]),
        values=value_rows(plan),
        interval_s=(ends[0], ends[1]),
        prediction_errors=_prediction_errors(plan, tasks, nodes, cores),
        cores=cores,
        bodies=_bodies(plan, runs[-1]),
    )


def _bodies(plan: Plan, run: Sequence[TaskSpan]) -> dict[int, tuple[BodySpan, ...]]:
    """Return the kernels of bodies by the number of their node's row; rows are in task order."""
    spans = {span.task: span.nodes for span in run}
    rows = [node for task in plan.tasks if not task.is_copy for node in spans[task.index]]
    return {number: row.bodies for number, row in enumerate(rows) if row.bodies}


def _seconds(rows: Sequence[TaskRow], took: Mapping[int, float]) -> list[float]:
    """Return the seconds of each task in one run.

    took: wall-clock seconds by task
    """
    return [row.seconds if row.clock == "virtual" else took[row.task] for row in rows]


_ENDS = ("low_s", "high_s")


def _prediction_errors(
    plan: Plan, tasks: Sequence[TaskRow], nodes: Sequence[NodeRow], cores: Sequence[Cores]
) -> tuple[PredictionError, ...]:
    """Return the prediction error of every device and link whose time is measured."""
    found = []
    moved = {one.device: str(one) for one in cores if one.have_moved}
    for name in dict.fromkeys(row.device for row in tasks if row.clock == "wall"):
        mine = [row for row in tasks if row.device == name]
        kernels = [row for row in nodes if row.device == name]
        spec = plan.placement.specs.get(name)
        ends = [name] if spec else [end for end in link_ends(name) if end != HOST]
        found.append(
            prediction_error_of(
                name if spec else f"copies {name}",
                [(row.label, row.estimate_s, row.seconds) for row in kernels or mine],
                [(row.estimate_s, row.seconds) for row in mine],
                [
                    e.source
                    for row in tasks
                    if row.device in ends
                    for e in estimates_of(plan, plan.tasks[row.task])
                ],
                command(ends),
                moved.get(name, ""),
            )
        )
    return tuple(found)


def _measured_task(
    plan: Plan, row: TaskRow, spans: Sequence[TaskSpan], took: Sequence[float]
) -> TaskRow:
    """Return a task's row with its measured seconds; a simulated copy takes its estimate."""
    if row.clock == "wall":
        return replace(row, seconds=statistics.median(took))
    if plan.tasks[row.task].is_copy:
        return row
    launch_s = plan.placement.launch_s.get(row.device, 0.0)
    seconds = launch_s + max((node.end_s for node in spans[-1].nodes), default=0.0)
    return replace(row, seconds=seconds)


def _node_rows(
    plan: Plan, task: Task, spans: Sequence[TaskSpan], names: Mapping[int, str]
) -> list[NodeRow]:
    rows = []
    held = [held_s(span.nodes) for span in spans]
    for position, last in enumerate(spans[-1].nodes):
        same = [run[position] for run in held if len(run) == len(spans[-1].nodes)]
        nodes = [plan.graph.node(n) for n in last.nodes]
        row = node_row(plan, task, nodes, names, last.kernel)
        rows.append(
            replace(
                row,
                clock=last.clock,
                seconds=statistics.median(same),
                cycles=last.cycles,
                detail=last.detail,
            )
        )
    return rows
