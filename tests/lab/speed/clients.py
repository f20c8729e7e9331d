"""Time one session under many clients beside its peers: requests a second, p99, CPU a request.

    python -m lab.speed.clients mobilenet_v2.onnx --clients 1 8 32
    python -m lab.speed.clients bert.onnx --shape "ids=batch<=8,seq<=512" \
        --sizes batch=1 seq=16,32,64,128

Closed loops: every client is a thread that sends its next request when it has the last answer.
Engines take turns, round after round, in one process, and a row is the median of its rounds. Feeds
are drawn with a seed. CPU a request is the process's, of all threads, and holds on a busy machine.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.speed.peers import has_openvino, onnx_session, openvino_model
from trireme.runtime.session.session import Session
from trireme.tools.parsed import parse_shapes

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], object]
SEED = 20261124


@dataclass(frozen=True)
class Load:
    """What a closed loop measured."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


def engines(model: str, shapes: Mapping, threads: int, contexts: int | None) -> dict[str, Run]:
    """Return what runs the model, on ours and on each peer that is installed."""
    session = Session(model, shapes=shapes or None, threads=threads, contexts=contexts)
    found: dict[str, Run] = {"trireme": session.run}
    for intra in dict.fromkeys((1, threads)):
        ort = onnx_session(model, intra)
        found[f"onnxruntime, {intra} threads a call"] = lambda feeds, ort=ort: ort.run(None, feeds)
    if not has_openvino():
        return found
    import openvino

    compiled = openvino_model(model, threads, "THROUGHPUT")
    queue = openvino.AsyncInferQueue(compiled)  # as many requests as it finds best
    queue.set_callback(lambda request, done: done.release())
    putting = threading.Lock()

    def run(feeds: Feeds) -> None:
        done = threading.Lock()
        done.acquire()
        with putting:  # one thread at a time may start one
            queue.start_async(feeds, done)
        done.acquire()

    found["openvino, throughput"] = run
    return found


def closed_loop(run: Run, feeds: Sequence[Feeds], clients: int, seconds: float) -> Load:
    """Return what so many clients measured in so many seconds."""
    times: list[list[float]] = [[] for _ in range(clients)]
    start = threading.Barrier(clients + 1)
    end = [0.0]

    def client(number: int) -> None:
        rng, mine = random.Random(SEED + number), times[number]
        start.wait()
        while (begun := time.perf_counter()) < end[0]:
            run(rng.choice(feeds))
            mine.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    begun, cpu = time.perf_counter(), time.process_time()
    end[0] = begun + seconds
    start.wait()
    for thread in threads:
        thread.join()
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    seen = sorted(one for mine in times for one in mine)
    count = len(seen)
    return Load(
        count / wall,
        seen[count // 2] * 1e3,
        seen[min(count - 1, count * 99 // 100)] * 1e3,
        cpu / count * 1e3,
    )


def drawn_feeds(model: str, sizes: Mapping[str, Sequence[int]], shapes: Mapping) -> list[Feeds]:
    """Return feeds at all of the sizes, 16 of them or more."""
    rng, draw = random.Random(SEED), np.random.default_rng(SEED)
    with Session(model, shapes=shapes or None) as session:
        inputs = session.inputs
    made = []
    for _ in range(16 if sizes else 4):
        at = {name: rng.choice(list(some)) for name, some in sizes.items()}
        feeds = {}
        for value in inputs:
            shape = [dim if isinstance(dim, int) else at[dim] for dim in value.type.shape]
            if value.dtype.startswith("int"):
                feeds[value.name] = draw.integers(0, 2, shape).astype(value.dtype)
            else:
                feeds[value.name] = draw.standard_normal(shape).astype(value.dtype)
        made.append(feeds)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--sizes", nargs="*", default=[], metavar="SYMBOL=N,N")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contexts", type=int)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    shapes = parse_shapes(given.shape)
    sizes = {
        name: [int(one) for one in some.split(",")]
        for name, some in (item.split("=") for item in given.sizes)
    }
    feeds = drawn_feeds(given.model, sizes, shapes)
    runs = engines(given.model, shapes, given.threads, given.contexts)
    for run in runs.values():
        for one in feeds:
            run(one)
    for clients in given.clients:
        seen: dict[str, list[Load]] = {name: [] for name in runs}
        for number in range(given.rounds):
            names = list(runs)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                seen[name].append(closed_loop(runs[name], feeds, clients, given.seconds))
        print(f"{clients} clients")
        for name, loads in seen.items():
            row = Load(
                *(statistics.median(vars(one)[key] for one in loads) for key in vars(loads[0]))
            )
            print(
                f"  {name:28} {row.per_s:9.1f}/s   p50 {row.p50_ms:8.2f} ms   "
                f"p99 {row.p99_ms:8.2f} ms   CPU {row.cpu_ms:8.3f} ms a request",
                flush=True,
            )


if __name__ == "__main__":
    main()
