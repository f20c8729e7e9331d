"""Cost curves measured on this machine, as data: a readable JSON file a machine.

`calibrate` measures, `fit` fits, `model` reads the curves. A curve belongs to one device as its
spec describes the device (driver, threads, instruction set). So a changed machine is never priced
by another's figures.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trireme.backend.calibrate_hint import command
from trireme.backend.core_latency import USUAL, CoreLatency, Cores, priced
from trireme.backend.device import Device, DeviceSpec, KernelCost
from trireme.cost.quality import Judgement
from trireme.support.atomic import write_atomic
from trireme.support.errors import ModelFileError
from trireme.support.records import dataclass
from trireme.support.user_files import calibration_file

_log = logging.getLogger(__name__)
VERSION = 10
REFERENCE = "reference"
"""The name of the numpy references' curves in a calibration."""


def reference_description() -> str:
    """Return the description of the numpy references, which their curves belong to."""
    return f"numpy {np.__version__}"


@dataclass(frozen=True)
class Curve:
    """Seconds of a kernel: fixed_s + the sum of per[term] * term.

    low, high: factors that cover nine of ten measurements
    samples: the number of measurements behind the fit
    error: their median relative error
    """

    fixed_s: float
    per: Mapping[str, float]
    low: float = 1.0
    high: float = 1.0
    samples: int = 0
    error: float = 0.0

    def seconds(self, terms: Mapping[str, float]) -> float:
        """Return the predicted seconds, which never fall when a term grows."""
        return self.fixed_s + sum(each * terms.get(name, 0.0) for name, each in self.per.items())


@dataclass(frozen=True)
class Sharing:
    """The measured cost of turns between two devices on shared silicon.

    latency_s, bandwidth: of a copy between the two, without the cost of passing data between cores.
        The figures compare a run over both devices with a run on one (seconds, bytes a second).
    flags, handed: additional flags a copy, and bytes a copied byte, that pass between cores
        (core_latency.py)
    overlap: seconds of both at once, relative to one after the other; 1.0 is taking turns
    """

    latency_s: float
    bandwidth: float
    flags: float
    handed: float
    overlap: float

    def link(self, cores: CoreLatency | None) -> tuple[float, float]:
        """Return the latency and the bytes a second of a copy at this core latency."""
        known = cores or USUAL
        latency_s = self.latency_s + self.flags * known.flag_s
        return latency_s, 1 / (1 / self.bandwidth + self.handed * known.byte_s)


@dataclass(frozen=True)
class DeviceCalibration:
    """The measured figures of one device.

    description: of the spec: driver, threads, instruction set
    launch_s: of a task, beside its kernels; None uses the description's figure
    kernel_s: the gap between two kernels of a task
    issue_s: seconds in which the host launches a task behind another that the device starts by
        itself; None where the host must wait between the two
    curves: by family of kernels
    copies: "read" and "write", (latency in s, bytes a second)
    sharing: of a device on host memory, by the name of another device of its resource group
    nets: seconds of the measured networks, by state of the cores ("" where unknown) and name; the
        reference for the machine's speed
    cores: core latency between the device's threads, by state of the cores
    apart: the state of the cores that prices use; "" where nothing is known
    judged: the verdict on every measured figure (quality.py), used or not
    """

    name: str
    description: str
    launch_s: float | None
    kernel_s: float = 0.0
    curves: Mapping[str, Curve] = field(default_factory=dict)
    copies: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    sharing: Mapping[str, Sharing] = field(default_factory=dict)
    nets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    issue_s: float | None = None
    cores: Mapping[str, CoreLatency] = field(default_factory=dict)
    apart: str = ""
    judged: tuple[Judgement, ...] = ()

    @property
    def core_latency(self) -> CoreLatency | None:
        """The core latency that prices use; None where it was not measured."""
        return self.cores.get(self.apart)

    def seconds(self, kernel: KernelCost) -> float:
        """Return the predicted seconds of a kernel of a measured family."""
        return self.curves[kernel.family].seconds(priced(kernel.terms, self.core_latency))

    def merged(self, newer: DeviceCalibration) -> DeviceCalibration:
        """Return the figures of a newer measurement, and older ones where the newer has none.

        A missing or unused figure does not replace a used one.
        """
        used = {one.figure: one for one in self.judged if one.used}
        judged = {one.figure: one for one in self.judged} | {
            one.figure: one for one in newer.judged if one.used or one.figure not in used
        }
        has_launch = newer.launch_s is not None
        return replace(
            newer,
            launch_s=newer.launch_s if has_launch else self.launch_s,
            kernel_s=newer.kernel_s if has_launch else self.kernel_s,
            curves={**self.curves, **newer.curves},
            copies={**self.copies, **newer.copies},
            sharing={**self.sharing, **newer.sharing},
            nets={
                apart: {**self.nets.get(apart, {}), **newer.nets.get(apart, {})}
                for apart in {**self.nets, **newer.nets}
            },
            issue_s=self.issue_s if newer.issue_s is None else newer.issue_s,
            cores={**self.cores, **newer.cores},
            apart=newer.apart or self.apart,
            judged=tuple(judged.values()),
        )

    def at(self, cores: CoreLatency) -> DeviceCalibration:
        """Return the figures with core latency priced at the one given."""
        return replace(self, cores={**self.cores, cores.apart: cores}, apart=cores.apart)


