"""A profile as a Chrome trace: what ui.perfetto.dev and chrome://tracing open.

Three processes, one a clock: the measured wall clock of the last run, virtual time with measured
durations, and the prediction. Each has a row a device or link.
"""

from __future__ import annotations

from typing import Any

from trireme.plan.virtual_time import Slice
from trireme.profiling.profile import Profile

_WALL, _VIRTUAL, _PREDICTED = 1, 2, 3


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Return the trace as plain data; times are microseconds from the start of the run.

    Source: the Trace Event Format, "X" (complete) and "M" (metadata) events
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
    rows = {row.task: row for row in profile.tasks}
    events = []
    for span in profile.last_run:
        row = rows[span.task]
        args = {"estimate_us": row.estimate_s * 1e6, "bytes": row.nbytes, "clock": row.clock}
        start, end = span.start_s - origin, span.end_s - origin
        events.append(_event(row.label, _WALL, row_of[row.device], start, end, args))
        for node in span.nodes:
            if node.clock == "wall":
                start, end = node.start_s - origin, node.end_s - origin
                kernel = {"kernel": node.kernel}
                events.append(_event(node.kernel, _WALL, row_of[row.device], start, end, kernel))
    return events


def _slice_events(
    profile: Profile, slices: tuple[Slice, ...], process: int, row_of: dict[str, int]
) -> list[dict[str, Any]]:
    events = []
    for row, piece in zip(profile.tasks, slices, strict=True):
        thread = row_of[row.device]
        args = {"estimate_us": row.estimate_s * 1e6, "measured_us": row.seconds * 1e6}
        events.append(_event(row.label, process, thread, piece.start_s, piece.end_s, args))
    if process == _VIRTUAL:
        starts = {piece.task: piece.start_s for piece in slices}
        for span in profile.last_run:
            for node in span.nodes:
                if node.clock == "virtual":
                    thread = row_of[profile.tasks[span.task].device]
                    at = starts[span.task]
                    args = {"cycles": node.cycles, **node.detail}
                    events.append(
                        _event(
                            node.kernel, process, thread, at + node.start_s, at + node.end_s, args
                        )
                    )
    return events
