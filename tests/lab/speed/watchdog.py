"""What watching for hangs costs a run: without it, with it, and on a thread of its own each time.

    chrt -r 10 python -m lab.speed.watchdog opencl

A run of two small kernels; the three are interleaved. Prints medians and tenths in microseconds.
"""

import math
import sys
import time

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session

SHAPE = (8, 64)
TURNS, RUNS = 60, 30


def opened(device: str, fallback: bool) -> Session:
    """Return a session whose nodes are all on the device."""
    b = GraphBuilder("net")
    x = b.input("x", TensorType(SHAPE, "float32"))
    graph = b.finish(b.add("tanh", b.add("sigmoid", x, names=["a"]), names=["b"]))
    return Session(
        graph,
        devices=[device, "opencl" if device == "cpu" else "cpu"],
        fallback=fallback,
        threads=1,
        placement_options=PlacementOptions(pins={"a": device, "b": device}),
        execution_options=ExecutionOptions(device_options={"npu": {"float32": "float16"}}),
    )


def main(device: str) -> None:
    """Time the three on a device."""
    feeds = {"x": np.random.default_rng(4).standard_normal(SHAPE).astype(np.float32)}
    ways = {"without fallback": opened(device, False), "with fallback": opened(device, True)}
    if device != "cpu":
        ways["handed over"] = opened(device, True)
    took: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(TURNS + 3):
        for way, session in ways.items():
            for _ in range(RUNS):
                if way == "handed over" and session.ready.latest().watched is not None:
                    session.ready.latest().watched._least_s = math.inf
                begun = time.perf_counter()
                session.run(feeds)
                if turn >= 3:
                    took[way].append((time.perf_counter() - begun) * 1e6)
    for way, times in took.items():
        print(f"{device:8} {way:18} {np.median(times):8.1f} {np.percentile(times, 10):8.1f}")
    for session in ways.values():
        session.close()


if __name__ == "__main__":
    main(sys.argv[1])
