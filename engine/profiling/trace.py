"""A profile as a Chrome trace: what ui.perfetto.dev and chrome://tracing open.

Three processes, one a clock: the measured wall clock of the last run, virtual time with measured
durations, and the prediction. Each has a row a device or link. Inside a task lie its nodes, by
their names; arrows lead from what makes a value over its copy to what reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trireme.plan.virtual_time import Slice
from trireme.profiling.profile import Profile
from trireme.profiling.rows import NodeRow

_WALL, _VIRTUAL, _PREDICTED = 1, 2, 3


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Return the trace as plain data; times are microseconds from the start of the run.

    Source: the Trace Event Format, "X" (complete), "M" (metadata), "s" and "f" (flow) events
    """
    devices = list(dict.fromkeys(row.device for row in profile.tasks))
    row_of = {device: index + 1 for index, device in enumerate(devices)}
    names = {
        _WALL: "wall clock, measured",
        _VIRTUAL: "virtual clock, measured durations",
        _PREDICTED: "virtual clock, predicted",
    }
    events: list[dict[str, Any]] = []
    for process, name in names.items():
        events.append(_meta("process_name", process, 0, name))
        events += [_meta("thread_name", process, row_of[device], device) for device in devices]
    events += _wall_events(profile, row_of)
    events += _slice_events(profile, profile.virtual, _VIRTUAL, row_of)
    events += _slice_events(profile, profile.predicted, _PREDICTED, row_of)
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _meta(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _event(
    name: str, process: int, thread: int, start_s: float, end_s: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": "task",
        "pid": process,
        "tid": thread,
        "ts": start_s * 1e6,
        "dur": max(end_s - start_s, 0.0) * 1e6,
        "args": args,
    }


def _wall_events(profile: Profile, row_of: dict[str, int]) -> list[dict[str, Any]]:
    origin = min((span.start_s for span in profile.last_run), default=0.0)
    rows, nodes = {row.task: row for row in profile.tasks}, _nodes_of(profile)
    events, times = [], {}
    for span in profile.last_run:
        row = rows[span.task]
        args = {"estimate_us": row.estimate_s * 1e6, "bytes": row.nbytes, "clock": row.clock}
        times[span.task] = span.start_s - origin, span.end_s - origin
        events.append(_event(row.label, _WALL, row_of[row.device], *times[span.task], args))
        for known, node in zip(nodes[span.task], span.nodes, strict=False):
            if node.clock == "wall":
                start, end = node.start_s - origin, node.end_s - origin
                events.append(_node_event(known, _WALL, row_of[row.device], start, end))
    return events + _flow_events(profile, times, _WALL, row_of)


def _slice_events(
    profile: Profile, slices: tuple[Slice, ...], process: int, row_of: dict[str, int]
) -> list[dict[str, Any]]:
    events = []
    times = {piece.task: (piece.start_s, piece.end_s) for piece in slices}
    for row, piece in zip(profile.tasks, slices, strict=True):
        args = {"estimate_us": row.estimate_s * 1e6, "measured_us": row.seconds * 1e6}
        events.append(_event(row.label, process, row_of[row.device], *times[piece.task], args))
    if process == _VIRTUAL:
        nodes = _nodes_of(profile)
        for span in profile.last_run:
            thread, at = row_of[profile.tasks[span.task].device], times[span.task][0]
            for known, node in zip(nodes[span.task], span.nodes, strict=False):
                if node.clock == "virtual":
                    start, end = at + node.start_s, at + node.end_s
                    events.append(_node_event(known, process, thread, start, end))
    return events + _flow_events(profile, times, process, row_of)


def _nodes_of(profile: Profile) -> dict[int, list[NodeRow]]:
    """Return the rows of the nodes of each task, in the order of its spans."""
    found: dict[int, list[NodeRow]] = {row.task: [] for row in profile.tasks}
    for row in profile.nodes:
        found[row.task].append(row)
    return found


def _node_event(
    row: NodeRow, process: int, thread: int, start_s: float, end_s: float
) -> dict[str, Any]:
    args = {
        "op": "+".join(row.ops),
        "shapes": row.shapes,
        "bytes read and made": row.nbytes,
        "estimate_us": row.estimate_s * 1e6,
        "kernel": row.kernel,
        **({"cycles": row.cycles} if row.cycles else {}),
        **row.detail,
    }
    return _event(" + ".join(row.names) or row.label, process, thread, start_s, end_s, args)


def _flow_events(
    profile: Profile,
    times: Mapping[int, tuple[float, float]],
    process: int,
    row_of: dict[str, int],
) -> list[dict[str, Any]]:
    """Return an arrow from each task to the copies of what it made, and from there to readers."""
    rows = {row.task: row for row in profile.tasks}
    events: list[dict[str, Any]] = []
    for row in profile.tasks:
        for before in row.makers:
            if not (row.nbytes or rows[before].nbytes) or before not in times:
                continue
            same = {"cat": "copy", "name": "copy", "pid": process, "id": len(events)}
            ends = ("s", before, times[before][1]), ("f", row.task, times[row.task][0])
            for phase, task, at in ends:
                thread = row_of[rows[task].device]
                events.append({**same, "ph": phase, "tid": thread, "ts": at * 1e6, "bp": "e"})
    return events
