"""The part `soak`: what grows, leaks or is dropped over time.

traffic: good clients, clients that break off or send no HTTP, and reloads of the model, for
`amount` seconds: every answer is that of one version, none is dropped, and memory, files and
threads stay
loads: sessions that are opened, run and closed in one process
kills: processes that are killed while they save a model and write caches
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lab import child_environment
from lab.stress import cache_crashes
from lab.stress.overload import Clients, StressedServer, missing_packages
from lab.stress.part import StressPart, StressRun
from lab.stress.rows import Figure, StressFailure, StressRow
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType
from trireme.model_file import dumps, save
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session

SHAPE = (4, 64)
CLIENTS = 4
RELOAD_S = 0.5
VERSIONS = 7
"""Factors that follow each other; an answer of up to half of them later is of a newer version."""
WARM_SHARE = 0.3
"""Share of the time after which growth counts."""
GROWTH_MIB = 1.0
"""Most growth an hour once warm; a short run may grow by as much in all."""
WARM_LOADS = 50
LOADS_MIB = 8.0
X = np.linspace(-1, 1, 256, dtype=np.float32).reshape(SHAPE)


def scaled(factor: float) -> Graph:
    """Return y = x * factor: one version of the model."""
    b = GraphBuilder("scaled")
    x = b.input("x", TensorType(SHAPE, "float32"))
    by = b.constant("by", np.array([factor], np.float32))
    return b.finish(b.add("mul", x, by, names=["y"]))


class CheckedClients(Clients):
    """Clients that see whether an answer is that of a version of the model."""

    def __init__(self, port: int, request: bytes) -> None:
        super().__init__(port, request)
        self.mismatches: list[str] = []
        self.versions: Counter[int] = Counter()
        self.switches, self._newest = 0, 1

    def take(self, content: bytes) -> None:
        """Take the body of an answer of status 200."""
        found = np.frombuffer(content[-X.nbytes :], np.float32)
        factor = round(float(found[-1]))
        self.versions[factor] += 1
        if 0 < (factor - self._newest) % VERSIONS <= VERSIONS // 2:
            self._newest = factor
            self.switches += 1
        if found.tobytes() != (X.reshape(-1) * np.float32(factor)).tobytes():
            self.mismatches.append(f"an answer of no version: {found[-4:]}")


async def _misbehave(port: int, request: bytes, ends_s: float, rng: random.Random) -> None:
    """Break off, send no HTTP, or send a body slowly, until a time."""
    while time.perf_counter() < ends_s:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            way = rng.randrange(4)
            part = request[: rng.randrange(1, len(request))] if way < 3 else b"\x00nonsense\r\n\r\n"
            writer.write(part)
            await asyncio.sleep(rng.uniform(0, 0.1))
            if way == 0:
                writer.transport.abort()
            elif way == 1:
                writer.write(request[len(part) :])  # and leave before the answer
            writer.close()
        except OSError:
            await asyncio.sleep(0.05)


async def _reload(folder: Path, ends_s: float) -> int:
    """Replace the model's file again and again; return how often."""
    count = 0
    while time.perf_counter() < ends_s:
        await asyncio.sleep(RELOAD_S)
        count += 1
        await asyncio.to_thread(save, scaled(float(count % VERSIONS + 1)), folder / "m.trm")
    return count


async def _traffic(
    server: StressedServer, folder: Path, seconds: float, seed: int
) -> tuple[CheckedClients, Mapping[int, int], list[str], list[Figure]]:
    request = _request()
    clients, rng = CheckedClients(server.port, request), random.Random(seed)
    began_s = time.perf_counter()
    ends_s = began_s + seconds
    samples: list[tuple[float, int, int, int]] = []

    async def sample() -> None:
        while time.perf_counter() < ends_s:
            now = time.perf_counter() - began_s
            kib, threads = server.status("VmRSS"), server.status("Threads")
            samples.append((now, kib, threads, server.open_files()))
            await asyncio.sleep(0.5)

    loading = asyncio.ensure_future(clients.closed_loop(seconds, CLIENTS))
    reloading = asyncio.ensure_future(_reload(folder, ends_s))
    bad = (_misbehave(server.port, request, ends_s, rng) for _ in range(2))
    await asyncio.gather(loading, reloading, sample(), *bad)
    load, reloads = loading.result(), reloading.result()
    clients.close()
    statuses = {status: len(all_s) for status, all_s in load.seconds.items()}
    figures = [
        Figure("reloads", reloads),
        Figure("switches seen", clients.switches),
        *_growth(samples, seconds),
    ]
    return clients, statuses, load.broken, figures


