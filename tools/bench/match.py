"""One model on this engine and on its peers: processes that load it, agree on it and take turns.

Every engine has a process of its own (`worker.py`), pinned to as many CPUs as it has threads.
The machine may be shared and noisy, so engines take turns, in fresh random order each round: one
runs for a moment while the others sleep in a read of their pipes, and the next starts when the
last one's threads have stopped spinning. No engine's own setting is touched for that. What counts
is the ratio within a round; the median of those is printed beside the ratio of medians.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trireme.ir.bind_shapes import with_known_sizes
from trireme.model_file.branches import convert_at
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.support.timing import Turn, interleave
from trireme.support.user_files import calibration_file
from trireme.tools.bench.agree import judge, load_arrays, save_arrays, tolerance_of
from trireme.tools.bench.model import set_batch
from trireme.tools.bench.peers import OURSELVES, Peer
from trireme.tools.bench.process import WorkerFailed, WorkerProcess
from trireme.tools.bench.result import BenchRow, EngineRun, thin
from trireme.tools.feeds import make_feeds
from trireme.tools.parsed import execution_fields, parse_shapes, placement_fields, session_arguments
from trireme.tools.progress import Progress
from trireme.tools.python_ops import python_ops

LOAD_LIMIT_S = 600.0
TURN_LIMIT_S = 60.0


@dataclass
class PeerEntrant:
    """An engine that takes part: its process, and what has been found out about it."""

    peer: Peer
    process: WorkerProcess
    run: EngineRun
    idle_s: float = 0.0
    others_s: float = 0.0


class PeerMatch:
    """One model on all engines: its inputs and converted files lie in a temporary folder."""

    def __init__(
        self,
        options: argparse.Namespace,
        model: str,
        folder: Path,
        peers: Sequence[Peer],
        progress: Progress,
    ) -> None:
        self.options, self.model, self.folder = options, model, folder
        self.progress = progress
        given = argparse.Namespace(**{**vars(options), "threads": None})
        self.session = {
            **session_arguments(given),
            "placement_options": _beside_defaults(placement_fields(given), PlacementOptions()),
            "execution_options": _beside_defaults(execution_fields(given), ExecutionOptions()),
        }
        self.calibration = str(calibration_file() or "")
        self.peers = [OURSELVES, *peers]
        self.random = random.Random(options.seed)
        self.runs = {peer.name: EngineRun(peer.name) for peer in self.peers}
        plain, batched = os.path.abspath(model), os.path.abspath(model)
        if options.batch:
            batched = set_batch(plain, options.batch, folder / Path(model).name)
        self.files = {peer.name: batched if peer.batches else plain for peer in self.peers}
        shapes, functions = parse_shapes(options.shape) or None, python_ops(options)
        graph = convert_at(batched, shapes, python_ops=functions)
        self.tolerance = tolerance_of(graph, options.tolerance, options.units)
        feeds = make_feeds(options, with_known_sizes(graph))
        self.feeds = str(self.folder / "feeds.npz")
        save_arrays(Path(self.feeds), feeds)

    def rows(self, counts: Sequence[int]) -> Iterator[BenchRow]:
        """Yield a row for each number of threads; engines load without caches for the first."""
        self.refuse_and_convert()
        for position, threads in enumerate(counts):
            yield self._row(threads, cold=position == 0)

    def refuse_and_convert(self) -> None:
        """Note which engines cannot run the model, and have converters make files for the rest."""
        for peer in self.peers:
            run = self.runs[peer.name]
            run.reason = peer.refusal(self.model) or peer.absent_reason()
            if run.reason or not peer.converts:
                continue
            self.progress(f"{self.model}: {peer.name}'s converter")
            folder = self.folder / f"{peer.name}-files"
            folder.mkdir()
            try:
                with ExitStack() as stack:
                    process = self.start(peer, 1, stack)
                    answer = process.ask("convert", LOAD_LIMIT_S, folder=str(folder))
            except WorkerFailed as error:
                run.reason = f"its converter failed: {error}"
                continue
            self.files[peer.name], run.convert_s = answer["model"], answer["seconds"]

    def start(
        self, peer: Peer, threads: int, stack: ExitStack, folder: str = "cache"
    ) -> WorkerProcess:
        """Return a process of an engine, whose caches lie in a folder of this name."""
        cache = self.folder / f"{peer.name}-{folder}"
        cache.mkdir(mode=0o700, exist_ok=True)
        task = {
            "file": str(peer.file),
            "module": peer.module,
            "model": self.files[peer.name],
            "threads": threads,
            "cpus": sorted(os.sched_getaffinity(0))[-threads:],
            "cache": str(cache),
            "session": self.session,
            "python_ops": self.options.python_ops and os.path.abspath(self.options.python_ops),
        }
        limits = dict(peer.limits.get(self.options.limit_peers or "", {}))
        if peer is OURSELVES:
            limits |= {"XDG_CACHE_HOME": str(cache), "TRIREME_CALIBRATION": self.calibration}
        process = WorkerProcess(peer.name, task, limits)
        stack.callback(process.close)
        return process

    def _row(self, threads: int, cold: bool) -> BenchRow:
        row = BenchRow(self.model, threads, {n: _fresh(run) for n, run in self.runs.items()})
        with ExitStack() as stack:
            entrants = []
            for peer in self.peers:
                run = row.engines[peer.name]
                if run.reason:
                    continue
                try:
                    process = self._load(peer, threads, run, stack, cold)
                except WorkerFailed as error:
                    run.reason = str(error)
                    continue
                entrants.append(PeerEntrant(peer, process, run))
            self._compare(entrants)
            self._rounds(entrants, threads)
            for entrant in entrants:
                self._finish(entrant)
        return row

    def _load(
        self, peer: Peer, threads: int, run: EngineRun, stack: ExitStack, cold: bool
    ) -> WorkerProcess:
        """Return a loaded process; before it, where asked, one that finds no caches."""
        feeds = self.feeds
        if cold:
            self.progress(f"{self.model}: {peer.name} loads, {threads} threads")
            with ExitStack() as short:
                answer = self.start(peer, threads, short).ask("load", LOAD_LIMIT_S, feeds=feeds)
            run.load_s, run.first_s = answer["load_s"], answer["first_s"]
            run.cold_peak_bytes = answer["peak_bytes"]
        self.progress(f"{self.model}: {peer.name} loads again, {threads} threads")
        process = self.start(peer, threads, stack)
        answer = process.ask("load", LOAD_LIMIT_S, feeds=feeds)
        run.import_s, run.imported_bytes = answer["import_s"], answer["imported_bytes"]
        run.warm_load_s, run.warm_first_s = answer["load_s"], answer["first_s"]
        process.choose_executor()
        return process

    def _limit_notes(self, peer: Peer) -> list[str]:
        limit = self.options.limit_peers
        if not limit or peer is OURSELVES:
            return []
        return [f"limited to {limit}" if limit in peer.limits else f"cannot be limited to {limit}"]

    def _compare(self, entrants: Sequence[PeerEntrant]) -> None:
        outputs = {}
        for entrant in entrants:
            file = self.folder / f"{entrant.peer.name}.npz"
            try:
                entrant.process.ask("save", TURN_LIMIT_S, to=str(file))
            except WorkerFailed as error:
                entrant.run.reason = str(error)
                continue
            outputs[entrant.peer.name] = load_arrays(file)
        for name, (apart, largest) in judge(outputs, self.tolerance).items():
            run = next(e.run for e in entrants if e.peer.name == name)
            run.apart, run.largest = apart, largest

    def _rounds(self, entrants: Sequence[PeerEntrant], threads: int) -> None:
        """Let every engine have its turns; the first round warms up and is not counted."""
        rounds = self.options.rounds
        turn_s = self.options.round_s or self.options.duration / rounds
        progress = partial(self.progress, f"{self.model}: {threads} threads, round")
        for turn in interleave(entrants, rounds, self.random, progress):
            if not turn.entrant.run.reason:
                others = [e for e in entrants if e is not turn.entrant and not e.run.reason]
                self._turn(turn, others, turn_s)

    def _turn(self, turn: Turn[PeerEntrant], others: Sequence[PeerEntrant], turn_s: float) -> None:
        """Let an engine run for a while, and see what the others burn meanwhile."""
        entrant = turn.entrant
        before = [other.process.cpu_s() for other in others]
        start = time.perf_counter()
        try:
            answer = entrant.process.ask("turn", TURN_LIMIT_S + turn_s, seconds=turn_s)
        except WorkerFailed as error:
            entrant.run.reason = str(error)
            return
        took = time.perf_counter() - start
        for other, cpu_s in zip(others, before, strict=True):
            other.idle_s += max(0.0, other.process.cpu_s() - cpu_s)
            other.others_s += took
        if turn.counts:
            entrant.run.rounds.append(thin(answer["times_ns"]))
        entrant.process.choose_executor()

    def _finish(self, entrant: PeerEntrant) -> None:
        run = entrant.run
        if run.reason:
            return
        if entrant.others_s:
            run.idle_share = entrant.idle_s / entrant.others_s
        try:
            run.peak_bytes = entrant.process.ask("memory", TURN_LIMIT_S)["peak_bytes"]
            run.facts = entrant.process.ask("facts", LOAD_LIMIT_S)["facts"]
            run.facts["notes"] = [*run.facts.get("notes", []), *self._limit_notes(entrant.peer)]
        except WorkerFailed as error:
            run.reason = str(error)


def _beside_defaults(fields: Mapping[str, Any], defaults: object) -> dict[str, Any]:
    """Return the fields of options that are not the defaults; none is None and empty there."""
    return {name: v for name, v in fields.items() if v and v != getattr(defaults, name)}


def _fresh(run: EngineRun) -> EngineRun:
    return EngineRun(run.engine, run.reason, run.convert_s)