@dataclass(frozen=True)
class Calibration:
    """The calibration of one machine, by "name: description"; empty before any measurement.

    stale: a sentence where the file is of another version; such a calibration is empty
    """

    devices: Mapping[str, DeviceCalibration] = field(default_factory=dict)
    stale: str = ""

    @classmethod
    def of_devices(cls, *devices: DeviceCalibration) -> Calibration:
        """Return the calibration of these devices."""
        return cls({f"{one.name}: {one.description}": one for one in devices})

    def of(self, spec: DeviceSpec) -> DeviceCalibration | None:
        """Return the figures of this kind of device, None if only others were measured."""
        return self.devices.get(f"{spec.kind}: {spec.description}")

    @property
    def reference(self) -> DeviceCalibration | None:
        """The figures of the numpy references with this numpy, None without a measurement."""
        return self.devices.get(f"{REFERENCE}: {reference_description()}")

    def with_(self, other: Calibration) -> Calibration:
        """Return this calibration with another's devices added, merged where both have one."""
        merged = {
            key: self.devices[key].merged(one) if key in self.devices else one
            for key, one in other.devices.items()
        }
        return Calibration({**self.devices, **merged})

    def at(self, spec: DeviceSpec, cores: CoreLatency | None) -> Calibration:
        """Return this calibration with a device priced at its core latency of now.

        It stays unchanged where nothing is known, and where threads share a core: calibration does
        not measure shared cores.
        """
        known = self.of(spec)
        if not known or not known.core_latency or not cores or cores.apart == "shared":
            return self
        return replace(
            self, devices={**self.devices, **Calibration.of_devices(known.at(cores)).devices}
        )

    def cores_of(self, devices: Iterable[Device]) -> tuple[Cores, ...]:
        """Return the core latency of each device now, beside the one that prices use.

        It takes a millisecond a device. Devices without core latency are left out.
        """
        found = []
        for device in devices:
            known, now = self.of(device.spec), device.core_latency()
            then = known.core_latency if known else None
            found += [Cores(device.spec.name, then, now)] if then or now else []
        return tuple(found)

    def unmeasured(self, specs: Iterable[DeviceSpec]) -> list[str]:
        """Return a sentence on real devices without measurements; None if there are none."""
        names = [
            spec.name
            for spec in specs
            if spec.clock == "wall" and spec.calibrated and self.of(spec) is None
        ]
        if not names:
            return []
        why = self.stale or "never measured here"
        return [f"priced by description, {why}: {', '.join(names)}; fix: {command(names)}"]

    def digest(self, specs: Iterable[DeviceSpec]) -> str:
        """Return a short digest of the figures of these devices; "" where none was measured."""
        found = [asdict(one) for spec in specs if (one := self.of(spec)) is not None]
        text = json.dumps(found, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16] if found else ""

    def save(self, path: Path) -> None:
        """Write the file whole or not at all.

        Errors: ModelFileError, if it cannot be written
        """
        devices = {name: asdict(one) for name, one in self.devices.items()}
        text = json.dumps({"version": VERSION, "devices": devices}, indent=1, sort_keys=True)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, [text.encode(), b"\n"])
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be written: {error.strerror or error}") from error
        except ModelFileError as error:
            raise ModelFileError(f"{path}: {error.summary}") from error


