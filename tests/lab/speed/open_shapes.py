"""Time one session over many shapes beside its peers: first runs, steady runs, and random shapes.

    python -m lab.speed.open_shapes bert.onnx --shape "ids=batch<=8,seq<=512" \
        --sizes batch=1,8 seq=1,512 --threads 1

Engines take turns at each shape. A turn waits until idle threads have stopped spinning: a thread of
ONNX Runtime spins for 24 ms after a run, on the core that the next engine would use. A turn is a
few runs, of which the best counts. A row tells the extra milliseconds of our first run at a shape,
and how many times as long each peer takes in steady runs. Peers get the model with open shapes;
"fixed" is a session of ours made for that shape.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from lab.speed.peers import has_openvino, onnx_session, openvino_model
from trireme.runtime.session.session import Session
from trireme.support.timing import seconds_of
from trireme.tools.parsed import parse_shapes

Run = Callable[[Mapping[str, np.ndarray]], object]
RUNS = 4
"""Runs of a turn that count."""


def peers(model: str, threads: int) -> dict[str, Run]:
    """Return what runs the model on each peer that is installed."""
    ort = onnx_session(model, threads)
    found: dict[str, Run] = {"onnxruntime": lambda feeds: ort.run(None, dict(feeds))}
    if has_openvino():
        other = openvino_model(model, threads)
        found["openvino"] = lambda feeds: other(dict(feeds))
    return found


def feeds_for(
    session: Session, sizes: Mapping[str, int], rng: random.Random
) -> dict[str, np.ndarray]:
    """Return random feeds at these sizes of the symbols."""
    draw = np.random.default_rng(rng.randrange(1 << 30))
    made = {}
    for value in session.inputs:
        shape = [dim if isinstance(dim, int) else sizes[dim] for dim in value.shape]
        if value.dtype.startswith("int"):
            made[value.name] = draw.integers(0, 2 if "mask" in value.name else 1000, shape)
        else:
            made[value.name] = draw.standard_normal(shape).astype(value.dtype)
    return made


def settle() -> None:
    """Wait until the threads of this process sleep, for a third of a second at most."""
    for _ in range(100):
        begun = time.process_time()
        time.sleep(0.003)
        if time.process_time() - begun < 0.0003:
            return


def steady(
    runs: Mapping[str, Run], feeds: Mapping[str, np.ndarray], rounds: int
) -> dict[str, float]:
    """Return the median over turns of the best seconds of each engine."""
    took: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            settle()
            run(feeds)  # wakes its threads
            took[name].append(min(seconds_of(partial(run, feeds)) for _ in range(RUNS)))
    return {name: sorted(times)[len(times) // 2] for name, times in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--sizes", nargs="+", required=True, metavar="SYMBOL=LEAST,MOST")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=20, help="number of random shapes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--fixed", action="store_true", help="time a session for each shape too")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    limits = {
        name: tuple(map(int, ends.split(",")))
        for name, ends in (row.split("=") for row in options.sizes)
    }
    runs = peers(options.model, options.threads)
    shapes = parse_shapes(options.shape) or None
    logs: dict[str, list[float]] = {}
    with Session(options.model, shapes=shapes, threads=options.threads) as session:
        print(f"seed {options.seed}, {options.threads} threads, {', '.join(runs)}")
        for _ in range(options.count):
            sizes = {name: rng.randint(*ends) for name, ends in limits.items()}
            feeds = feeds_for(session, sizes, rng)
            wanted = runs["onnxruntime"](feeds)
            settle()
            first_s = seconds_of(partial(session.run, feeds))
            found = session.run(feeds)
            apart = max(
                float(np.abs(found[v.name] - w).max(initial=0.0))
                for v, w in zip(session.outputs, wanted, strict=True)
            )
            mine: dict[str, Run] = {"ours": session.run, **runs}
            if options.fixed:
                by_name = {name: array.shape for name, array in feeds.items()}
                fixed = Session(options.model, shapes=by_name, threads=options.threads)
                mine["fixed"] = fixed.run
            took = steady(mine, feeds, options.rounds)
            if options.fixed:
                fixed.close()
            ratios = {n: took[n] / took["ours"] for n in took if n != "ours"}
            for name, ratio in ratios.items():
                logs.setdefault(name, []).append(math.log(ratio))
            extra = (first_s - took["ours"]) * 1e3
            logs.setdefault("extra", []).append(extra)
            shown = "  ".join(f"{n} {r:.2f}x" for n, r in ratios.items())
            text = " ".join(f"{n}={s}" for n, s in sizes.items())
            tier = session.stages[0].tier
            print(
                f"{text:22} {took['ours'] * 1e3:8.2f} ms  first +{extra:6.2f} ms  {shown}  "
                f"{tier}  apart {apart:.1e}"
            )
    extras = sorted(logs.pop("extra"))
    print(f"first run: median +{extras[len(extras) // 2]:.2f} ms, most +{extras[-1]:.2f} ms")
    for name, values in logs.items():
        print(
            f"{name} takes {math.exp(sum(values) / len(values)):.3f} times as long (geometric mean)"
        )


if __name__ == "__main__":
    main()
