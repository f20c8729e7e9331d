"""`trireme place`: where every node of a model would run, without compiling or running it.

The placement can be proven (--prove), written down (--lock), and compared with one written down
before (--check, which ends with 1 if it would be another).
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trireme.backend.device import Device
from trireme.backend.registry import add_host, open_devices
from trireme.calibration.deciding import measure_deciding
from trireme.cost.calibration import Calibration, load_calibration
from trireme.cost.model import CostModel
from trireme.devices.described import load_soc
from trireme.ir.effects import States, state_types
from trireme.ir.graph import Graph
from trireme.passes.pipeline import optimise
from trireme.placement.deciding import Deciding, deciding
from trireme.placement.lock import Lock, LockedOptions, lock
from trireme.placement.lockfile import load_lock, save_lock
from trireme.placement.place import place
from trireme.placement.placement import Placement
from trireme.placement.shards.batch import batched
from trireme.plan.flow import Flow, flow_of
from trireme.plan.plan import make_plan
from trireme.profiling.prediction import predict
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.replicas import flow_text
from trireme.runtime.session.session import Session
from trireme.runtime.streams.round_robin import plan_round_robin
from trireme.support.errors import PlacementError
from trireme.support.showing import WIDTH
from trireme.support.units import time_text
from trireme.tools.commands import load
from trireme.tools.described import described_devices, is_described
from trireme.tools.figures import figures_set
from trireme.tools.garbage import rarely_collected
from trireme.tools.lock_check import check_lock
from trireme.tools.number_options import seconds, share
from trireme.tools.output import emit, write_trace
from trireme.tools.parsed import (
    calibration_path,
    device_list,
    device_options,
    parse_pins,
    passes_off,
    placement_options,
    plan_choices,
    sharding,
)
from trireme.tools.place_over import show_ranges
from trireme.tools.progress import Progress
from trireme.tools.streams import width_of, wrapped_to
from trireme.tools.usual import at_usual_sizes
from trireme.version import __version__

ARGUMENTS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--prove",),
        dict(
            type=seconds,
            nargs="?",
            const=60.0,
            metavar="SECONDS",
            help="prove or improve the placement with an exact solver (default: 60 s); shard only "
            "what --shard names",
        ),
    ),
    (
        ("--trace",),
        dict(
            metavar="FILE",
            help="write the predicted timeline as a Chrome trace (open it in ui.perfetto.dev)",
        ),
    ),
    (
        ("--over",),
        dict(
            metavar="SYMBOL=1..512",
            help="place over a range of an open size, and show where the placement flips",
        ),
    ),
    (("--lock",), dict(metavar="FILE", help="write the placement and its reasons to a lockfile")),
    (
        ("--check",),
        dict(metavar="FILE", help="compare with a lockfile, and exit with 1 where they differ"),
    ),
    (
        ("--tolerance",),
        dict(
            type=share,
            default=0.0,
            metavar="5%",
            help="with --check: accept the locked placement up to this much slower than the best "
            "one of today and than its own prediction in the lockfile",
        ),
    ),
    (
        ("--measure-deciding",),
        dict(
            action="store_true",
            help="time the few nodes whose estimates decide the placement, and place again",
        ),
    ),
)


_MOST_DECIDING = 3
"""How many of the estimates that decide are printed."""


@rarely_collected()
def place_model(options: argparse.Namespace) -> int:
    """Place a model, and prove, lock or check the placement."""
    progress = Progress()
    before = load_lock(options.check) if options.check else None
    devices, absent = _devices(options, before)
    try:
        progress(f"placing {options.model}")
        if options.over:
            return show_ranges(options, load(options), devices)
        given, sizes = at_usual_sizes(load(options))
        graph = optimise(given, disable=passes_off(options))
        graph = graph if options.batch is None else batched(graph, options.batch)
        described = options.soc is not None
        add_host(devices, graph, States({} if described else state_types(graph)))
        measured = Calibration() if described else load_calibration(calibration_path())
        costs = CostModel(devices, measured)
        costs, placement, remark = _decided(options, graph, costs, before, progress)
        found = [] if options.placement else deciding(placement, costs)
        flow = _flow(options, placement, costs)
        now = None
        if options.lock or before is not None:
            now = lock(placement, __version__, _given(options, measured, devices))
        checked = None
        if now is not None and before is not None:
            checked = check_lock(
                graph, costs, options.objective, before, now, options.tolerance, absent
            )
    finally:
        progress.done()
        for device in devices.values():
            device.close()
    lines, data = [*sizes, placement.summary(width_of(sys.stdout))], dict(placement.to_json())
    data["remarks"] = sizes
    if options.trace:
        plan = make_plan(placement, **plan_choices(options))
        write_trace(options, predict(plan, options.mode == "serial"))
    if flow is not None:
        lines.append(flow_text(flow))
        data["stream"] = vars(flow)
    lines += _deciding_lines(found)
    data["deciding"] = [vars(one) for one in found]
    lines += remark
    data["absent"] = dict(absent)
    data["unmeasured"] = measured.unmeasured(device.spec for device in devices.values())
    lines += data["unmeasured"]
    if checked is None:
        lines += [f"left out: {name}: {why}" for name, why in absent.items()]
    else:
        data |= {"differences": checked.differences, "passed": checked.passed}
        lines += checked.lines(options.check)
    if options.lock and now is not None:
        save_lock(now, Path(options.lock))
        lines.append(f"locked in {options.lock}")
    emit(options, data, wrapped_to(sys.stdout, "\n".join(lines)))
    return int(checked is not None and not checked.passed)


def _decided(
    options: argparse.Namespace,
    graph: Graph,
    costs: CostModel,
    before: Lock | None,
    progress: Progress,
) -> tuple[CostModel, Placement, list[str]]:
    """Return the placement, its costs and remarks; with --measure-deciding, the placement that
    comes of timing the estimates that decide."""
    placement, remark = _placed(options, graph, costs, before)
    found = deciding(placement, costs) if options.measure_deciding else []
    if not found:
        return costs, placement, remark
    progress("timing what decides")
    timed = measure_deciding(placement.source, costs, found)
    lines = [_timed_text(one, placement.source, timed) for one in found]
    placement, remark = _placed(options, graph, timed, before)
    return timed, placement, [*remark, *lines]


def _deciding_lines(found: Sequence[Deciding]) -> list[str]:
    """Return the estimates that decide, the first few of many, as a screen has room."""
    lines = ["what decides:"] if found else []
    for one in found[:_MOST_DECIDING]:
        lines += textwrap.wrap(str(one), WIDTH, initial_indent="  ", subsequent_indent="    ")
    more = len(found) - _MOST_DECIDING
    return lines + ([f"  and {more} more: --json has all"] if more > 0 else [])


def _timed_text(one: Deciding, graph: Graph, costs: CostModel) -> str:
    """Return what an estimate that decided comes to, timed."""
    nodes = (graph.node(node) for node in one.nodes)
    seconds = sum(costs.node(graph, node, one.device).seconds for node in nodes)
    return (
        f"timed: {one.op} on {one.device} takes {time_text(seconds)}, "
        f"{time_text(one.seconds)} was predicted"
    )


def _given(
    options: argparse.Namespace, measured: Calibration, devices: Mapping[str, Device]
) -> LockedOptions:
    """Return the options that a lock keeps."""
    return LockedOptions(
        devices=tuple(device_list(options)) if options.devices_given else (),
        batch=options.batch,
        threads=options.threads,
        pins=parse_pins(options.pin),
        soc=options.soc or "",
        figures=figures_set(load_soc(options.soc), options.vary) if options.soc else {},
        calibration=measured.digest(device.spec for device in devices.values()),
    )


def _flow(options: argparse.Namespace, placement: Placement, costs: CostModel) -> Flow | None:
    """Return how a session's stream would flow, where that is the objective."""
    if placement.score.objective != "throughput":
        return None
    plan = make_plan(placement)
    flow = flow_of(plan, [task.estimate_s for task in plan.tasks])
    held = options.placement or sharding(options) not in ("auto", "off")
    in_turn = None if held else plan_round_robin(placement.source, costs.devices, costs.calibration)
    return (in_turn.flow_beside(flow) if in_turn else None) or flow


