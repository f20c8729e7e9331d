"""The part `overload`: an open loop against a server in a process of its own.

Requests come at random times, whatever becomes of others, three times as many as the server can
answer. A closed loop before and after measures what it can answer. The sender holds a bounded
number of connections; a request that finds none free is not sent, and is counted.

sleep: runs take a known time and no processor, so the figures are the server's own
model: the caller's first model
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from lab import child_environment
from lab.stress.part import StressPart, StressRun
from lab.stress.rows import Figure, StressFailure, StressRow
from trireme.ir.bind_shapes import example_shape
from trireme.ir.graph import UNKNOWN
from trireme.support.dtypes import numpy_dtype
from trireme.support.errors import RunError

SERVICE_S = 0.02
MAX_QUEUE = 16
TIMES = 3
CONNECTIONS = 64
TIMEOUT_S = 60.0
MOST_IDLE_S = 30.0
"""A connection that was idle for longer is not used again: the server closes it after 75 s."""
END_S = 180.0
WARM_S = 5.0
MEASURE_S = 5.0
REFUSAL_S = 0.05
GOODPUT = 0.9
GROWTH = 0.05
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Load:
    """What became of the requests of a loop: seconds by status.

    unsent: requests for which no connection was free; late_s: the most that one was sent too late
    """

    took_s: float = 0.0
    seconds: dict[int, list[float]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    unsent: int = 0
    late_s: float = 0.0

    def per_s(self, status: int = 200) -> float:
        """Answers of a status a second."""
        return len(self.seconds.get(status, [])) / self.took_s

    def percentile_s(self, percent: float, status: int = 200) -> float:
        """Seconds that so many of a hundred answers keep to."""
        return float(np.percentile(self.seconds.get(status) or [0.0], percent))


class Clients:
    """Connections to a server that requests share; at most CONNECTIONS."""

    def __init__(self, port: int, request: bytes) -> None:
        self._port, self._request = port, request
        self._free: list[tuple[Stream, float]] = []
        self._held = 0

    async def ask(self, load: Load) -> None:
        """Send one request and note what became of it."""
        if self._held >= CONNECTIONS:
            load.unsent += 1
            return
        self._held += 1
        began_s = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await self._ask()
        except (OSError, EOFError, TimeoutError) as error:
            load.broken.append(repr(error))
        else:
            load.seconds.setdefault(status, []).append(time.perf_counter() - began_s)
        finally:
            self._held -= 1

    async def _ask(self) -> int:
        self._close_idle()
        if self._free:
            (reader, writer), _ = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = re.search(rb"(?i)content-length: (\d+)", head)
        content = await reader.readexactly(int(length[1])) if length else b""
        if status == 200:
            self.take(content)
        if length and b"connection: close" not in head.lower():
            self._free.append(((reader, writer), time.perf_counter()))
        else:
            writer.close()
        return status

    def take(self, content: bytes) -> None:
        """Take the body of an answer of status 200."""

    async def closed_loop(self, seconds: float, clients: int = 4) -> Load:
        """Send a request when the one before is answered, on each of some clients."""
        load, began_s = Load(), time.perf_counter()

        async def client() -> None:
            while time.perf_counter() < began_s + seconds:
                await self.ask(load)

        await asyncio.gather(*(client() for _ in range(clients)))
        load.took_s = time.perf_counter() - began_s
        return load

    async def open_loop(self, seconds: float, per_s: float, seed: int) -> Load:
        """Send requests at random times, so many a second in the mean."""
        load, rng = Load(), np.random.default_rng(seed)
        began_s, at_s = time.perf_counter(), 0.0
        under_way: set[asyncio.Future[None]] = set()
        while at_s < seconds:
            at_s += float(rng.exponential(1 / per_s))
            wait_s = began_s + at_s - time.perf_counter()
            load.late_s = max(load.late_s, -wait_s)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            asking = asyncio.ensure_future(self.ask(load))
            under_way.add(asking)
            asking.add_done_callback(under_way.discard)
        load.took_s = time.perf_counter() - began_s
        await asyncio.gather(*under_way)
        return load

    def _close_idle(self) -> None:
        """Close connections that were free for long; the first in the list was for longest."""
        while self._free and time.perf_counter() - self._free[0][1] > MOST_IDLE_S:
            (_, writer), _ = self._free.pop(0)
            writer.close()

    def close(self) -> None:
        """Close the connections."""
        for (_, writer), _ in self._free:
            writer.close()


class StressedServer:
    """A server of one model in a process of its own, on a free port of this machine."""

    def __init__(self, model: str) -> None:
        command = ["-m", "lab.stress.slow_server", model, str(MAX_QUEUE)]
        self.process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, env=child_environment()
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def status(self, what: str) -> int:
        """Return a number of the process from /proc: VmRSS in KiB, Threads."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{what}:\s+(\d+)", text)
        return int(found[1]) if found else 0

    def open_files(self) -> int:
        """Return how many file descriptors the process has open."""
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def close(self) -> str:
        """End the server; return what is wrong with its end, or nothing.

        A server of low priority on a busy machine takes a minute for the second that it needs.
        """
        self.process.terminate()
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"the server had not ended after {END_S} s"
        return f"the server ended with {code}" if code else ""


