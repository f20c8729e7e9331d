"""Cost curves measured on this machine, as data: a readable JSON file a machine.

`trireme.calibrate` measures and fits them; `cost` reads them. A curve belongs to one device as its
spec describes it (driver, threads, instruction set), so a changed machine is never priced by
another's figures.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trireme.device import DeviceSpec
from trireme.errors import ModelFileError

VERSION = 1


@dataclass(frozen=True)
class Curve:
    """Seconds of a node: fixed_s + flops * s_per_flop + bytes * s_per_byte.

    `error` is the median error over the `samples` measurements it was fitted to, relative to the
    whole time with launch.
    """

    fixed_s: float
    s_per_flop: float
    s_per_byte: float
    samples: int
    error: float

    def seconds(self, flops: int, nbytes: int) -> float:
        """Return the predicted seconds; never falls when flops or bytes grow."""
        return self.fixed_s + flops * self.s_per_flop + nbytes * self.s_per_byte


def fit(
    flops: Sequence[int], nbytes: Sequence[int], seconds: Sequence[float], launch_s: float = 0.0
) -> Curve:
    """Return the curve with non-negative terms that fits measurements best.

    The error of a sample is relative to its whole time, launch included, so that nodes far shorter
    than a launch do not outweigh those that matter. Least squares over every subset of the three
    terms; the best subset without a negative term wins, which for three terms is exact
    non-negative least squares.
    """
    measured = np.asarray(seconds, np.float64)
    whole = measured + launch_s
    terms = np.stack([np.ones(len(measured)), np.asarray(flops), np.asarray(nbytes)], axis=1)
    scaled, target = terms / whole[:, None], measured / whole
    best, least = np.zeros(3), float("inf")
    for count in (1, 2, 3):
        for columns in itertools.combinations(range(3), count):
            part, *_ = np.linalg.lstsq(scaled[:, columns], target, rcond=None)
            residual = float(np.sum((scaled[:, columns] @ part - target) ** 2))
            if (part >= 0).all() and residual < least * (1 - 1e-9):
                best, least = np.zeros(3), residual
                best[list(columns)] = part
    error = float(np.median(np.abs(terms @ best - measured) / whole))
    return Curve(float(best[0]), float(best[1]), float(best[2]), len(measured), error)


@dataclass(frozen=True)
class DeviceCalibration:
    """The measured figures of one device: launch, curves by "kind/dtype", copies by direction."""

    description: str
    launch_s: float
    curves: Mapping[str, Curve] = field(default_factory=dict)
    copies: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration:
    """The calibration of one machine; empty when nothing was measured yet."""

    devices: Mapping[str, DeviceCalibration] = field(default_factory=dict)

    def of(self, spec: DeviceSpec) -> DeviceCalibration | None:
        """Return what was measured of just this device, None if it was another."""
        found = self.devices.get(spec.name)
        return found if found and found.description == spec.description else None

    def node_s(
        self, spec: DeviceSpec, kind: str, dtype: str, flops: int, nbytes: int
    ) -> float | None:
        """Return the seconds of a node's work by the curve of its kind and dtype, None without.

        uint8 is priced as int8: kernels differ by a correction that costs next to nothing.
        """
        found = self.of(spec)
        dtype = "int8" if dtype == "uint8" else dtype
        curve = found.curves.get(f"{kind}/{dtype}") if found else None
        return curve.seconds(flops, nbytes) if curve else None

    def launch_s(self, spec: DeviceSpec) -> float | None:
        """Return the measured seconds of launching a task and waiting for it."""
        found = self.of(spec)
        return found.launch_s if found else None

    def copy(self, spec: DeviceSpec, direction: str) -> tuple[float, float] | None:
        """Return latency and bandwidth of "read" (to the host) or "write" (from it)."""
        found = self.of(spec)
        return found.copies.get(direction) if found else None

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        text = json.dumps({"version": VERSION, **asdict(self)}, indent=1, sort_keys=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(text + "\n")
        fresh.replace(path)


def default_path() -> Path:
    """Return where this user's calibration of this machine is kept."""
    return Path.home() / ".cache" / "trireme" / "calibration.json"


def load_calibration(path: Path) -> Calibration:
    """Return the calibration in a file, an empty one if there is no file.

    Errors: ModelFileError, if the file is not a calibration of this version
    """
    if not path.exists():
        return Calibration()
    try:
        data = json.loads(path.read_text())
        if data.get("version") != VERSION:
            found = data.get("version")
            raise ModelFileError(f"{path}: calibration version {found}, expected {VERSION}")
        devices = {name: _device(entry) for name, entry in data["devices"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{path} is not a calibration: {error}", fix="measure again: trireme calibrate"
        ) from error
    return Calibration(devices)


def _device(entry: Mapping[str, Any]) -> DeviceCalibration:
    curves = {key: Curve(**curve) for key, curve in entry["curves"].items()}
    copies = {key: (float(a), float(b)) for key, (a, b) in entry["copies"].items()}
    numbers = [entry["launch_s"], *(v for pair in copies.values() for v in pair)]
    for curve in curves.values():
        numbers += [curve.fixed_s, curve.s_per_flop, curve.s_per_byte]
    if not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise ValueError("a figure is negative or not finite")
    if any(bandwidth == 0 for _, bandwidth in copies.values()):
        raise ValueError("a bandwidth is zero")
    return DeviceCalibration(entry["description"], float(entry["launch_s"]), curves, copies)