def load_calibration(given: Calibration | str | os.PathLike[str] | None = None) -> Calibration:
    """Return the calibration in a file, this user's when None; an empty one if there is no file.

    A file of another version is left unused, with a warning, until devices are measured again.
    given: the file; a calibration is returned unchanged
    Errors: ModelFileError, if the file is damaged
    """
    if isinstance(given, Calibration):
        return given
    path = calibration_file() if given is None else Path(given)
    if path is None:
        return Calibration()
    try:
        if not path.exists():
            return Calibration()
        data = json.loads(path.read_text())
        version = data["version"]
        if isinstance(version, int) and version != VERSION:
            return _stale(path, version)
        if version != VERSION:
            raise ValueError(f"version {version!r}")
        devices = {name: _device(entry) for name, entry in data["devices"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{path} is not a calibration: {error}", fix="measure again: trireme calibrate"
        ) from error
    return Calibration(devices)


def _stale(path: Path, version: int) -> Calibration:
    which = "an older" if version < VERSION else "a newer"
    why = f"{path} is {which} version's calibration ({version}, not {VERSION})"
    _log.warning("%s and is not used; measure again: trireme calibrate", why)
    return Calibration(stale=why)


def _device(entry: Mapping[str, Any]) -> DeviceCalibration:
    curves = {family: Curve(**curve) for family, curve in entry["curves"].items()}
    copies = {key: (float(a), float(b)) for key, (a, b) in entry["copies"].items()}
    sharing = {name: Sharing(**figures) for name, figures in entry["sharing"].items()}
    launch_s = None if entry["launch_s"] is None else float(entry["launch_s"])
    kernel_s = float(entry["kernel_s"])
    nets = {
        apart: {name: float(seconds) for name, seconds in nets.items()}
        for apart, nets in entry["nets"].items()
    }
    cores = {apart: CoreLatency(**figures) for apart, figures in entry["cores"].items()}
    issue_s = None if entry["issue_s"] is None else float(entry["issue_s"])
    numbers = [
        launch_s or 0.0,
        kernel_s,
        issue_s or 0.0,
        *(seconds for some in nets.values() for seconds in some.values()),
        *(figure for one in cores.values() for figure in asdict(one).values()),
        *(v for pair in copies.values() for v in pair),
    ]
    for curve in curves.values():
        numbers += [curve.fixed_s, curve.low, curve.high, *curve.per.values()]
    for shared in sharing.values():
        numbers += asdict(shared).values()
    if not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise ValueError("a figure is negative or not finite")
    bandwidths = [pair[1] for pair in copies.values()] + [s.bandwidth for s in sharing.values()]
    if not all(bandwidths):
        raise ValueError("a bandwidth is zero")
    name, description = str(entry["name"]), str(entry["description"])
    return DeviceCalibration(
        name=name,
        description=description,
        launch_s=launch_s,
        kernel_s=kernel_s,
        curves=curves,
        copies=copies,
        sharing=sharing,
        nets=nets,
        issue_s=issue_s,
        cores=cores,
        apart=str(entry["apart"]),
        judged=tuple(Judgement(**one) for one in entry["judged"]),
    )
