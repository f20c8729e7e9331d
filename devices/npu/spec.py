"""The description of an NPU: a TOML file in, a checked NpuSpec out.

Compiler and simulator both read it; no other module of this folder has a number of a machine.
`specs/` has the descriptions that come with trireme. A user's own file is opened by path.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

from trireme.support.errors import DeviceError

DATAFLOWS = ("os", "ws", "is", "dot", "blocks")


@dataclass(frozen=True)
class MatrixUnit:
    """The array of multipliers.

    rows, cols: its size; MACs a cycle are rows x cols
    dataflow: the formula of `cycles` that counts its time: os, ws, is (systolic), dot, blocks
    block: (h, w, depth) of the output block that the dataflow `blocks` makes at once
    fill_cycles: to start a command (dot), or a block of `fill_elements` outputs (blocks)
    rate: MACs of a dtype relative to int8; a dtype that is absent cannot be multiplied
    """

    rows: int
    cols: int
    dataflow: str
    rate: Mapping[str, float] = field(hash=False)
    fill_cycles: int = 0
    fill_elements: int = 0
    block: tuple[int, ...] = ()


@dataclass(frozen=True)
class VectorUnit:
    """Elementwise work: elements a cycle, cycles to start, and a cost for each kind of work.

    cost: lane-cycles an element by command (binary, table, unary, softmax, pool, resize); 1.0 where
        absent
    pools: "vector" or "matrix": the engine whose formula counts pools
    """

    lanes: float
    latency_cycles: int
    cost: Mapping[str, float] = field(default_factory=dict, hash=False)
    pools: str = "vector"


@dataclass(frozen=True)
class DmaUnit:
    """Copies: bytes a cycle on chip, cycles to start one, bytes of the least DRAM access."""

    bytes_per_cycle: float
    latency_cycles: int
    burst_bytes: int


@dataclass(frozen=True)
class Sram:
    """On-chip memory: its size, banks that take lines in turn, bytes of a line (one a cycle)."""

    bytes: int
    banks: int
    bank_bytes_per_cycle: float


@dataclass(frozen=True)
class Dram:
    """Device memory: its size, bytes a second, and bytes a second of packed constants."""

    bytes: int
    bandwidth: float
    constants_bandwidth: float


@dataclass(frozen=True)
class HostLink:
    """The link to the host: seconds of a submit, seconds and bytes a second of a copy."""

    launch_s: float
    latency_s: float
    bandwidth: float


@dataclass(frozen=True)
class Limits:
    """Limits of the engines: the largest kernel side, stride and dilation of a window."""

    kernel: int
    stride: int
    dilation: int


@dataclass(frozen=True)
class NpuSpec:
    """A described NPU. `dtypes` are those of tensors; `ops`, unless empty, the ops it runs."""

    name: str
    description: str
    clock_hz: float
    alignment: int
    dtypes: tuple[str, ...]
    matrix: MatrixUnit
    vector: VectorUnit
    dma: DmaUnit
    sram: Sram
    dram: Dram
    host: HostLink
    limits: Limits
    ops: tuple[str, ...] = ()

    @property
    def macs(self) -> int:
        """Multiply-adds of int8 a cycle at full use."""
        return self.matrix.rows * self.matrix.cols

    def dram_bytes_per_cycle(self, constants: bool) -> float:
        """Return the bytes a cycle of device memory, or of the part with packed constants."""
        rate = self.dram.constants_bandwidth if constants else self.dram.bandwidth
        return rate / self.clock_hz


def spec_names() -> tuple[str, ...]:
    """Return the names of the descriptions that come with trireme."""
    folder = files("trireme.devices").joinpath("npu", "specs")
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml")))


def load_spec(spec: str | Path | NpuSpec) -> NpuSpec:
    """Return the description called `spec` ("default" is mobile), or the one in a file.

    Errors: DeviceError, naming the file and the field
    """
    if isinstance(spec, NpuSpec):
        return spec
    name = "mobile" if spec == "default" else str(spec)
    if isinstance(spec, str) and name in spec_names():
        resource = files("trireme.devices").joinpath("npu", "specs", f"{name}.toml")
        return parse_spec(resource.read_text(encoding="utf-8"), f"{name}.toml")
    path = Path(spec)
    if path.suffix != ".toml":
        raise DeviceError(
            f"unknown NPU {name!r}",
            facts=[f"known: {', '.join(spec_names())}"],
            fix="give one of these names, or the path of a .toml file",
        )
    try:
        return parse_spec(path.read_text(encoding="utf-8"), str(spec))
    except (OSError, UnicodeDecodeError) as error:
        raise DeviceError(f"NPU description {spec} cannot be read: {error}") from error


def parse_spec(text: str, where: str) -> NpuSpec:
    """Return the description in a TOML text; `where` names it in errors."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeviceError(f"NPU description {where} is not TOML: {error}") from error
    spec: NpuSpec = _section(NpuSpec, table, where, "")
    _check(spec, where)
    return spec


def _section(cls: Any, table: Any, where: str, prefix: str) -> Any:
    """Return a dataclass filled from a TOML table, every field checked against its type."""
    if not isinstance(table, dict):
        raise DeviceError(f"NPU description {where}: {prefix[:-1]} must be a table")
    types = get_type_hints(cls)
    unknown = sorted(set(table) - set(types))
    if unknown:
        raise DeviceError(
            f"NPU description {where}: unknown field {prefix}{unknown[0]}",
            facts=[f"known: {', '.join(sorted(types))}"],
        )
    values = {}
    for entry in fields(cls):
        if entry.name in table:
            values[entry.name] = _value(
                types[entry.name], table[entry.name], where, prefix + entry.name
            )
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise DeviceError(f"NPU description {where}: field {prefix}{entry.name} is missing")
    return cls(**values)


def _value(kind: Any, value: Any, where: str, name: str) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if hasattr(kind, "__dataclass_fields__"):
        return _section(kind, value, where, name + ".")
    if kind is str and isinstance(value, str):
        return value
    if kind is int and number and int(value) == value and value >= 0:
        return int(value)
    if kind is float and number and value >= 0:
        return float(value)
    if kind == tuple[str, ...] and isinstance(value, list) and all(type(v) is str for v in value):
        return tuple(value)
    if kind == tuple[int, ...] and isinstance(value, list) and all(type(v) is int for v in value):
        return tuple(value)
    if kind == Mapping[str, float] and isinstance(value, dict):
        return {key: _value(float, v, where, f"{name}.{key}") for key, v in value.items()}
    raise DeviceError(f"NPU description {where}: {name} = {value!r} is not {_KINDS[kind]}")


_KINDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number, 0 or more",
    float: "a number, 0 or more",
    tuple[str, ...]: "a list of texts",
    tuple[int, ...]: "a list of whole numbers",
    Mapping[str, float]: "a table of numbers",
}


def _check(spec: NpuSpec, where: str) -> None:
    positive = {
        "clock_hz": spec.clock_hz,
        "matrix.rows": spec.matrix.rows,
        "matrix.cols": spec.matrix.cols,
        "vector.lanes": spec.vector.lanes,
        "dma.bytes_per_cycle": spec.dma.bytes_per_cycle,
        "dma.burst_bytes": spec.dma.burst_bytes,
        "sram.bytes": spec.sram.bytes,
        "sram.banks": spec.sram.banks,
        "sram.bank_bytes_per_cycle": spec.sram.bank_bytes_per_cycle,
        "dram.bytes": spec.dram.bytes,
        "dram.bandwidth": spec.dram.bandwidth,
        "dram.constants_bandwidth": spec.dram.constants_bandwidth,
        "host.bandwidth": spec.host.bandwidth,
    }
    for name, value in positive.items():
        if not value > 0:
            raise DeviceError(f"NPU description {where}: {name} = {value} must be more than 0")
    if spec.matrix.dataflow not in DATAFLOWS:
        raise DeviceError(
            f"NPU description {where}: matrix.dataflow = {spec.matrix.dataflow!r}",
            facts=[f"known: {', '.join(DATAFLOWS)}"],
        )
    if spec.matrix.dataflow == "blocks" and (len(spec.matrix.block) != 3 or 0 in spec.matrix.block):
        raise DeviceError(f"NPU description {where}: matrix.block must be [h, w, depth]")
    if spec.alignment < 16 or spec.alignment & (spec.alignment - 1):
        raise DeviceError(
            f"NPU description {where}: alignment = {spec.alignment} is not a power of two from 16"
        )
    if spec.vector.pools not in ("vector", "matrix"):
        raise DeviceError(f"NPU description {where}: vector.pools must be vector or matrix")
    bad = sorted(set(spec.dtypes) - {"int8", "uint8", "float16"})
    if bad or not spec.dtypes:
        raise DeviceError(
            f"NPU description {where}: dtypes = {list(spec.dtypes)}",
            facts=["known: int8, uint8, float16"],
        )
    missing = [dtype for dtype in spec.dtypes if not spec.matrix.rate.get(dtype)]
    if missing:
        raise DeviceError(f"NPU description {where}: matrix.rate.{missing[0]} is missing or 0")