def _growth(samples: Sequence[tuple[float, int, int, int]], seconds: float) -> list[Figure]:
    """Return how memory, threads and files grew after the warm-up."""
    warm = np.array([one for one in samples if one[0] > WARM_SHARE * seconds], float)
    half = len(warm) // 2
    early, late = np.median(warm[:half], axis=0), np.median(warm[half:], axis=0)
    mib = float(late[1] - early[1]) / 1024
    an_hour = mib / max(float(late[0] - early[0]), 1.0) * 3600
    is_long = seconds >= 3000
    return [
        Figure("memory grown", mib, "MiB", None if is_long else GROWTH_MIB),
        Figure("memory grown", an_hour, "MiB an hour", GROWTH_MIB if is_long else None),
        Figure("threads grown", float(late[2] - early[2]), "", 1.0),
        Figure("files grown", float(late[3] - early[3]), "", 4.0),
    ]


def _request() -> bytes:
    head = (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[4,64],'
        b'"parameters":{"binary_data_size":1024}}],"parameters":{"binary_data_output":true}}'
    )
    lines = [
        "POST /v2/models/m/infer HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(head) + X.nbytes}",
        f"Inference-Header-Content-Length: {len(head)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + head + X.tobytes()


def traffic(asked: StressRun) -> StressRow:
    """Serve for `amount` seconds while the model's file changes."""
    if missing := missing_packages():
        return asked.skipped(missing)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(scaled(1.0), folder / "m.trm")
        server = StressedServer(str(folder))
        try:
            clients, statuses, broken, figures = asyncio.run(
                _traffic(server, folder, float(asked.amount), asked.seed)
            )
        finally:
            trouble = server.close()
    failures = list[StressFailure]()
    for kind, texts in (("wrong", clients.mismatches), ("dropped", broken)):
        failures += [asked.failure(at, kind, text) for at, text in enumerate(texts)]
    if set(statuses) - {200}:
        failures.append(asked.failure(0, "dropped", f"answers by status: {statuses}"))
    if trouble:
        failures.append(asked.failure(0, "exit", trouble))
    ends = {str(status): count for status, count in statuses.items()}
    return asked.row(cases=sum(ends.values()), ends=ends, figures=figures, failures=failures)


def loads(asked: StressRun) -> StressRow:
    """Open, run and close sessions in this process; memory, threads and files stay."""
    data, failures = [dumps(scaled(float(n))) for n in range(1, 8)], list[StressFailure]()
    how = ExecutionOptions(model_cache=None)
    before = (0, 0, 0)
    for number in range(asked.amount):
        if number == min(WARM_LOADS, asked.amount // 2):
            before = _held()
        with Session(data[number % 7], threads=1, execution_options=how) as session:
            found = session.run({"x": X})["y"]
        if found.tobytes() != (X * np.float32(number % 7 + 1)).tobytes():
            failures.append(asked.failure(number, "wrong", "another model's result"))
        asked.tell(number, asked.amount)
    grown = [late - early for late, early in zip(_held(), before, strict=True)]
    figures = [
        Figure("memory grown", grown[0] / 1024, "MiB", LOADS_MIB),
        Figure("threads grown", grown[1], "", 0.0),
        Figure("files grown", grown[2], "", 0.0),
    ]
    return asked.row(
        cases=asked.amount, ends={"ran": asked.amount}, figures=figures, failures=failures
    )


def _held() -> tuple[int, int, int]:
    """Return resident KiB, threads and open files of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024, threading.active_count(), files


def kills(asked: StressRun) -> StressRow:
    """Kill `amount` children; the next open succeeds and nothing is left behind."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", cache_crashes.__name__, "kill", folder, str(asked.seed)]
        done = subprocess.run(
            [sys.executable, *command, str(asked.amount)],
            capture_output=True,
            text=True,
            env=child_environment(),
        )
    if done.returncode:
        return asked.row(failures=[asked.failure(0, "wrong", done.stderr)])
    told = json.loads(done.stdout)
    left = [asked.failure(0, "left", name) for name in told["left"]]
    ends = {"killed": told["killed"], "ended before": told["cases"] - told["killed"]}
    return asked.row(cases=told["cases"], ends=ends, failures=left)


def run(asked: StressRun) -> StressRow:
    """Run one subject."""
    return {"traffic": traffic, "loads": loads, "kills": kills}[asked.subject](asked)


PART = StressPart(
    "reloads under traffic with clients that misbehave; many loads and unloads; kills",
    ("traffic", "loads", "kills"),
    "seconds, loads, kills",
    {
        "traffic": {"change": 20, "night": 600, "release": 3_600},
        "loads": {"change": 200, "night": 2_000, "release": 10_000},
        "kills": {"change": 10, "night": 200, "release": 1_000},
    },
    run,
)
