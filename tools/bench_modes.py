"""`trireme bench --modes`: one model on one placement in every execution mode, what each costs.

The modes take turns in one process, in fresh random order each round, and what counts is the ratio
of best times within a round, as in the rest of `trireme bench`. Modes whose tasks are the same, in
the same order, are one program: it is timed once and listed under each name. Where a device is
simulated, wall time is the simulator's, and the ratio is that of virtual times.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trireme.device import HOST, Clock
from trireme.dtypes import Array
from trireme.running.per_node import gap
from trireme.running.runs import Mode
from trireme.session import Session
from trireme.subgraphs import Execution, Subgraphs
from trireme.tools.options import make_feeds, session_arguments

LEAST_CALLS = 3
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
    wall_s, virtual_s: the best; virtual is of the plan, with measured durations
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


@dataclass
class _Entrant:
    """A program and the names of the modes that it is; the best times of each round."""

    session: Session
    modes: list[Modes]
    outputs: Mapping[str, Array]
    wall_s: list[float] = field(default_factory=list)
    virtual_s: list[float] = field(default_factory=list)

    @property
    def clock(self) -> Clock:
        """The clock to be judged by."""
        specs, tasks = self.session.placement.specs, self.session.plan.tasks
        used = {specs[task.device].clock for task in tasks if not task.is_copy}
        return "virtual" if "virtual" in used else "wall"

    def turn(self, feeds: Mapping[str, Array], turn_s: float) -> tuple[float, float]:
        """Return the best wall time of some runs, and the virtual time of some that are watched."""
        if self.clock == "virtual":
            profile = self.session.profile(feeds, runs=LEAST_CALLS, warmup=0)
            return min(profile.wall_s), profile.virtual_s
        best_s, calls, end = float("inf"), 0, time.perf_counter() + turn_s
        while calls < LEAST_CALLS or time.perf_counter() < end:
            start = time.perf_counter()
            self.session.run(feeds)
            best_s = min(best_s, time.perf_counter() - start)
            calls += 1
        return best_s, self.session.profile(feeds, runs=1, warmup=0).virtual_s

    def ratio(self, other: _Entrant) -> float:
        """Return this one's time over the other's, the median over the rounds."""
        simulated = self.clock == "virtual"
        ours = self.virtual_s if simulated else self.wall_s
        theirs = other.virtual_s if simulated else other.wall_s
        return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def bench_modes(
    options: argparse.Namespace, counts: Sequence[int], told: Callable[..., None]
) -> Iterator[list[ModeRow]]:
    """Yield the rows of each model with each number of threads."""
    for model, threads in itertools.product(options.models, counts):
        given = session_arguments(argparse.Namespace(**{**vars(options), "threads": threads}))
        given["calibration"] = Path(given["calibration"])
        for name in ("mode", "subgraphs", "execution"):
            del given[name]
        turn_s = options.round_s or options.duration / options.rounds
        label = f"{Path(model).name}, {options.devices}, {threads} threads"
        with Session(model, **given) as first:
            feeds = make_feeds(options, first.inputs)
            yield time_modes(
                first, feeds, options.rounds, turn_s, label, random.Random(options.seed), told
            )


def time_modes(
    first: Session,
    feeds: Mapping[str, Array],
    rounds: int,
    turn_s: float,
    label: str,
    order: random.Random,
    told: Callable[..., None] = lambda *what: None,
) -> list[ModeRow]:
    """Return a row for every mode of a session's graph, devices and placement.

    The session's own mode is left as it is.
    """
    with ExitStack() as stack:
        entrants = _entrants(first, feeds, stack)
        for number in range(rounds + 1):
            told(f"{label}: round", number, rounds)
            turns = list(entrants)
            order.shuffle(turns)
            for entrant in turns:
                wall_s, virtual_s = entrant.turn(feeds, turn_s)
                if number:
                    entrant.wall_s.append(wall_s)
                    entrant.virtual_s.append(virtual_s)
        rows = {row[1:4]: row for row in _rows(entrants, feeds, label)}
    return [ModeRow(*rows[modes]) for modes in COMBINATIONS]


def _entrants(first: Session, feeds: Mapping[str, Array], stack: ExitStack) -> list[_Entrant]:
    shared = [device for name, device in first.devices.items() if name != HOST]
    found: dict[Any, _Entrant] = {}
    for modes in COMBINATIONS:
        mode, subgraphs, execution = modes
        session = Session(
            first.placement.source, devices=shared, passes=(), placement=first.placement,
            mode=mode, subgraphs=subgraphs, execution=execution,
        )  # fmt: skip
        stack.callback(session.close)
        outputs = session.run(feeds)
        for _ in range(2):
            session.run(feeds)
        session.runs.settle()
        key = _program(session)
        if key in found:
            found[key].modes.append(modes)
        else:
            found[key] = _Entrant(session, [modes], outputs)
    return list(found.values())


def _program(session: Session) -> Any:
    """Return what two modes must have in common to be one program."""
    tasks = [session.plan.tasks[index] for index in session.runs.order]
    nodes = tuple(tuple(node.id for node in task.nodes) for task in tasks)
    return nodes, session.runs.in_parallel and tuple(task.waits for task in tasks)


def _rows(
    entrants: Sequence[_Entrant], feeds: Mapping[str, Array], label: str
) -> Iterator[tuple[Any, ...]]:
    """Yield the fields of each mode's row."""
    first = next(entrant for entrant in entrants if DEFAULT in entrant.modes)
    for entrant in entrants:
        session = entrant.session
        memory = session.profile(feeds, runs=1, warmup=0).memory
        tasks, runner = session.plan.tasks, session.runs.runner
        groups = itertools.groupby(tasks[index].device for index in session.runs.order)
        figures = (
            len(tasks), " ".join(f"{device} x{len(list(some))}" for device, some in groups),
            1 + (len(runner.threads) if runner else 0),
            sum(row.arena_bytes + row.scratch_bytes for row in memory),
            runner.dispatches if runner else 0, sum(task.is_copy for task in tasks),
            min(entrant.wall_s), min(entrant.virtual_s), first.clock, first.ratio(entrant),
            max(_apart(array, first.outputs[name]) for name, array in entrant.outputs.items()),
        )  # fmt: skip
        for modes in entrant.modes:
            why = f"{session.runs.chosen}: {session.runs.why}" if modes == DEFAULT else ""
            yield (label, *modes, *figures, why)


