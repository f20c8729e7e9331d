"""An open loop against `trireme serve`: requests come at their times, whatever becomes of others.

    python tests/support/overload.py [MODEL.onnx] --seconds 600 --times 3

Measures the capacity with a closed loop, then sends `times` as much at random times. Prints what
was answered and refused, how soon, and the memory of the server.
"""

import argparse
import asyncio
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

import numpy as np

TIMEOUT_S = 60


@dataclass
class Load:
    """What became of the requests of a loop: seconds by status, those without an answer apart."""

    took_s: float = 0.0
    seconds: dict[int, list[float]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    late_s: float = 0.0

    def per_s(self, status=200):
        """Answers of a status a second."""
        return len(self.seconds.get(status, [])) / self.took_s

    def percentile_s(self, percent, status=200):
        """Seconds that so many of a hundred answers keep to."""
        return float(np.percentile(self.seconds.get(status) or [0.0], percent))


class Clients:
    """Connections to a server that requests share; one is opened where none is free."""

    def __init__(self, port, request):
        self._port, self._request, self._free = port, request, []

    async def ask(self, load):
        """Send one request and note what became of it."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await self._ask()
        except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError) as error:
            load.broken.append(repr(error))
        else:
            load.seconds.setdefault(status, []).append(time.perf_counter() - began)

    async def _ask(self):
        reader, writer = (
            self._free.pop()
            if self._free
            else await asyncio.open_connection("127.0.0.1", self._port)
        )
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if length:
            await reader.readexactly(int(length[1]))
        if length and b"connection: close" not in head.lower():
            self._free.append((reader, writer))
        else:
            writer.close()
        return status

    async def closed_loop(self, seconds, clients=8):
        """Send a request when the one before is answered, on each of some clients."""
        load, ends = Load(), time.perf_counter() + seconds
        began = time.perf_counter()

        async def client():
            while time.perf_counter() < ends:
                await self.ask(load)

        await asyncio.gather(*(client() for _ in range(clients)))
        load.took_s = time.perf_counter() - began
        return load

    async def open_loop(self, seconds, per_s, seed=0):
        """Send requests at random times, so many a second in the mean."""
        load, rng = Load(), np.random.default_rng(seed)
        began = time.perf_counter()
        at, under_way = 0.0, set()
        while at < seconds:
            at += float(rng.exponential(1 / per_s))
            wait_s = began + at - time.perf_counter()
            load.late_s = max(load.late_s, -wait_s)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.ensure_future(self.ask(load))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        load.took_s = time.perf_counter() - began
        await asyncio.gather(*under_way)
        return load

    def close(self):
        """Close the connections."""
        for _, writer in self._free:
            writer.close()


class Served:
    """A server in a process of its own."""

    def __init__(self, model, max_queue=16, batching=""):
        self._folder = tempfile.TemporaryDirectory()
        config = pathlib.Path(self._folder.name) / "serve.toml"
        config.write_text(
            f"[server]\nhttp = 0\n[limits]\nmax_queue = {max_queue}\n"
            f'[models.m]\npath = "{pathlib.Path(model).resolve()}"\n{batching}'
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trireme", "serve", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                return
        raise RuntimeError("".join(self.lines))

    def rss_bytes(self):
        """Memory of the server that is resident."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) << 10

    def close(self):
        """End the server; return its exit status."""
        self.process.terminate()
        code = self.process.wait(30)
        self._folder.cleanup()
        return code


def request_for(port):
    """Return an infer request, in binary form, for the model m with open dimensions 1."""
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/m") as answer:
        told = json.load(answer)
    kinds = {"FP32": np.float32, "INT64": np.int64, "INT32": np.int32, "UINT8": np.uint8}
    rows, raw = [], b""
    for one in told["inputs"]:
        shape = [max(1, dim) for dim in one["shape"]]
        data = np.ones(shape, kinds[one["datatype"]]).tobytes()
        size = {"binary_data_size": len(data)}
        rows.append({**one, "shape": shape, "parameters": size})
        raw += data
    head = json.dumps({"inputs": rows, "parameters": {"binary_data_output": True}}).encode()
    lines = [
        "POST /v2/models/m/infer HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(head) + len(raw)}",
        f"Inference-Header-Content-Length: {len(head)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + head + raw


async def overload(served, seconds, times, calm_s=5.0, max_queue=16):
    """Return the figures of an overload: capacity before, the overload, and after it."""
    clients = Clients(served.port, request_for(served.port))
    await clients.closed_loop(calm_s / 2)
    capacity = await clients.closed_loop(calm_s)
    await clients.open_loop(min(5.0, calm_s), times * capacity.per_s(), seed=1)
    rss = served.rss_bytes()
    load = await clients.open_loop(seconds, times * capacity.per_s())
    rss_after = served.rss_bytes()
    await asyncio.sleep(1)
    after = await clients.closed_loop(calm_s)
    clients.close()
    mean = (capacity.per_s() + after.per_s()) / 2
    return {
        "capacity_per_s": capacity.per_s(),
        "capacity_after": after.per_s() / capacity.per_s(),
        "sent": sum(map(len, load.seconds.values())) + len(load.broken),
        "statuses": {status: len(all_s) for status, all_s in load.seconds.items()},
        "broken": len(load.broken),
        "why_broken": sorted(set(load.broken))[:3],
        "goodput": load.per_s() / mean,
        "p99_of_admitted_s": load.percentile_s(99),
        "bound_s": (max_queue + 4) / capacity.per_s(),
        "p50_of_refusals_s": load.percentile_s(50, 429),
        "p99_of_refusals_s": load.percentile_s(99, 429),
        "longest_refusal_s": load.percentile_s(100, 429),
        "sender_was_late_s": load.late_s,
        "memory": rss_after / rss,
        "memory_mib": rss_after / (1 << 20),
    }


def main():
    """Print the figures of an overload."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--times", type=float, default=3)
    parser.add_argument("--max-queue", type=int, default=16)
    options = parser.parse_args()
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    served = Served(options.model, options.max_queue)
    try:
        run = overload(served, options.seconds, options.times, max_queue=options.max_queue)
        for name, value in asyncio.run(run).items():
            print(f"{name:22} {value:.4g}" if isinstance(value, float) else f"{name:22} {value}")
    finally:
        print("exit status", served.close())


if __name__ == "__main__":
    main()
