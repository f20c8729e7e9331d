"""`trireme bench`: time models here and on ONNX Runtime or LiteRT, round by round in one process.

The machine may be shared and noisy, so what counts is the ratio within a round: each engine runs
for a moment in turn, the best of its moment is kept, and the median of the ratios is printed. The
peer's idle threads do not spin in our turn, nor ours in its.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trireme.dtypes import Array
from trireme.tools.commands import emit
from trireme.tools.options import Progress, make_feeds, open_session
from trireme.tools.peers import peer_of, timed_peer


@dataclass(frozen=True)
class Row:
    """One model with one number of threads; seconds are bests over all rounds.

    ratio: median over rounds of the peer's best over ours; above 1 we are faster
    """

    model: str
    threads: int
    peer: str
    ours_s: float
    peer_s: float
    ratio: float
    reference_nodes: int


def bench(options: argparse.Namespace) -> int:
    """Time each model with each number of threads, and print the table."""
    progress = Progress()
    rows = []
    for model in options.models:
        for threads in (int(n) for n in options.thread_counts.split(",")):
            progress(f"{model} with {threads} threads")
            rows.append(_row(options, model, threads))
    progress.done()
    emit(options, {"rows": [vars(row) for row in rows]}, table(rows))
    return 0


def _row(options: argparse.Namespace, model: str, threads: int) -> Row:
    peer = peer_of(model)
    with open_session(
        argparse.Namespace(**{**vars(options), "threads": threads}), model
    ) as session:
        feeds = make_feeds(options, session.inputs)
        theirs = timed_peer(model, feeds, threads)
        rounds = _rounds(lambda: session.run(feeds), theirs, options.rounds, options.round_s)
        placed = session.placement
        references = sum(bool(c.notes.get(c.device)) for c in placed.choices.values())
    ours, others = zip(*rounds, strict=True)
    ratio = statistics.median(b / a for a, b in rounds)
    return Row(model, threads, peer, min(ours), min(others), ratio, references)


def _rounds(
    ours: Callable[[], Mapping[str, Array]], theirs: Callable[[], Any], rounds: int, round_s: float
) -> list[tuple[float, float]]:
    for _ in range(3):
        ours(), theirs()
    return [(_best(ours, round_s), _best(theirs, round_s)) for _ in range(rounds)]


def _best(call: Callable[[], Any], seconds: float) -> float:
    """Return the shortest call within a moment of at least three calls."""
    best, started, count = float("inf"), time.perf_counter(), 0
    while count < 3 or time.perf_counter() - started < seconds:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        count += 1
    return best


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| model | threads | ours, ms | peer, ms | peer | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        name = row.model.replace("\\", "/").rsplit("/", 1)[-1]
        note = f" ({row.reference_nodes} nodes on numpy)" if row.reference_nodes else ""
        lines.append(
            f"| {name}{note} | {row.threads} | {row.ours_s * 1e3:.3f} | {row.peer_s * 1e3:.3f} "
            f"| {row.peer} | {row.ratio:.2f} |"
        )
    return "\n".join(lines)
