"""Compare the CPU time of a run: trireme, ONNX Runtime and OpenVINO in turns in one process.

Usage: python -m lab.speed.cpu MODEL... [--threads 1] [--rounds 15] [--shape input=1,3,224,224]

CPU time of the whole process stays right on a machine that others use too. Workers that spin after
a run count; engines rest before each turn. A row: model, engine, least and median ms of a run, and
the engine's median over the first one's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import trireme
from lab.speed.peers import onnx_session, openvino_model
from trireme.runtime.program.feeds import random_feeds

REST_S = 0.03
"""Longer than any engine's threads spin after a run."""
Feeds = Mapping[str, Any]
Run = Callable[[], object]


def engine(path: str, threads: int, feeds: Feeds) -> Run:
    """Return a run of a trireme session."""
    session = trireme.Session(path, threads=threads)
    return lambda: session.run(feeds)


def onnx_runtime(path: str, threads: int, feeds: Feeds) -> Run:
    """Return a run of ONNX Runtime."""
    session = onnx_session(path, threads)
    return lambda: session.run(None, dict(feeds))


def openvino(path: str, threads: int, feeds: Feeds) -> Run:
    """Return a run of OpenVINO."""
    request = openvino_model(path, threads).create_infer_request()
    return lambda: request.infer(list(feeds.values()))


ENGINES = {"trireme": engine, "onnxruntime": onnx_runtime, "openvino": openvino}


def in_turns(runs: Mapping[str, Run], rounds: int, turn_s: float) -> dict[str, list[float]]:
    """Return the CPU seconds of a run of each engine in each round."""
    counts = {}
    for name, run in runs.items():
        run()
        start = time.process_time()
        run()
        counts[name] = max(1, int(turn_s / max(time.process_time() - start, 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            time.sleep(REST_S)
            start = time.process_time()
            for _ in range(counts[name]):
                run()
            found[name].append((time.process_time() - start) / counts[name])
    return found


def main() -> None:
    """Print a row for each model and engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turn-s", type=float, default=0.1)
    parser.add_argument("--engines", default=",".join(ENGINES))
    asked = parser.parse_args()
    for path in asked.models:
        with trireme.Session(path, threads=asked.threads) as session:
            feeds = random_feeds(session.inputs)
        runs = {
            name: ENGINES[name](path, asked.threads, feeds) for name in asked.engines.split(",")
        }
        found = in_turns(runs, asked.rounds, asked.turn_s)
        first = statistics.median(found[next(iter(found))])
        for name, seconds in found.items():
            middle = statistics.median(seconds)
            least, ratio = min(seconds) * 1e3, middle / first
            print(f"{Path(path).name:28} {name:12} {least:9.3f} {middle * 1e3:9.3f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
