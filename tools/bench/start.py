"""`trireme bench --start`: from the start of a process to its first result, for every engine.

A round starts each engine in fresh processes, in random order: one that finds empty caches and,
where the engine keeps files between processes, one that finds what the first left. No two processes
load at once. All moments count from the start of the process, interpreter and numpy included.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePath
from typing import Any

from trireme.support.dtypes import Array
from trireme.tools.bench.agree import load_arrays
from trireme.tools.bench.match import LOAD_LIMIT_S, TURN_LIMIT_S, PeerMatch
from trireme.tools.bench.peers import Peer
from trireme.tools.bench.process import WorkerFailed
from trireme.tools.bench.report import markdown_table

SETTLE_S = 0.2
"""For so long a process calls its engine, to find when calls become steady."""


@dataclass(frozen=True)
class Start:
    """One process; seconds since it was started.

    inputs_s: the interpreter runs, and numpy has read the inputs; imported_s: the engine's package
        is imported; ready_s: the model is loaded; first_s: the first outputs are there; steady_s:
        the first call is over that takes no longer than later ones
    cpu_s: what all threads used until the first outputs
    """

    inputs_s: float
    imported_s: float
    ready_s: float
    first_s: float
    steady_s: float
    cpu_s: float


MOMENTS = tuple(one.name for one in fields(Start))


@dataclass
class StartRow:
    """An engine on a model with some threads and some caches.

    caches: "empty" or "full"; "none" for an engine that keeps no files
    starts: one for each round
    reason: why it has none; apart: how its outputs differ from those with empty caches
    """

    model: str
    threads: int
    engine: str
    caches: str
    starts: list[Start] = field(default_factory=list)
    reason: str = ""
    apart: str = ""

    def median_s(self, moment: str) -> float:
        """Return the median of a moment over the rounds."""
        return float(statistics.median(getattr(start, moment) for start in self.starts))


def time_starts(match: PeerMatch, counts: Sequence[int]) -> list[StartRow]:
    """Return the rows of a model, for each number of threads."""
    match.refuse_and_convert()
    return [row for threads in counts for row in _rows(match, threads)]


def _rows(match: PeerMatch, threads: int) -> list[StartRow]:
    rows: dict[str, list[StartRow]] = {}
    for peer in match.peers:
        kinds = ("empty", "full") if peer.caches else ("none",)
        reason = match.runs[peer.name].reason
        made = [StartRow(match.model, threads, peer.name, kind, reason=reason) for kind in kinds]
        rows[peer.name] = made[:1] if reason else made
    for number in range(match.options.rounds):
        match.progress(f"{match.model}: {threads} threads, start", number, match.options.rounds)
        for peer in match.random.sample(match.peers, len(match.peers)):
            if not rows[peer.name][0].reason:
                _round(match, peer, rows[peer.name], f"start-{threads}-{number}")
    return [row for made in rows.values() for row in made]


def _round(match: PeerMatch, peer: Peer, rows: Sequence[StartRow], folder: str) -> None:
    """Start an engine once for each kind of caches; the first finds an empty folder."""
    first: Mapping[str, Array] | None = None
    for row in rows:
        try:
            start, outputs = _started(match, peer, row.threads, folder)
        except WorkerFailed as error:
            rows[0].reason = str(error)
            return
        row.starts.append(start)
        changed = [] if first is None else list(_changed(first, outputs))
        if changed:
            row.apart = f"output {changed[0]} differs from the one with empty caches"
        first = outputs


def _started(
    match: PeerMatch, peer: Peer, threads: int, folder: str
) -> tuple[Start, dict[str, Array]]:
    """Return the moments of a fresh process, and its outputs."""
    file = match.folder / f"{peer.name}-{folder}.npz"
    with ExitStack() as stack:
        process = match.start(peer, threads, stack, folder)
        answer = process.ask("load", LOAD_LIMIT_S, feeds=match.feeds)
        steady = process.ask("settle", TURN_LIMIT_S, seconds=SETTLE_S)["steady"]
        process.ask("save", TURN_LIMIT_S, to=str(file))
    moments = {**answer["moments"], "steady": steady}
    seconds = {f"{name}_s": moment - process.started for name, moment in moments.items()}
    return Start(**seconds, cpu_s=answer["cpu_s"]), load_arrays(file)


def _changed(before: Mapping[str, Array], after: Mapping[str, Array]) -> Iterator[str]:
    for name, array in before.items():
        if name not in after or array.tobytes() != after[name].tobytes():
            yield name


def starts_json(rows: Sequence[StartRow]) -> list[dict[str, Any]]:
    """Return the rows with the median of each moment, for JSON."""
    return [
        {**asdict(row), "median": {m: row.median_s(m) for m in MOMENTS} if row.starts else {}}
        for row in rows
    ]


def starts_table(rows: Sequence[StartRow]) -> str:
    """Return a line per engine and kind of caches: medians in ms, and below what went wrong."""
    head = ["model", "threads", "engine", "caches", *(f"{m[:-2]}, ms" for m in MOMENTS)]
    lines = [
        [
            PurePath(row.model).name,
            str(row.threads),
            row.engine,
            row.caches,
            *(f"{row.median_s(moment) * 1e3:.0f}" for moment in MOMENTS),
        ]
        for row in rows
        if row.starts
    ]
    notes = [
        f"* {row.engine}: {note} [{Path(row.model).name}]"
        for row in rows
        for note in (row.reason, row.apart)
        if note
    ]
    table = markdown_table(head, lines)
    return "\n\n".join([table, "\n".join(dict.fromkeys(notes))]) if notes else table
