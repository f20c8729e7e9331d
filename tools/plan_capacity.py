"""`trireme plan-capacity`: how many replicas answer a load within a limit, and how each should run.

Each way to run a replica (calls at once, threads of a call, batches) is a queue that is simulated
in virtual time. Its service times come from the cost model, of this machine or a described one, or
from runs on this machine (--measure).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import Any

from trireme.backend.registry import DEFAULT_DEVICE, add_host, open_devices
from trireme.cost.calibration import Calibration, load_calibration
from trireme.cost.model import CostModel
from trireme.ir.effects import States, state_types
from trireme.ir.graph import Graph
from trireme.placement.options import PlacementOptions
from trireme.runtime.options import AS_GIVEN
from trireme.runtime.session import Session
from trireme.serving.capacity.arrivals import Arrivals
from trireme.serving.capacity.plan import Capacity, CapacityPlan, Setup, plan_capacity
from trireme.serving.capacity.queueing import ReplicaQueue, Service
from trireme.serving.capacity.times import (
    drawn,
    measured_times,
    of_size,
    predicted_times,
    sizes_up_to,
    steady,
)
from trireme.support.errors import PlacementError, RunError
from trireme.support.units import time_text
from trireme.tools.commands import load
from trireme.tools.described import described_devices, is_described
from trireme.tools.number_options import MOST_SEED, duration, positive, relative, whole
from trireme.tools.output import emit
from trireme.tools.parsed import calibration_path, device_list, device_options
from trireme.tools.progress import Progress

ARGUMENTS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--qps",),
        dict(type=positive, required=True, metavar="N", help="requests a second, in the mean"),
    ),
    (
        ("--p99",),
        dict(
            type=duration,
            required=True,
            metavar="50ms",
            help="latency that 99 of 100 requests keep to",
        ),
    ),
    (
        ("--cores",),
        dict(type=whole(), metavar="N", help="cores of a replica (default: this machine's)"),
    ),
    (
        ("--max-batch",),
        dict(
            type=whole(1, 1024),
            default=8,
            metavar="N",
            help="the most requests of a call that are tried (default: 8)",
        ),
    ),
    (
        ("--max-delay",),
        dict(
            type=duration,
            metavar="2ms",
            help="try batches too whose first request waits so long for others",
        ),
    ),
    (
        ("--burstiness",),
        dict(
            type=positive,
            default=1.0,
            metavar="X",
            help="variance of the time between requests over its squared mean: 1 is a Poisson "
            "process, more are bursts (default: 1)",
        ),
    ),
    (
        ("--measure",),
        dict(action="store_true", help="time calls on this machine instead of predicting them"),
    ),
    (
        ("--spare",),
        dict(
            type=relative,
            default=0.0,
            metavar="0.2",
            help="share of every core to leave free: calls take so much longer (default: 0)",
        ),
    ),
    (
        ("--seed",),
        dict(
            type=whole(0, MOST_SEED),
            default=0,
            metavar="N",
            help="seed of the arrivals (default: 0)",
        ),
    ),
)


Way = tuple[int, int, Service]
"""Threads of a call, calls at once, and the seconds of a call."""


def plan(options: argparse.Namespace) -> int:
    """Plan the replicas for a load; end with 1 where no number of them keeps to the limit."""
    if options.spare >= 1:
        raise RunError("--spare 1: a core with nothing left answers no request")
    load_asked = Arrivals(options.qps, options.burstiness, options.seed)
    progress = Progress()
    try:
        progress(f"preparing {options.model}")
        graph = load(options)
        sizes, remarks = _sizes(graph, options.max_batch)
        ways = _described(options, graph, sizes) if is_described(options) else None
        setups = []
        for way in ways or _here(options, graph, sizes):
            progress("simulating queues")
            setups += list(_setups(options, *way, sizes[-1]))
        found = plan_capacity(setups, load_asked, options.p99)
    finally:
        progress.done()
    if not options.measure and any(one.replica.calls > 1 for one in setups):
        remarks.append(
            "calls at once are priced as if each ran alone; --measure times them together"
        )
    emit(options, _data(found, remarks), "\n".join([*_lines(found), *remarks]))
    return int(found.best is None)


def _sizes(graph: Graph, most: int) -> tuple[list[int], list[str]]:
    """Return the sizes of batches to time, and a remark where the model takes none."""
    sizes = sizes_up_to(most)
    try:
        for size in sizes:
            of_size(graph, size)
    except PlacementError as error:
        return [1], [f"no batches: {error.summary}"]
    return sizes, []


def _described(options: argparse.Namespace, graph: Graph, sizes: list[int]) -> list[Way]:
    """Return the one way to run on a described machine: a call after another."""
    if options.measure:
        raise RunError("--measure times calls on this machine, and --soc describes another")
    devices = described_devices(options)
    add_host(devices, graph, States({}))
    times = predicted_times(graph, CostModel(devices, Calibration()), sizes, PlacementOptions())
    return [(1, 1, steady(_with_spare(options, times)))]


def _here(options: argparse.Namespace, graph: Graph, sizes: list[int]) -> Iterator[Way]:
    """Yield the ways to share this machine's cores among calls, with their times."""
    cores = options.cores or os.cpu_count() or 1
    only_cpu = device_list(options) == [DEFAULT_DEVICE]
    for threads in range(1, cores + 1) if only_cpu else [cores]:
        if cores % threads:
            continue
        calls = cores // threads if only_cpu else 1
        if options.measure:
            yield threads, calls, _measured(options, graph, sizes, threads, calls)
        else:
            times = _predicted(options, graph, sizes, threads)
            yield threads, calls, steady(_with_spare(options, times))


