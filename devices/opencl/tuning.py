"""Parameter sets of the kernels by device class, adjusted by the device's own figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trireme.devices.opencl.platforms import FoundDevice


@dataclass(frozen=True)
class Tuning:
    """The parameters of the kernels for a class of devices.

    vector: lanes of a vector of 4-byte elements
    rows, columns: a tile of a matrix product is `rows` by `columns` vectors, kept in registers
    group: work items of a work-group in kernels of independent items
    product_group: the same in matrix products: (tiles of rows, tiles of columns)
    on_cores: whether the driver runs work-groups on the CPU's cores
    """

    name: str
    vector: int
    rows: int
    columns: int
    group: int
    product_group: tuple[int, int]
    on_cores: bool = False


CLASSES: Mapping[str, Tuning] = {
    "cpu": Tuning("cpu", 16, 12, 2, 16, (1, 1), on_cores=True),
    "desktop_gpu": Tuning("desktop_gpu", 4, 4, 1, 64, (8, 8)),
    "mobile_gpu": Tuning("mobile_gpu", 4, 4, 2, 64, (4, 8)),
}
_MOBILE = ("adreno", "mali", "powervr", "videocore", "immortalis")


def tuning_for(found: FoundDevice, asked: str | None) -> Tuning:
    """Return the parameters for a device, or those of the class asked for.

    On a CPU the tile follows the vector width: 12 rows by 2 vectors fill 32 registers of AVX-512 or
    NEON, 4 by 2 the 16 of AVX2, where a float8 is one register.
    """
    base = CLASSES[asked or _class_of(found)]
    if not base.on_cores:
        return base
    width = int(found.handle.native_vector_width_float) or 4
    if width >= 16:
        return base
    if width == 8:
        return replace(base, vector=8, rows=6)
    return replace(base, vector=4, rows=8)


def _class_of(found: FoundDevice) -> str:
    if found.kind in ("cpu", "custom"):
        return "cpu"
    return "mobile_gpu" if any(n in found.device.lower() for n in _MOBILE) else "desktop_gpu"


def units_and_clock(device: Any) -> tuple[int, float]:
    """Return the number of compute units and their clock in hertz, as the driver describes them."""
    return max(int(device.max_compute_units), 1), (int(device.max_clock_frequency) or 1000) * 1e6


def figures(device: Any, kind: str) -> tuple[float, float]:
    """Return (float32 operations, bytes) a second, guessed from the device's own description.

    Operations: compute units x clock x lanes x 2 (a multiply-add) x 2 pipes, at half of the peak. A
        CPU reports its lanes; a GPU's compute unit counts as 64 on one pipe. Bytes: 5 GB/s a core,
        and a tenth of a byte an operation on a GPU. Calibration replaces both.
    """
    units, clock = units_and_clock(device)
    if kind == "gpu":
        flops = units * clock * 64 * 2 * 0.5
        return flops, max(flops * 0.1, 1e10)
    lanes = int(device.native_vector_width_float) or 4
    return units * clock * lanes * 4 * 0.5, max(units * 5e9, 1e10)
