"""Measure what a batcher brings: closed loops of 1, 8 and 32 clients, with it and without.

Usage: python -m lab.speed.batch MODEL --shape x=batch,3,224,224 [--most 16] [--delay-us 0]

The ways take turns in one process. A row: clients, way, requests a second, p50, p99, CPU a request.
"""

from __future__ import annotations

import argparse
from dataclasses import astuple

import numpy as np

import trireme
from lab.speed.clients import Load, closed_loop
from trireme.ir.bind_shapes import bind_shapes
from trireme.runtime.program.feeds import random_feeds
from trireme.tools.parsed import parse_shapes


def main() -> None:
    """Print a row for each number of clients and way, and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--sizes", default="", help="of other symbols, in turn: seq=16,32,64")
    parser.add_argument("--most", type=int, default=16)
    parser.add_argument("--delay-us", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clients", default="1,8,32")
    asked = parser.parse_args()
    shapes = parse_shapes(asked.shape)
    session = trireme.Session(asked.model, shapes=shapes or None, threads=asked.threads)
    symbol = session.inputs[0].shape[0]
    name, _, sizes = asked.sizes.partition("=")
    choices = [{name: int(one)} for one in sizes.split(",")] if sizes else [{}]
    feeds = []
    for k, sized in enumerate(choices * (8 // len(choices) or 1)):
        known = {symbol: 1} | sized
        given = {v.name: tuple(known.get(d, d) for d in v.shape) for v in session.inputs}
        bound = bind_shapes(session.graph, given)
        feeds.append(random_feeds(bound.input_values(), seed=k))
    batcher = trireme.Batcher(session, asked.most, max_queue_delay_us=asked.delay_us)
    print(batcher.evidence)
    ways = {
        "run": session.run,
        "run_async": lambda one: session.run_async(one).result(),
        "batcher": batcher.run,
    }
    for one in feeds:
        for rows in range(1, asked.most + 1):
            session.run({k: np.repeat(v, rows, 0) for k, v in one.items()})
    for clients in map(int, asked.clients.split(",")):
        seen: dict[str, list[Load]] = {way: [] for way in ways}
        for _ in range(asked.rounds):
            for way, call in ways.items():
                seen[way].append(closed_loop(call, feeds, clients, asked.seconds))
        base = np.median([load.per_s for load in seen["run"]])
        for way, rows in seen.items():
            rate, p50, p99, cpu = np.median([astuple(load) for load in rows], axis=0)
            print(
                f"{clients:3} clients  {way:10} {rate:8.1f}/s ({rate / base:4.2f}x)  "
                f"p50 {p50:7.2f} ms  p99 {p99:7.2f} ms  cpu {cpu:7.2f} ms",
                flush=True,
            )
    print(batcher.statistics)
    batcher.close()
    session.close()


if __name__ == "__main__":
    main()
