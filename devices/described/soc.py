"""Read the description of a machine: TOML, a table a device, each figure with its source.

    name = "..."
    [devices.npu]
    flops = {int8 = 4e12}       # operations a second; a multiply-add counts as two
    bandwidth = 12.8e9          # bytes a second to and from its memory
    launch_s = 50e-6            # of a task; of every node where sinks = false
    memory_bytes = 8e6    # of its memory: weights, scratch, code and arena; no end when not given
    streams_weights = true  # what of the weights finds no room is fetched over the link, every run
    sram = 1e6            # on the chip: what fits there travels at sram_bandwidth
    sram_bandwidth = 100e9
    schemes = ["int8", "uint8"]  # of quantisation; the dtypes of their values need no other line
    dtypes = ["float16"]         # of tensors beside these
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
one. A description that has an unknown field, or a figure or a list of ops without a source, is
refused.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from trireme.backend.device import HOST, DeviceSpec
from trireme.devices.described.checks import (
    LISTS,
    NUMBERS,
    TABLES,
    Published,
    check_device,
    check_machine,
    flat,
)
from trireme.devices.described.device import DescribedDevice, Support, Working
from trireme.quantiser.scheme import SCHEMES
from trireme.support.errors import ModelFileError, RunError


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
                if key in (*NUMBERS, *TABLES):
                    found.update({f"{name}.{full}": float(v) for full, v in flat(key, value)})
        return found

    def named(self, figure: str) -> list[str]:
        """Return the full names that a figure's name stands for; a table's, all that are in it.

        Errors: RunError, if no figure is called so
        """
        known = self.figures()
        names = [n for n in known if f".{n}".endswith(f".{figure}")]
        if figure.rpartition(".")[2] in TABLES:
            names = [n for n in known if f".{figure}." in f".{n}"]
        if not names:
            raise RunError(
                f"the description of {self.name} has no figure {figure!r}",
                facts=["it has " + ", ".join(sorted(known))],
            )
        return names

    def varied(self, changes: Mapping[str, float]) -> Soc:
        """Return the machine with some figures (by full name) of other value.

        Errors: RunError, if a figure cannot have that value
        """
        tables = copy.deepcopy(dict(self.tables))
        for full, value in changes.items():
            device, *path, last = full.split(".")
            row = tables["devices"][device]
            for key in path:
                row = row[key]
            row[last] = value
        for name in {full.partition(".")[0] for full in changes}:
            try:
                check_device(name, name, tables["devices"][name])
            except ModelFileError as error:
                raise RunError(f"{self.name} cannot be varied so: {error}") from error
        return Soc(self.name, tables)

    def only(self, names: Collection[str]) -> Soc:
        """Return the machine with some of its devices, those of the names.

        Errors: RunError, if there is no such device
        """
        rows = self.tables["devices"]
        unknown = [name for name in names if name not in rows]
        if unknown or not names:
            wrong = repr(unknown[0]) if unknown else "without a name"
            facts = [f"it has {', '.join(rows)}"]
            raise RunError(f"{self.name} has no device {wrong}", facts=facts)
        chosen = {name: row for name, row in rows.items() if name in names}
        return Soc(self.name, {**self.tables, "devices": chosen, "published": []})


def soc_names() -> list[str]:
    """Return the names of the descriptions that come with trireme."""
    folder = files("trireme.devices") / "described" / "socs"
    return sorted(path.name[:-5] for path in folder.iterdir() if path.name.endswith(".toml"))


def load_soc(name_or_path: str) -> Soc:
    """Read a description: one that comes with trireme, by name, or a file.

    Errors: ModelFileError, if it cannot be read, is not TOML, or a field is missing, unknown or
    wrong
    """
    try:
        tables = tomllib.loads(_text(name_or_path))
    except tomllib.TOMLDecodeError as error:
        raise ModelFileError(f"{name_or_path}: {error}") from error
    check_machine(name_or_path, tables)
    return Soc(str(tables["name"]), tables)


def _text(name_or_path: str) -> str:
    if name_or_path in soc_names():
        folder = files("trireme.devices") / "described" / "socs"
        return (folder / f"{name_or_path}.toml").read_text(encoding="utf-8")
    try:
        return Path(name_or_path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError as error:
        raise ModelFileError(
            f"there is no description {name_or_path!r}",
            facts=[f"with trireme come {', '.join(soc_names())}; else give a .toml file"],
        ) from error
    except OSError as error:
        raise ModelFileError(f"{name_or_path!r} cannot be read: {error.strerror}") from error


def _by_dtype(efficiency: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    """Return the shares by dtype: tables in the table; the rest is for every other dtype."""
    tables = {key: value for key, value in efficiency.items() if isinstance(value, dict)}
    return {"": {k: v for k, v in efficiency.items() if k not in tables}, **tables}


def _device(soc: Soc, name: str, row: Mapping[str, Any]) -> DescribedDevice:
    on_chip = {key: float(row[key]) for key in ("sram", "sram_bandwidth") if key in row}
    numbers = {key: row[key] for key in NUMBERS if key in row and key not in on_chip}
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
        sram_bytes=int(on_chip.get("sram", 0)),
        streams_weights=bool(row.get("streams_weights", False)),
        **numbers,
    )
    lists = {key: frozenset(row.get(key, [])) for key in LISTS}
    lists["dtypes"] |= {SCHEMES[scheme].values for scheme in lists["schemes"]}
    support = Support(
        **lists,
        max_rank=int(row.get("max_rank", 0)),
        max_elements=row.get("max_elements", {}),
        one_subgraph=row.get("one_subgraph", False),
    )
    working = Working(
        efficiency=_by_dtype(row.get("efficiency", {})),
        node_launch_s=0.0 if sinks else launch_s,
        **on_chip,
    )
    return DescribedDevice(spec, support, working)
