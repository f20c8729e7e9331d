"""A profile or a prediction as a Chrome trace, for ui.perfetto.dev and chrome://tracing.

Each process of the trace is a clock: the measured wall clock of the last run, virtual time with
measured durations, predicted virtual time. A clock has a row a device or link, and a counter an
arena. The wall clock has a row a worker too: the host thread that launches a task and waits for it.
A task contains its nodes, by name. On the wall clock, a node of control flow contains the kernels
of its bodies: each once, as long as all its turns together. Arrows lead from a value's maker over
its copy to its reader.

Source: the Trace Event Format: "X" (complete), "M" (metadata), "C" (counter), "s" and "f" (flow)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trireme.backend.device import BodySpan
from trireme.placement.virtual_time import Slice
from trireme.profiling.prediction import Prediction
from trireme.profiling.profile import Profile
from trireme.profiling.rows import NodeRow, TaskRow, ValueRow

SCHEMA_VERSION = 1
_INSIDE_US = 0.001
"""An arrow begins this long before the end of its slice, since the end itself lies in no slice."""

Event = dict[str, Any]
Times = tuple[float, float]


@dataclass(frozen=True)
class _Clock:
    """One process of a trace: when each task and node ran, in seconds from the start of the run.

    nodes: a row, its start and end
    workers: by task, its thread, and the start and end of the launch and wait
    bodies: kernels of bodies with the task of their node, in that way
    """

    number: int
    name: str
    tasks: Mapping[int, Times]
    nodes: Sequence[tuple[NodeRow, float, float]]
    is_measured: bool
    workers: Mapping[int, tuple[str, float, float]] = field(default_factory=dict)
    bodies: Sequence[tuple[int, BodySpan, float, float]] = ()


def chrome_trace(run: Profile | Prediction) -> dict[str, Any]:
    """Return the trace as plain data; times are microseconds from the start of the run."""
    if isinstance(run, Prediction):
        clocks = [_laid(1, "virtual clock, predicted", run.nodes, run.slices, False)]
    else:
        clocks = [
            _wall(run),
            _laid(2, "virtual clock, measured durations", run.nodes, run.virtual, True),
            _laid(3, "virtual clock, predicted", run.nodes, run.predicted, False),
        ]
    events = [event for clock in clocks for event in _events(clock, run.tasks, run.values)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"model": run.model, "schema_version": SCHEMA_VERSION},
    }


def _wall(profile: Profile) -> _Clock:
    """Return the wall clock of the last run; simulated nodes are on the virtual clock."""
    origin = min((min(span.start_s, *span.held_s) for span in profile.last_run), default=0.0)
    rows = _nodes_of(profile.nodes)
    tasks: dict[int, Times] = {}
    numbers = {id(row): number for number, row in enumerate(profile.nodes)}
    nodes = []
    bodies = []
    for span in profile.last_run:
        start, end = span.start_s - origin, span.end_s - origin
        tasks[span.task] = start, end
        for row, node in zip(rows.get(span.task, ()), span.nodes, strict=False):
            if node.clock == "wall":
                begin = min(max(node.start_s - origin, start), end)
                until = min(max(node.end_s - origin, begin), end)
                nodes.append((row, begin, until))
                inside = _inside(profile.bodies.get(numbers[id(row)], ()), begin, until)
                bodies += [(span.task, *one) for one in inside]
    held = {span.task: (span.worker, *span.held_s) for span in profile.last_run if span.worker}
    workers = {task: (name, a - origin, b - origin) for task, (name, a, b) in held.items()}
    return _Clock(1, "wall clock, measured", tasks, nodes, True, workers, bodies)


def _inside(
    spans: Sequence[BodySpan], start_s: float, end_s: float
) -> Iterator[tuple[BodySpan, float, float]]:
    """Yield the kernels of bodies with a start and an end inside these; longer ones are shortened.

    Those of a body inside a body follow the kernel that drives it, and lie inside that one.
    """
    spans = [one for one in spans if one.clock == "wall"]
    if not spans:
        return
    depth = min(len(one.path) for one in spans)
    firsts = [k for k, one in enumerate(spans) if len(one.path) == depth]
    total = sum(spans[k].seconds for k in firsts)
    scale = min(1.0, (end_s - start_s) / total) if total else 0.0
    for k, following in zip(firsts, [*firsts[1:], len(spans)], strict=True):
        until = min(start_s + spans[k].seconds * scale, end_s)
        yield spans[k], start_s, until
        yield from _inside(spans[k + 1 : following], start_s, until)
        start_s = until


def _laid(
    number: int, name: str, rows: Sequence[NodeRow], slices: Sequence[Slice], is_measured: bool
) -> _Clock:
    """Return a clock with the nodes of a task one behind another up to its end.

    The launch comes before the nodes. Nodes longer than their task in all are shortened by one
    factor.
    """
    nodes = []
    for piece in slices:
        mine = _nodes_of(rows).get(piece.task, [])
        seconds = [row.seconds if is_measured else row.estimate_s for row in mine]
        length, total = piece.end_s - piece.start_s, sum(seconds)
        scale = min(1.0, length / total) if total else 1.0
        at = piece.end_s - total * scale
        for row, took in zip(mine, seconds, strict=True):
            nodes.append((row, at, min(at + took * scale, piece.end_s)))
            at += took * scale
    tasks = {piece.task: (piece.start_s, piece.end_s) for piece in slices}
    return _Clock(number, name, tasks, nodes, is_measured)


def _nodes_of(rows: Sequence[NodeRow]) -> dict[int, list[NodeRow]]:
    """Return the rows of the nodes of each task, in the order in which they ran."""
    found: dict[int, list[NodeRow]] = {}
    for row in rows:
        found.setdefault(row.task, []).append(row)
    return found


def _events(clock: _Clock, rows: Sequence[TaskRow], values: Sequence[ValueRow]) -> Iterator[Event]:
    """Yield the events of one clock."""
    lane_of, names = _lanes([(row.task, row.device, *clock.tasks[row.task]) for row in rows])
    held = [(task, f"worker {worker[0]}", *worker[1:]) for task, worker in clock.workers.items()]
    worker_lane_of, workers = _lanes(held, 1 + len(names))
    yield _meta("process_name", clock.number, 0, name=clock.name)
    yield _meta("process_sort_index", clock.number, 0, sort_index=clock.number)
    for lane, name in (names | workers).items():
        yield _meta("thread_name", clock.number, lane, name=name)
        yield _meta("thread_sort_index", clock.number, lane, sort_index=lane)
    for row in rows:
        args = {"estimate_us": row.estimate_s * 1e6, "bytes": row.nbytes, "clock": row.clock}
        if clock.is_measured:
            args["measured_us"] = row.seconds * 1e6
        lane, (start, end) = lane_of[row.task], clock.tasks[row.task]
        yield _slice(row.label, "task", clock.number, lane, start, end, args)
    labels = {row.task: row.label for row in rows}
    for task, _, start, end in held:
        lane, args = worker_lane_of[task], {"task": task}
        yield _slice(labels[task], "worker", clock.number, lane, start, end, args)
    for node, start, end in clock.nodes:
        name = " + ".join(node.names) or node.label
        args = _node_args(node, clock.is_measured)
        yield _slice(name, "node", clock.number, lane_of[node.task], start, end, args)
    for task, one, start, end in clock.bodies:
        yield _slice(one.label, "body", clock.number, lane_of[task], start, end, _body_args(one))
    yield from _arrows(clock, rows, lane_of)
    yield from _counters(clock, values)


def _lanes(
    slices: Sequence[tuple[int, str, float, float]], first: int = 1
) -> tuple[dict[int, int], dict[int, str]]:
    """Return the row of each task, and the names of the rows.

    A name has several rows where its slices overlap, since slices of one row may only nest.
    slices: a task, the name of its row, start and end
    first: the number of the first row
    """
    ends: dict[str, list[float]] = {name: [] for _, name, _, _ in slices}
    where: dict[int, tuple[str, int]] = {}
    for task, name, start, end in sorted(slices, key=lambda one: (one[2], -one[3])):
        mine = ends[name]
        free = next((k for k, until in enumerate(mine) if _us(until) <= _us(start)), len(mine))
        mine[free:] = [end, *mine[free + 1 :]]
        where[task] = name, free
    lanes = [(name, k) for name, mine in ends.items() for k in range(len(mine))]
    number = {lane: index + first for index, lane in enumerate(lanes)}
    names = {n: name if not k else f"{name} ({k + 1})" for (name, k), n in number.items()}
    return {task: number[lane] for task, lane in where.items()}, names


def _meta(kind: str, process: int, thread: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": args}


def _us(seconds: float) -> float:
    """Return seconds as microseconds, in whole nanoseconds, so that nested slices stay nested."""
    return round(seconds * 1e6, 3)


def _slice(
    name: str, category: str, process: int, thread: int, start_s: float, end_s: float, args: Event
) -> Event:
    start = _us(start_s)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": start,
        "dur": round(max(_us(end_s) - start, 0.0), 3),
        "args": args,
    }


def _node_args(row: NodeRow, is_measured: bool) -> Event:
    measured: Event = {"measured_us": row.seconds * 1e6, **row.detail} if is_measured else {}
    return {
        "op": "+".join(row.ops),
        "shapes": row.shapes,
        "bytes read and made": row.nbytes,
        "estimate_us": row.estimate_s * 1e6,
        **({"kernel": row.kernel} if row.kernel else {}),
        **({"cycles": row.cycles} if row.cycles else {}),
        **measured,
    }


def _body_args(one: BodySpan) -> Event:
    return {
        "in": " / ".join(one.path),
        "turns": one.turns,
        "device": one.device,
        "kernel": one.kernel,
        "estimate_us": one.estimate_s * 1e6,
        "measured_us": one.seconds * 1e6,
    }


def _arrows(clock: _Clock, rows: Sequence[TaskRow], lane_of: Mapping[int, int]) -> Iterator[Event]:
    """Yield an arrow from each task to the copies of its values, and from a copy to its readers."""
    tasks = {row.task: row for row in rows}
    count = 0
    for row in rows:
        for maker in row.makers:
            if not (row.nbytes or tasks[maker].nbytes):
                continue
            count += 1
            same = {"cat": "copy", "name": "copy", "pid": clock.number, "id": count}
            begin, end = map(_us, clock.tasks[maker])
            first, last = map(_us, clock.tasks[row.task])  # a measured reader may overlap its maker
            inside = round(max(begin, min(end, last) - _INSIDE_US), 3)
            yield {**same, "ph": "s", "tid": lane_of[maker], "ts": inside}
            start = max(first, inside)
            yield {**same, "ph": "f", "bp": "e", "tid": lane_of[row.task], "ts": start}


def _counters(clock: _Clock, values: Sequence[ValueRow]) -> Iterator[Event]:
    """Yield the bytes of the live values in each arena, at every change."""
    last = max((end for _, end in clock.tasks.values()), default=0.0)
    changes: dict[str, dict[float, int]] = {}
    for row in values:
        begin = 0.0 if row.maker is None else clock.tasks[row.maker][0]
        used = [clock.tasks[task][1] for task in row.readers]
        used += [] if row.maker is None else [clock.tasks[row.maker][1]]
        end = last if row.is_output else max(used, default=begin)
        mine = changes.setdefault(row.memory, {0.0: 0})
        for at, by in ((_us(begin), row.nbytes), (_us(end), -row.nbytes)):
            mine[at] = mine.get(at, 0) + by
    for memory, steps in changes.items():
        live = 0
        for at, by in sorted(steps.items()):
            live += by
            yield {
                "ph": "C",
                "name": f"arena {memory}",
                "pid": clock.number,
                "tid": 0,
                "ts": at,
                "args": {"live bytes": live},
            }
