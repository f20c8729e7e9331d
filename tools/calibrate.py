"""`trireme calibrate`: measure the devices of this machine, and store their curves."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trireme.backend.calibrate_hint import command
from trireme.backend.device import HOST, Device, kind_of
from trireme.backend.registry import open_device
from trireme.calibration.calibrate import LIMIT_S
from trireme.calibration.calibrate import calibrate as measure
from trireme.calibration.reference import measure_reference
from trireme.cost.calibration import REFERENCE, Calibration, DeviceCalibration, load_calibration
from trireme.support.errors import ModelFileError, RunError
from trireme.support.units import rate_text, time_text
from trireme.tools.calibrate_check import check
from trireme.tools.number_options import seconds, thread_list, whole
from trireme.tools.options import Argument, argument
from trireme.tools.output import emit
from trireme.tools.parsed import calibration_given, device_list, device_options, thread_counts
from trireme.tools.progress import Progress

ARGUMENTS: tuple[Argument, ...] = (
    argument(
        "--threads",
        type=thread_list,
        metavar="1,2",
        help="numbers of threads to measure the cpu device with (default: one a core)",
    ),
    argument(
        "--limit",
        type=seconds,
        default=LIMIT_S,
        metavar="SECONDS",
        help=f"time limit (default: {LIMIT_S:.0f} s)",
    ),
    argument(
        "--check",
        nargs="+",
        default=[],
        dest="models",
        metavar="MODEL",
        help="compare predictions with measurements on these models instead",
    ),
    argument(
        "--placements",
        type=whole(0),
        default=0,
        metavar="N",
        help="with --check: rank N random placements of each model",
    ),
    argument(
        "--repeat",
        type=whole(),
        default=1,
        metavar="N",
        help="with --check: check N times, and report how well measurements repeat",
    ),
    argument(
        "--cores",
        action="store_true",
        help="measure only the distance between cores, and adjust the calibration for it",
    ),
    argument(
        "-o", "--output", metavar="FILE", help="calibration file (default: that of this user)"
    ),
)


_REFERENCE = 0.04
"""The share of the time that goes into the numpy references."""


def calibrate(options: argparse.Namespace) -> int:
    """Measure the devices, and add the curves to this machine's file; or check the file.

    Returns 1 where the bars of a check are missed, or a device was not measured in the time.
    """
    start = time.perf_counter()
    if options.models:
        lines, data, code = check(options)
        emit(options, data, "\n".join(lines))
        return code
    if options.cores:
        return _cores(options)
    progress = Progress()
    target = calibration_given(options)
    known = _known(target)
    with ExitStack() as stack:
        stack.callback(progress.done)
        opened = _opened(options, stack)
        measured = []
        if any(one.spec.memory == HOST for one in opened):
            progress("measuring the numpy references")
            measured.append(measure_reference(time.perf_counter() + _REFERENCE * options.limit))
        left_s = options.limit - (time.perf_counter() - start)
        measured += measure(opened, progress, left_s).devices.values()
        skipped = [one.spec.name for one in opened if one.spec.clock != "wall"]
    empty = [one for one in measured if not one.curves]
    result = Calibration.of_devices(*(one for one in measured if one.curves))
    known.with_(result).save(target)
    lines = [f"replaced: {known.stale}"] if known.stale else []
    lines += [str(target), *(line for one in measured if one.curves for line in _lines(one))]
    lines += [
        f"{one.name} ({one.description}) was not measured: no time was left;"
        f" fix: --limit {max(2 * options.limit, LIMIT_S):.0f}"
        for one in empty
    ]
    lines.append(f"measured in {time_text(time.perf_counter() - start)}")
    lines += [f"{name}: simulated, nothing to measure" for name in skipped]
    emit(options, {"file": str(target), "devices": sorted(result.devices)}, "\n".join(lines))
    return int(bool(empty))


def _cores(options: argparse.Namespace) -> int:
    """Price the devices of this machine's file for how far apart their cores are now.

    Returns 1 where that cannot be told, threads share a core, or a device was not calibrated.
    """
    target = calibration_given(options)
    known, lines, data, missing = load_calibration(target), [], {}, 0
    with ExitStack() as stack:
        for device in _opened(options, stack):
            spec = device.spec
            for cores in known.cores_of([device]):
                if cores.now is None or cores.priced is None or cores.now.apart == "shared":
                    missing += 1
                    why = "" if cores.priced else f"; fix: {command([spec.name])}"
                    lines.append(f"{cores}{why}")
                    continue
                known = known.at(spec, cores.now)
                lines.append(f"{spec.name} ({spec.description}): {cores.now}")
                data[f"{spec.name}: {spec.description}"] = asdict(cores.now)
    if not lines:
        lines.append("no device here has cores to tell apart; fix: --threads 2")
    elif data:
        known.save(target)
        lines.append(f"{target} uses this core latency now")
    emit(options, {"file": str(target), "cores": data}, "\n".join(lines))
    return int(missing > 0 or not data)


def _known(target: Path) -> Calibration:
    """Return what the file holds of other devices; what cannot be read is measured anew."""
    try:
        return load_calibration(target)
    except ModelFileError:
        return Calibration()


def _opened(options: argparse.Namespace, stack: ExitStack) -> list[Device]:
    """Return the devices asked for, those that take threads once with each number of them, open
    until the stack closes.
    """
    names, opened = device_list(options), []
    if not names:
        raise RunError("--devices names no device to measure", fix="--devices cpu")
    for name in names:
        if kind_of(name) != name:
            raise RunError(
                f"{name} uses the calibration of {kind_of(name)} with as many threads",
                fix=f"trireme calibrate --devices {kind_of(name)} --threads 1,2",
            )
    for name, count in [(n, c) for n in names for c in thread_counts(options, [n])]:
        given: dict[str, Any] = dict(device_options(options).get(name, {}))
        opened.append(open_device(name, **given, **({} if count is None else {"threads": count})))
        stack.callback(opened[-1].close)
    return opened


def _lines(one: DeviceCalibration) -> list[str]:
    if one.name == REFERENCE:
        return _reference_lines(one)
    lines = [
        f"{one.name}: {one.description}",
        f"  launch {_microseconds(one.launch_s)}, between kernels {_microseconds(one.kernel_s)}"
        + ("" if one.issue_s is None else f", behind another task {_microseconds(one.issue_s)}"),
    ]
    lines += [
        f"  {'in use:' if apart == one.apart else 'also measured:'} {cores}"
        for apart, cores in one.cores.items()
    ]
    for family, curve in sorted(one.curves.items()):
        terms = " + ".join(f"{each:.3g} {name}" for name, each in curve.per.items())
        lines.append(
            f"  {family:28} {time_text(curve.fixed_s):>8} + {terms or '0'}"
            f"  ({curve.samples} kernels, median error {curve.error:.0%},"
            f" {curve.low:.2f} to {curve.high:.2f})"
        )
    for way, (latency, bandwidth) in one.copies.items():
        lines.append(f"  copy {way:23} {time_text(latency):>8} + {rate_text(bandwidth, 'B/s')}")
    for other, shared in one.sharing.items():
        lines.append(
            f"  copy to or from {other:12} {time_text(shared.latency_s):>8} +"
            f" {rate_text(shared.bandwidth, 'B/s')} + {shared.flags:.0f} flags +"
            f" {shared.handed:.2f} of its bytes between cores; both at once take"
            f" {shared.overlap:.0%} of one after the other"
        )
    return lines + [f"  {verdict}" for verdict in one.judged if not verdict.used]


def _reference_lines(one: DeviceCalibration) -> list[str]:
    """Return the curves of families of ops without a native kernel; those of ops are counted."""
    families = {name: curve for name, curve in one.curves.items() if name.startswith("family ")}
    lines = [f"{one.name}: {one.description}, ops without a native kernel"]
    for name, curve in sorted(families.items()):
        terms = " + ".join(f"{each:.3g} {term}" for term, each in curve.per.items())
        lines.append(
            f"  {name:28} {time_text(curve.fixed_s):>8} + {terms}"
            f"  ({curve.samples} calls, {curve.low:.2f} to {curve.high:.2f})"
        )
    unused = sum(not verdict.used for verdict in one.judged)
    lines.append(f"  {len(one.curves) - len(families)} ops have curves of their own")
    return lines + ([f"  {unused} curves are not used"] if unused else [])


def _microseconds(seconds: float | None) -> str:
    return "as described" if seconds is None else time_text(seconds)