def _placed(
    options: argparse.Namespace, graph: Graph, costs: CostModel, before: Lock | None
) -> tuple[Placement, list[str]]:
    """Return the placement as it is held, measured, proven or searched for, and remarks."""
    asked = placement_options(options, options.prove)
    if before is not None and before.measured and not options.measure:
        with suppress(PlacementError):  # it cannot be held, so what is placed now is compared
            remark = f"{options.check} was the fastest when measured; --measure tries again"
            return place(graph, costs, replace(asked, fixed=before)), [remark]
    if options.measure:
        with Session(
            graph,
            devices=list(costs.devices.values()),
            execution_options=AS_GIVEN,
            measure=True,
            placement_options=replace(asked, fixed=None, prove_s=None),
            calibration=costs.calibration,
        ) as session:
            return session.placement, []
    return place(graph, costs, asked), []


def _devices(
    options: argparse.Namespace, before: Lock | None
) -> tuple[dict[str, Device], dict[str, str]]:
    """Return the devices of a described machine, else those of this one."""
    return (described_devices(options), {}) if is_described(options) else _open(options, before)


def _open(
    options: argparse.Namespace, before: Lock | None
) -> tuple[dict[str, Device], dict[str, str]]:
    """Return the open devices, and why others are not there: an error unless that is allowed.

    With a lock to check, a device that is missing is a difference.
    """
    fallback = options.fallback or before is not None
    opened, absent = open_devices(
        device_list(options), device_options(options), options.threads, fallback
    )
    return opened, {name: str(error) for name, error in absent.items()}
