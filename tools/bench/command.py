"""`trireme bench`: time models here and on other runtimes, side by side."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trireme.support.errors import ModelFileError, RunError
from trireme.tools.bench.match import PeerMatch
from trireme.tools.bench.modes import bench_modes, modes_table
from trireme.tools.bench.peers import PEERS, Peer
from trireme.tools.bench.report import report
from trireme.tools.bench.result import BenchRow, rows_from_json, rows_json, summarise
from trireme.tools.bench.singles import bench_singles, singles_table
from trireme.tools.bench.start import StartRow, starts_json, starts_table, time_starts
from trireme.tools.number_options import relative, seconds, whole
from trireme.tools.options import argument
from trireme.tools.output import emit
from trireme.tools.progress import Progress

ARGUMENTS = (
    argument("models", nargs="*", help="paths of .onnx or .tflite files"),
    argument(
        "--against",
        default=",".join(PEERS),
        metavar="NAMES",
        help="runtimes to compare with: a,b (default: all)",
    ),
    argument("--threads", default="1,2", metavar="1,2", help="numbers of threads (default: 1,2)"),
    argument(
        "--duration",
        type=seconds,
        default=2.0,
        metavar="SECONDS",
        help="time for each engine (default: 2)",
    ),
    argument(
        "--rounds",
        type=whole(),
        default=15,
        metavar="N",
        help="number of turns in that time (default: 15)",
    ),
    argument(
        "--round-s", type=seconds, metavar="SECONDS", help="time of a turn, instead of --duration"
    ),
    argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,224,224",
        help="shape of an input that the model leaves open",
    ),
    argument(
        "--python-ops",
        metavar="FILE",
        help="Python file whose dict python_ops has the Python operators of the model",
    ),
    argument("--batch", type=whole(), metavar="N", help="batch to run the model with"),
    argument(
        "--tolerance",
        type=relative,
        metavar="SHARE",
        help="largest allowed difference of floats, as a share of the largest value",
    ),
    argument("--units", type=whole(0), metavar="N", help="largest allowed difference of integers"),
    argument(
        "--limit-peers",
        choices=("avx2", "generic"),
        help="limit peers to an instruction set, where they allow it",
    ),
    argument(
        "--modes",
        action="store_true",
        help="compare the execution modes of one placement instead of peers",
    ),
    argument(
        "--singles",
        action="store_true",
        help="compare the placement on --devices with each device alone instead of peers",
    ),
    argument(
        "--start",
        action="store_true",
        help="compare the moments from the start of a process to its first result, with empty "
        "caches and with full ones",
    ),
    argument(
        "--from",
        dest="stored",
        nargs="+",
        default=[],
        metavar="FILE",
        help="print the pooled tables of earlier --json files",
    ),
)

OURSELVES_ALONE = {"modes": (bench_modes, modes_table), "singles": (bench_singles, singles_table)}
"""Comparisons without peers, by option: what measures, and what prints each model's rows."""


def bench(options: argparse.Namespace) -> int:
    """Time each model with each number of threads, and print the tables."""
    if bool(options.models) == bool(options.stored):
        raise RunError("bench takes model files to time, or --from with earlier --json files")
    for name, (timed, table) in OURSELVES_ALONE.items():
        if getattr(options, name):
            return _ourselves(options, name, timed, table)
    if options.start:
        return _starts(options)
    rows = _stored(options.stored) if options.stored else list(_measured(options))
    data = {
        "machine": machine(),
        "command": " ".join(["trireme", *sys.argv[1:]]),
        "rows": rows_json(rows),
        "summary": [vars(summary) for summary in summarise(rows)],
    }
    emit(options, data, report(rows))
    return 1 if any(run.apart for row in rows for run in row.engines.values()) else 0


def _ourselves(options: argparse.Namespace, name: str, timed: Any, table: Any) -> int:
    """Time programs of each model against each other, and print a table for each."""
    progress = Progress()
    found = list(timed(options, thread_counts(options.threads), progress))
    progress.done()
    data = {
        "machine": machine(),
        "command": " ".join(["trireme", *sys.argv[1:]]),
        name: [vars(row) for rows in found for row in rows],
    }
    emit(options, data, "\n\n".join(map(table, found)))
    return 0


def _starts(options: argparse.Namespace) -> int:
    """Time the start of every engine's process, and print a table."""
    counts, peers = thread_counts(options.threads), chosen_peers(options.against)
    progress = Progress()
    rows: list[StartRow] = []
    try:
        for model in options.models:
            with tempfile.TemporaryDirectory(prefix="trireme-bench-") as folder:
                match = PeerMatch(options, model, Path(folder), peers, progress)
                rows += time_starts(match, counts)
    finally:
        progress.done()
    data = {
        "machine": machine(),
        "command": " ".join(["trireme", *sys.argv[1:]]),
        "starts": starts_json(rows),
    }
    emit(options, data, starts_table(rows))
    return 1 if any(row.apart for row in rows) else 0


def _stored(files: Sequence[str]) -> list[BenchRow]:
    """Return the rows of earlier runs, those of the same model and threads pooled."""
    found: list[Mapping[str, Any]] = []
    for file in files:
        try:
            found += json.loads(Path(file).read_text())["rows"]
        except (ValueError, KeyError, TypeError) as error:
            raise ModelFileError(f"{file} is not what --json wrote: {error}") from error
    return rows_from_json(found)


def _measured(options: argparse.Namespace) -> Iterator[BenchRow]:
    counts, peers = thread_counts(options.threads), chosen_peers(options.against)
    progress = Progress()
    try:
        for model in options.models:
            with tempfile.TemporaryDirectory(prefix="trireme-bench-") as folder:
                yield from PeerMatch(options, model, Path(folder), peers, progress).rows(counts)
    finally:
        progress.done()


def thread_counts(text: str) -> list[int]:
    """Return the numbers of threads asked for.

    Errors: RunError, if one is not a number, or more than this process may use
    """
    given, most = [one.strip() for one in text.split(",")], len(os.sched_getaffinity(0))
    for one in given:
        if not one.isdigit() or not 1 <= int(one) <= most:
            raise RunError(f"--threads {text}: expected numbers from 1 to {most}, as in 1,2")
    return [int(one) for one in given]


def chosen_peers(text: str) -> list[Peer]:
    """Return the peers asked for.

    Errors: RunError, if one is not known
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise RunError(f"--against {name}: expected some of {','.join(PEERS)}")
    return [PEERS[name] for name in names]


def machine() -> dict[str, Any]:
    """Return what a reader must know of the machine."""
    name = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    return {
        "cpu": name,
        "cpus": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }
