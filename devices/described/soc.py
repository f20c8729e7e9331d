"""Read the description of a machine: TOML, a table a device, each figure with its source.

    name = "..."
    [devices.npu]
    flops = {int8 = 4e12}       # operations a second; a multiply-add counts as two
    bandwidth = 12.8e9          # bytes a second to and from its memory
    launch_s = 50e-6            # of a task; of every node where sinks = false
    sram = 1e6            # on the chip: what fits there travels at sram_bandwidth
    sram_bandwidth = 100e9
    efficiency = {default = 0.4, depthwise = 0.1, int8 = {default = 0.2}}  # of flops, by kind
    [devices.npu.sources]
    flops = "data sheet, page 3"
    launch_s = "estimate: ..."

    [[published]]               # what others measured there, to hold predictions against
    device = "npu"
    model = "mobilenet_v2"
    dtype = "int8"
    ms = 2.6                    # a run; pipelined = true where only frames a second are known
    source = "..."

A figure may be varied by name: `link_bandwidth` of every device that has one, `npu.flops.int8` of
one. A description that has an unknown field, or a figure without a source, is refused.
"""

from __future__ import annotations

import copy
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from trireme.device import HOST, DeviceSpec
from trireme.devices.described.device import DescribedDevice, Support, Working
from trireme.errors import ModelFileError, RunError

_NUMBERS = (
    "bandwidth", "launch_s", "link_latency_s", "link_bandwidth", "memory_bytes", "power_w",
    "link_j_per_byte", "sram", "sram_bandwidth",
)  # fmt: skip
_NEEDED = ("flops", "bandwidth", "launch_s")
_LISTS = ("ops", "except_ops", "dtypes")
_OTHERS = ("description", "memory", "resource_group", "max_rank", "sources", "efficiency", "sinks")
_TABLES = ("flops", "efficiency")
_KNOWN = {*_NUMBERS, *_LISTS, *_OTHERS, "flops"}


@dataclass(frozen=True)
class Published:
    """A run that somebody measured on a machine: milliseconds of a model on one of its devices.

    pipelined: one frame follows another at once, so launch and copies are hidden
    """

    device: str
    model: str
    dtype: str
    ms: float
    source: str
    pipelined: bool = False


@dataclass(frozen=True)
class Soc:
    """A described machine. `tables` is the file as read, checked."""

    name: str
    tables: Mapping[str, Any]

    def devices(self) -> dict[str, DescribedDevice]:
        """Return the devices by name, in the order of the file."""
        return {name: _device(self, name, row) for name, row in self.tables["devices"].items()}

    def published(self) -> tuple[Published, ...]:
        """Return the measured runs that the file tells."""
        return tuple(Published(**row) for row in self.tables.get("published", ()))

    def figures(self) -> dict[str, float]:
        """Return every figure that can be varied, by its full name."""
        found: dict[str, float] = {}
        for name, row in self.tables["devices"].items():
            for key, value in row.items():
                if key in _NUMBERS:
                    found[f"{name}.{key}"] = float(value)
                elif key in _TABLES:
                    found.update({f"{name}.{k}": float(v) for k, v in _flat(key, value)})
        return found

    def named(self, figure: str) -> list[str]:
        """Return the full names that a figure's name stands for.

        Errors: RunError, if no figure is called so
        """
        known = self.figures()
        names = [n for n in known if n == figure or n.endswith(f".{figure}")]
        if not names:
            raise RunError(
                f"the description of {self.name} has no figure {figure!r}",
                facts=["it has " + ", ".join(sorted(known))],
            )
        return names

    def varied(self, changes: Mapping[str, float]) -> Soc:
        """Return the machine with some figures (by full name) of other value."""
        tables = copy.deepcopy(dict(self.tables))
        for full, value in changes.items():
            device, *path, last = full.split(".")
            row = tables["devices"][device]
            for key in path:
                row = row[key]
            row[last] = value
        return Soc(self.name, tables)


def soc_names() -> list[str]:
    """Return the names of the descriptions that come with trireme."""
    folder = files("trireme.devices") / "described" / "socs"
    return sorted(path.name[:-5] for path in folder.iterdir() if path.name.endswith(".toml"))


def load_soc(name_or_path: str) -> Soc:
    """Read a description: one that comes with trireme, by name, or a file.

    Errors: OSError; ModelFileError, if it is not TOML, or a field is missing, unknown or wrong
    """
    if name_or_path in soc_names():
        folder = files("trireme.devices") / "described" / "socs"
        text = (folder / f"{name_or_path}.toml").read_text(encoding="utf-8")
    elif not Path(name_or_path).exists():
        raise ModelFileError(
            f"there is no description {name_or_path!r}",
            facts=[f"with trireme come {', '.join(soc_names())}; else give a .toml file"],
        )
    else:
        text = Path(name_or_path).read_text(encoding="utf-8", errors="replace")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ModelFileError(f"{name_or_path}: {error}") from error
    _check(name_or_path, tables)
    return Soc(str(tables["name"]), tables)