def _apart(ours: Array, theirs: Array) -> float:
    same = ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    return 0.0 if same else float(np.float64(gap(ours, theirs).largest))


def default_over_best(rows: Sequence[ModeRow]) -> float:
    """Return the default's time over that of the fastest mode: 1.0 where it is the fastest."""
    return max(row.ratio for row in rows)


def table(rows: Sequence[ModeRow]) -> str:
    """Return the rows of one model as text."""
    head = ("mode", "subgraphs", "execution", "tasks", "threads", "peak bytes", "dispatches",
            "copies", "wall ms", "virtual ms", "default/this", "apart", "order")  # fmt: skip
    cells: list[tuple[Any, ...]] = [head]
    cells += [
        (
            r.mode, r.subgraphs, r.execution, r.tasks, r.threads, r.peak_bytes, r.dispatches,
            r.copies, f"{r.wall_s * 1e3:.3f}", f"{r.virtual_s * 1e3:.3f}", f"{r.ratio:.3f}",
            f"{r.apart:.2g}", r.order if len(r.order) <= 60 else r.order[:57] + "...",
        )
        for r in rows
    ]  # fmt: skip
    widths = [max(len(str(row[i])) for row in cells) for i in range(len(head))]
    lines = [
        "  ".join(f"{cell!s:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    best = max(rows, key=lambda row: row.ratio)
    name = "the default" if best.ratio <= 1 else f"{best.mode} {best.subgraphs} {best.execution}"
    return "\n".join([
        rows[0].model, *lines, f"auto is {rows[0].why}",
        f"the fastest is {name}; "
        f"the default takes {default_over_best(rows):.3f} of its {rows[0].clock} time",
    ])  # fmt: skip
