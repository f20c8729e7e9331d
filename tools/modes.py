"""`trireme modes`: run one model in every execution mode, and show what each costs."""

from __future__ import annotations

import argparse
import itertools
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.dtypes import Array
from trireme.running.per_node import gap
from trireme.session import Session
from trireme.tools.commands import emit
from trireme.tools.options import Progress, make_feeds, open_session

COMBINATIONS = tuple(
    itertools.product(("sunk", "interactive"), ("merged", "split"), ("parallel", "serial"))
)


@dataclass(frozen=True)
class ModeRow:
    """One way to run a model.

    order: the devices of the tasks in plan order, runs of one device counted
    peak_bytes: arenas and scratch of all memory spaces
    dispatches: tasks handed over to another thread in a run
    wall_s: median; virtual_s: of the plan, with measured durations
    apart: the largest difference of an output from the first mode's, 0 when bit-identical
    """

    mode: str
    subgraphs: str
    execution: str
    tasks: int
    order: str
    threads: int
    peak_bytes: int
    dispatches: int
    copies: int
    wall_s: float
    virtual_s: float
    apart: float


def modes(options: argparse.Namespace) -> int:
    """Run the model in all eight ways on one placement and print a row for each."""
    progress = Progress()
    rows: list[ModeRow] = []
    first: dict[str, Array] = {}
    for execution, subgraphs, mode in COMBINATIONS:
        progress(f"{mode} {subgraphs} {execution}", len(rows), len(COMBINATIONS))
        chosen = {"mode": mode, "subgraphs": subgraphs, "execution": execution}
        with open_session(options, **chosen) as session:
            feeds = make_feeds(options, session.inputs)
            outputs = session.run(feeds)
            first = first or outputs
            rows.append(_row(session, feeds, options.runs, first, outputs))
    progress.done()
    emit(options, {"modes": [vars(row) for row in rows]}, table(rows))
    return 0


def _row(
    session: Session, feeds: dict[str, Array], runs: int, first: dict[str, Array],
    outputs: dict[str, Array],
) -> ModeRow:  # fmt: skip
    profile = session.profile(feeds, runs=runs, warmup=2)
    tasks = session.plan.tasks
    runner = session.runner
    groups = itertools.groupby(task.device for task in tasks)
    order = " ".join(f"{device} x{len(list(some))}" for device, some in groups)
    return ModeRow(
        session.mode, session.subgraphs, session.execution, len(tasks), order,
        1 + (len(runner.threads) if runner else 0),
        sum(row.arena_bytes + row.scratch_bytes for row in profile.memory),
        runner.dispatches if runner else 0, sum(task.is_copy for task in tasks),
        statistics.median(profile.wall_s), profile.virtual_s,
        max((_apart(outputs[name], first[name]) for name in first), default=0.0),
    )  # fmt: skip


def _apart(ours: Array, theirs: Array) -> float:
    same = ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    return 0.0 if same else float(np.float64(gap(ours, theirs).largest))


def table(rows: list[ModeRow]) -> str:
    """Return the rows as text."""
    head = ("mode", "subgraphs", "execution", "tasks", "threads", "peak bytes", "dispatches",
            "copies", "wall ms", "virtual ms", "apart", "order")  # fmt: skip
    cells: list[tuple[Any, ...]] = [head]
    cells += [
        (
            r.mode, r.subgraphs, r.execution, r.tasks, r.threads, r.peak_bytes, r.dispatches,
            r.copies, f"{r.wall_s * 1e3:.3f}", f"{r.virtual_s * 1e3:.3f}", f"{r.apart:.2g}",
            r.order if len(r.order) <= 60 else r.order[:57] + "...",
        )
        for r in rows
    ]  # fmt: skip
    widths = [max(len(str(row[i])) for row in cells) for i in range(len(head))]
    return "\n".join(
        "  ".join(f"{cell!s:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in cells
    )
