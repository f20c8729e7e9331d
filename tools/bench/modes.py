"""`trireme bench --modes`: one model on one placement in every execution mode, what each costs.

Modes whose tasks are the same, in the same order, are one program: it is timed once and listed
under each name. How they are timed: turns.py.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from trireme.backend.device import Clock, Progress
from trireme.plan.subgraphs import Execution, Subgraphs
from trireme.runtime.loop.executors import Mode
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.tools.bench.turns import Entrant, Match, matches, text_table, time_match

Modes = tuple[Mode, Subgraphs, Execution]
DEFAULT: Modes = ("auto", "merged", "sunk")
COMBINATIONS: tuple[Modes, ...] = (
    DEFAULT,
    ("parallel", "merged", "sunk"),
    ("serial", "merged", "sunk"),
    ("parallel", "split", "sunk"),
    ("serial", "split", "sunk"),
    ("parallel", "merged", "interactive"),
    ("serial", "merged", "interactive"),
    ("parallel", "split", "interactive"),
    ("serial", "split", "interactive"),
)


@dataclass(frozen=True)
class ModeRow:
    """One way to run a model.

    order: the devices of the tasks as they run, of overlapping ones in plan order; runs of one
        device counted
    peak_bytes: arenas and scratch of all memory spaces
    dispatches: tasks handed over to another thread in a run
    wall_s, virtual_s: the best; virtual is of the plan, with modelled durations where a device is
        simulated, and else the wall time
    clock: of the ratio, which is the default's time over this one's, the median over the rounds
    apart: the largest difference of an output from the default's, 0 when bit-identical
    why: what "auto" chose, and why
    """

    model: str
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
    clock: Clock
    ratio: float
    apart: float
    why: str = ""


def bench_modes(
    options: argparse.Namespace, counts: Sequence[int], progress: Progress
) -> Iterator[list[ModeRow]]:
    """Yield the rows of each model with each number of threads."""
    yield from map(time_modes, matches(options, counts, progress))


def time_modes(match: Match) -> list[ModeRow]:
    """Return a row for every mode of a session's graph, devices and placement.

    The session's own mode is left as it is.
    """
    with ExitStack() as stack:
        entrants = _entrants(match, stack)
        clock = time_match([entrant for entrant, _ in entrants], match)
        rows = {row[1:4]: row for row in _rows(entrants, match, clock)}
    return [ModeRow(*rows[modes]) for modes in COMBINATIONS]


def _entrants(match: Match, stack: ExitStack) -> list[tuple[Entrant, list[Modes]]]:
    """Return every program, and the modes that it is."""
    found: dict[Any, tuple[Entrant, list[Modes]]] = {}
    for modes in COMBINATIONS:
        mode, subgraphs, execution = modes
        placement = match.first.placement
        session = Session(
            placement.source,
            devices=match.shared,
            execution_options=ExecutionOptions(passes=(), subgraphs=subgraphs, execution=execution),
            placement=placement,
            calibration=match.calibration,
            mode=mode,
        )
        stack.callback(session.close)
        entrant = Entrant.ready(session, match.feeds)
        _, names = found.setdefault(_program(session), (entrant, []))
        names.append(modes)
    return list(found.values())


def _program(session: Session) -> Any:
    """Return what two modes must have in common to be one program."""
    tasks = [session.plan.tasks[index] for index in session.runs.order]
    nodes = tuple(tuple(node.id for node in task.nodes) for task in tasks)
    return nodes, session.runs.in_parallel and tuple(task.waits for task in tasks)


def _rows(
    entrants: Sequence[tuple[Entrant, list[Modes]]], match: Match, clock: Clock
) -> Iterator[tuple[Any, ...]]:
    """Yield the fields of each mode's row."""
    first = next(entrant for entrant, names in entrants if DEFAULT in names)
    for entrant, names in entrants:
        session = entrant.session
        memory = session.profile(match.feeds, runs=1, warmup=0).memory
        tasks, runner = session.plan.tasks, session.runs.runner
        groups = itertools.groupby(tasks[index].device for index in session.runs.order)
        figures = (
            len(tasks),
            " ".join(f"{device} x{len(list(some))}" for device, some in groups),
            1 + (len(runner.threads) if runner else 0),
            sum(row.arena_bytes + row.scratch_bytes for row in memory),
            runner.dispatches if runner else 0,
            sum(task.is_copy for task in tasks),
            min(entrant.wall_s),
            min(entrant.virtual_s),
            clock,
            first.ratio(entrant, clock),
            entrant.apart(first),
        )
        for modes in names:
            why = f"{session.runs.chosen}: {session.runs.why}" if modes == DEFAULT else ""
            yield (match.label, *modes, *figures, why)


def default_over_best(rows: Sequence[ModeRow]) -> float:
    """Return the default's time over that of the fastest mode: 1.0 where it is the fastest."""
    return max(row.ratio for row in rows)


def modes_table(rows: Sequence[ModeRow]) -> str:
    """Return the rows of one model as text."""
    head = (
        "mode",
        "subgraphs",
        "execution",
        "tasks",
        "threads",
        "peak bytes",
        "dispatches",
        "copies",
        "wall ms",
        "virtual ms",
        "default/this",
        "apart",
        "order",
    )
    cells = [
        (
            r.mode,
            r.subgraphs,
            r.execution,
            r.tasks,
            r.threads,
            r.peak_bytes,
            r.dispatches,
            r.copies,
            f"{r.wall_s * 1e3:.3f}",
            f"{r.virtual_s * 1e3:.3f}",
            f"{r.ratio:.3f}",
            f"{r.apart:.2g}",
            r.order if len(r.order) <= 60 else r.order[:57] + "...",
        )
        for r in rows
    ]
    best = max(rows, key=lambda row: row.ratio)
    name = "the default" if best.ratio <= 1 else f"{best.mode} {best.subgraphs} {best.execution}"
    return "\n".join(
        [
            rows[0].model,
            *text_table(head, cells),
            f"auto is {rows[0].why}",
            f"the fastest is {name}; "
            f"the default takes {default_over_best(rows):.3f} of its {rows[0].clock} time",
        ]
    )