def _predicted(
    options: argparse.Namespace, graph: Graph, sizes: list[int], threads: int
) -> dict[int, float]:
    devices, _ = open_devices(
        device_list(options), device_options(options), threads, options.fallback
    )
    try:
        add_host(devices, graph, States(state_types(graph)))
        costs = CostModel(devices, load_calibration(calibration_path()))
        return predicted_times(graph, costs, sizes, PlacementOptions())
    finally:
        for device in devices.values():
            device.close()


def _measured(
    options: argparse.Namespace, graph: Graph, sizes: list[int], threads: int, calls: int
) -> Service:
    def open_session(sized: Graph) -> Session:
        return Session(
            sized,
            devices=device_list(options),
            threads=threads,
            fallback=options.fallback,
            execution_options=AS_GIVEN,
        )

    times = measured_times(open_session, graph, sizes, calls)
    return drawn({size: seconds / (1 - options.spare) for size, seconds in times.items()}, 1)


def _with_spare(options: argparse.Namespace, times: Mapping[int, float]) -> dict[int, float]:
    return {size: seconds / (1 - options.spare) for size, seconds in times.items()}


def _setups(
    options: argparse.Namespace, threads: int, calls: int, service: Service, most: int
) -> Iterator[Setup]:
    """Yield the setups of a way to run calls: alone, in batches, and in batches that wait."""
    for batch, delay in {(1, 0.0): 0, (most, 0.0): 0, (most, options.max_delay or 0.0): 0}:
        replica = ReplicaQueue(service, calls, batch, delay if batch > 1 else 0.0)
        yield Setup(replica, threads, threads * calls)


def _lines(found: CapacityPlan) -> list[str]:
    load = found.load
    lines = [
        f"{load.qps:g} requests a second, {found.percent:g} of 100 within "
        f"{time_text(found.limit_s)}:",
        f"  {'replicas':>8} {'cores':>6} {'p50':>9} {'p99':>9} {'busy':>5} {'batch':>6}  each",
    ]
    lines += [_line(one, found.percent) for one in found.found]
    best = found.best
    if best is None:
        return [*lines, "no number of replicas keeps to the limit"]
    replicas = "1 replica" if best.replicas == 1 else f"{best.replicas} replicas"
    return [*lines, f"fewest cores: {replicas}, each with {best.setup}"]


def _line(one: Capacity, percent: float) -> str:
    if one.answers is None:
        return f"  {'none':>8} {'':38}  {one.setup}: {one.reason}"
    p50, p99 = (time_text(one.answers.percentile_s(p)) for p in (50, percent))
    answers = one.answers
    return (
        f"  {one.replicas:>8} {one.cores:>6} {p50:>9} {p99:>9} {answers.busy:>5.0%} "
        f"{answers.batch:>6.1f}  {one.setup}"
    )


def _data(found: CapacityPlan, remarks: list[str]) -> dict[str, Any]:
    rows = []
    for one in found.found:
        replica = one.setup.replica
        row: dict[str, Any] = {
            "replicas": one.replicas,
            "cores": one.cores,
            "calls": replica.calls,
            "threads": one.setup.threads,
            "max_batch": replica.most_batch,
            "delay_s": replica.delay_s,
            "reason": one.reason,
        }
        if one.answers is not None:
            row |= {"p50_s": one.answers.percentile_s(50), "p99_s": one.answers.percentile_s(99)}
            row |= {"busy": one.answers.busy, "mean_batch": one.answers.batch}
        rows.append(row)
    return {"qps": found.load.qps, "p99_s": found.limit_s, "setups": rows, "remarks": remarks}