def request_for(port: int) -> bytes:
    """Return an infer request, in binary form, for the model m; open sizes are usual ones."""
    from trireme.serving.protocol import DATATYPES

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/m") as answer:
        told = json.load(answer)
    rows, raw = [], b""
    for one in told["inputs"]:
        shape = example_shape([dim if dim >= 0 else UNKNOWN for dim in one["shape"]])
        data = np.ones(shape, numpy_dtype(DATATYPES[one["datatype"]])).tobytes()
        rows.append({**one, "shape": shape, "parameters": {"binary_data_size": len(data)}})
        raw += data
    head = json.dumps({"inputs": rows, "parameters": {"binary_data_output": True}}).encode()
    lines = [
        "POST /v2/models/m/infer HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(head) + len(raw)}",
        f"Inference-Header-Content-Length: {len(head)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + head + raw


async def overload(server: StressedServer, seconds: float, seed: int) -> tuple[Load, list[Figure]]:
    """Return an overload and its figures: capacity before and after, goodput, times, memory.

    Errors: RunError, if the model takes no request
    """
    clients = Clients(server.port, request_for(server.port))
    await clients.closed_loop(WARM_S)
    capacity = await clients.closed_loop(MEASURE_S)
    if not capacity.per_s():
        ends = {status: len(all_s) for status, all_s in capacity.seconds.items()}
        raise RunError(
            "the server answered no request",
            facts=[f"answers by status: {ends}", *capacity.broken[:1]],
            fix="give a model that takes ones of usual sizes, or whose shapes are fixed",
        )
    await clients.open_loop(WARM_S, TIMES * capacity.per_s(), seed + 1)
    rss = server.status("VmRSS")
    load = await clients.open_loop(seconds, TIMES * capacity.per_s(), seed)
    grown = server.status("VmRSS") / rss - 1
    await asyncio.sleep(1)
    after = await clients.closed_loop(MEASURE_S)
    clients.close()
    mean = (capacity.per_s() + after.per_s()) / 2
    return load, [
        Figure("capacity", mean, "/s"),
        Figure("sent", load.per_s() + load.per_s(429), "/s"),
        Figure("goodput of capacity", load.per_s() / mean, "", GOODPUT, "least"),
        Figure("p99 of admitted", load.percentile_s(99), "s", (MAX_QUEUE + 2) / mean),
        Figure("p50 of refusals", load.percentile_s(50, 429), "s"),
        Figure("p99 of refusals", load.percentile_s(99, 429), "s", REFUSAL_S),
        Figure("memory grown", grown, "", GROWTH),
        Figure("capacity after", after.per_s() / capacity.per_s(), "of before"),
        Figure("unsent", load.unsent, "requests"),
        Figure("sent late by", load.late_s, "s"),
    ]


def missing_packages() -> str:
    """Say which package a server lacks; "" where it has all."""
    missing = [name for name in ("uvicorn", "starlette") if find_spec(name) is None]
    return f"{missing[0]} is not installed: the extra 'serve'" if missing else ""


def run(asked: StressRun) -> StressRow:
    """Overload a server for `amount` seconds."""
    if asked.subject == "model" and not asked.models:
        return asked.skipped("it needs a MODEL")
    if missing := missing_packages():
        return asked.skipped(missing)
    model = str(SERVICE_S) if asked.subject == "sleep" else str(asked.models[0])
    server = StressedServer(model)
    try:
        load, figures = asyncio.run(overload(server, float(asked.amount), asked.seed))
    finally:
        trouble = server.close()
    ends = Counter({str(status): len(times) for status, times in load.seconds.items()})
    failures = list[StressFailure]()
    for number, why in enumerate(load.broken):
        failures.append(asked.failure(number, "broken", why))
    if wrong := {status for status in load.seconds if status not in (200, 429)}:
        failures.append(asked.failure(0, "status", f"answers of status {sorted(wrong)}"))
    if trouble:
        failures.append(asked.failure(0, "exit", trouble))
    return asked.row(cases=ends.total(), ends=ends, figures=figures, failures=failures)


PART = StressPart(
    "three times the load that a server can answer, at random times",
    ("sleep", "model"),
    "seconds",
    {"": {"change": 20, "night": 120, "release": 600}},
    run,
)