def _check(path: str, tables: Mapping[str, Any]) -> None:
    devices = tables.get("devices")
    if not isinstance(tables.get("name"), str) or not isinstance(devices, dict) or not devices:
        raise ModelFileError(f"{path}: a description has a name and at least one [devices.*]")
    for name, row in devices.items():
        where = f"{path}: devices.{name}"
        if not isinstance(row, dict):
            raise ModelFileError(f"{where} is not a table")
        unknown = sorted(set(row) - _KNOWN)
        if unknown:
            raise ModelFileError(f"{where}: unknown field {unknown[0]!r}")
        missing = [key for key in _NEEDED if key not in row]
        if missing:
            raise ModelFileError(f"{where} has no {missing[0]}")
        _check_figures(where, row)
    for row in tables.get("published", ()):
        _check_published(f"{path}: published", row, devices)
    if not any(row.get("memory", HOST) == HOST for row in devices.values()):
        raise ModelFileError(f"{path}: no device works in host memory", fix='memory = "host"')


def _check_published(where: str, row: object, devices: Mapping[str, Any]) -> None:
    known = {field.name: field.default is MISSING for field in fields(Published)}
    if not isinstance(row, dict) or set(row) - set(known):
        raise ModelFileError(f"{where} has {', '.join(known)} and nothing else")
    missing = [name for name, needed in known.items() if needed and name not in row]
    if missing:
        raise ModelFileError(f"{where} has no {missing[0]}")
    if row["device"] not in devices:
        raise ModelFileError(f"{where}: there is no device {row['device']!r}")
    if not isinstance(row["ms"], (int, float)) or not 0 < row["ms"] < math.inf:
        raise ModelFileError(f"{where}.ms is {row['ms']!r}, not a positive number")


def _check_figures(where: str, row: Mapping[str, Any]) -> None:
    for key in (*_TABLES, "sources"):
        if not isinstance(row.get(key, {}), dict):
            raise ModelFileError(f"{where}.{key} is not a table")
    if not row["flops"]:
        raise ModelFileError(f"{where}.flops is empty")
    for key in _LISTS:
        names = row.get(key, [])
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise ModelFileError(f"{where}.{key} is not a list of names")
    numbers = {key: row[key] for key in (*_NUMBERS, "max_rank") if key in row}
    for table in _TABLES:
        numbers.update(_flat(table, row.get(table, {})))
    for key, value in numbers.items():
        whole = isinstance(value, (int, float)) and not isinstance(value, bool)
        positive = whole and math.isfinite(value) and value >= 0
        if not positive or (value == 0 and key.split(".")[0] in (*_NEEDED[:2], "efficiency")):
            raise ModelFileError(f"{where}.{key} is {value!r}, not a positive number")
    if row.get("memory", HOST) != HOST and not row.get("link_bandwidth"):
        raise ModelFileError(f"{where} has memory of its own and no link_bandwidth")
    if row.get("sram") and not row.get("sram_bandwidth"):
        raise ModelFileError(f"{where} has sram and no sram_bandwidth")
    if not isinstance(row.get("sinks", True), bool):
        raise ModelFileError(f"{where}.sinks is {row['sinks']!r}, not true or false")
    for key in (*_NUMBERS, *_TABLES):
        if key in row and key not in row.get("sources", {}):
            raise ModelFileError(
                f"{where}.{key} has no source", fix=f'[devices.X.sources] {key} = "estimate: ..."'
            )


def _flat(name: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what is in a table and the tables in it, by full name."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{name}.{key}", value)
        else:
            yield f"{name}.{key}", value


def _by_dtype(efficiency: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    """Return the shares by dtype: tables in the table; the rest is for every other dtype."""
    tables = {key: value for key, value in efficiency.items() if isinstance(value, dict)}
    return {"": {k: v for k, v in efficiency.items() if k not in tables}, **tables}


def _device(soc: Soc, name: str, row: Mapping[str, Any]) -> DescribedDevice:
    on_chip = {key: float(row[key]) for key in ("sram", "sram_bandwidth") if key in row}
    numbers = {key: row[key] for key in _NUMBERS if key in row and key not in on_chip}
    sinks = row.get("sinks", True)
    launch_s = numbers.pop("launch_s")
    if "memory_bytes" in numbers:
        numbers["memory_bytes"] = int(numbers["memory_bytes"])
    spec = DeviceSpec(
        name=name,
        description=str(row.get("description", f"{name} of {soc.name}")),
        flops={dtype: float(rate) for dtype, rate in row["flops"].items()},
        memory=str(row.get("memory", HOST)),
        resource_group=str(row.get("resource_group", "")),
        clock="virtual",
        launch_s=launch_s if sinks else 0.0,
        **numbers,
    )
    lists = {key: frozenset(row.get(key, [])) for key in _LISTS}
    support = Support(**lists, max_rank=int(row.get("max_rank", 0)))
    working = Working(
        efficiency=_by_dtype(row.get("efficiency", {})),
        node_launch_s=0.0 if sinks else launch_s,
        **on_chip,
    )
    return DescribedDevice(spec, support, working)
