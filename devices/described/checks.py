"""Check the description of a machine: a rule for each field, a sentence for each broken rule.

`soc` asks when a file is read, and again when figures of it are varied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from trireme.backend.device import HOST
from trireme.ir.op import all_ops, has_op
from trireme.quantiser.scheme import SCHEMES
from trireme.support.dtypes import NAMES
from trireme.support.errors import ModelFileError

NUMBERS = (
    "bandwidth",
    "launch_s",
    "link_latency_s",
    "link_bandwidth",
    "memory_bytes",
    "power_w",
    "link_j_per_byte",
    "sram",
    "sram_bandwidth",
)
TABLES = ("flops", "efficiency", "max_elements")
"""Fields whose figures are in a table, or in tables in it."""
LISTS = ("ops", "except_ops", "dtypes", "schemes")
_DEPTH = {"flops": 1, "efficiency": 2, "max_elements": 1, "sources": 1}
"""How deep tables may be in a field; all other fields hold values."""
_NEEDED = ("flops", "bandwidth", "launch_s")


@dataclass(frozen=True)
class Published:
    """A run that somebody measured on a machine: milliseconds of a model on one of its devices.

    used: "fit", if the description's figures were fitted to it, else "held out"
    pipelined: one frame follows another at once, so launch and copies are hidden
    """

    device: str
    model: str
    dtype: str
    ms: float
    source: str
    used: str
    pipelined: bool = False


USES = ("fit", "held out")


@dataclass(frozen=True)
class _Rule:
    """The condition of a field's value, and the words that end the sentence "x is 3, not"."""

    holds: Callable[[Any], bool]
    what: str


def _is_number(value: object, least: float = 0.0, most: float = math.inf) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return least <= float(value) <= most and math.isfinite(value)
    except OverflowError:
        return False


def _is_rate(value: object) -> bool:
    return _is_number(value, math.ulp(0.0))


_SHARE = _Rule(lambda v: _is_rate(v) and v <= 1, "a share above 0, of 1 at most")
_RATE = _Rule(_is_rate, "a positive number")
_AMOUNT = _Rule(_is_number, "a positive number or 0")
_TEXT = _Rule(lambda v: isinstance(v, str) and bool(v), "a text")
_NAMES = _Rule(
    lambda v: isinstance(v, list) and all(isinstance(n, str) for n in v), "a list of names"
)
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(NUMBERS, _AMOUNT),
    **dict.fromkeys(("bandwidth", "flops"), _RATE),
    "efficiency": _SHARE,
    **dict.fromkeys(("description", "memory", "resource_group"), _TEXT),
    **dict.fromkeys(LISTS, _NAMES),
    "max_rank": _Rule(
        lambda v: isinstance(v, int) and _is_number(v), "a whole number, or 0 for any rank"
    ),
    "max_elements": _Rule(lambda v: isinstance(v, int) and _is_rate(v), "a whole number above 0"),
    **dict.fromkeys(
        ("sinks", "streams_weights", "one_subgraph"),
        _Rule(lambda v: isinstance(v, bool), "true or false"),
    ),
}


def check_machine(path: str, tables: Mapping[str, Any]) -> None:
    """See that a file's tables describe a machine.

    Errors: ModelFileError, naming the first field that is missing, unknown or wrong
    """
    devices = tables.get("devices")
    if not isinstance(tables.get("name"), str) or not isinstance(devices, dict) or not devices:
        raise ModelFileError(f"{path}: a description has a name and at least one [devices.*]")
    _check_known(path, tables, ("name", "devices", "published"))
    for name, row in devices.items():
        check_device(f"{path}: devices.{name}", name, row)
    published = tables.get("published", [])
    if not isinstance(published, list):
        raise ModelFileError(f"{path}: published is no list of tables", fix="[[published]]")
    for row in published:
        _check_published(f"{path}: published", row, devices)
    if not any(row.get("memory", HOST) == HOST for row in devices.values()):
        raise ModelFileError(f"{path}: no device works in host memory", fix='memory = "host"')


def _check_known(where: str, table: Mapping[str, Any], known: Collection[str]) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ModelFileError(f"{where}: unknown field {unknown[0]!r}")


def check_device(where: str, name: str, row: object) -> None:
    """See that a table describes a device; where: it is, for errors.

    Errors: ModelFileError, naming the first field that is missing, unknown or wrong
    """
    if not isinstance(row, dict):
        raise ModelFileError(f"{where} is not a table")
    if not name or set(name) & set(".,>=: "):
        raise ModelFileError(f"{where}: a device is not called {name!r}: . , > = : have a meaning")
    _check_known(where, row, (*_RULES, "sources"))
    missing = [key for key in _NEEDED if key not in row]
    if missing:
        raise ModelFileError(f"{where} has no {missing[0]}")
    sources = row.get("sources", {})
    for key in (*TABLES, "sources"):
        if not isinstance(row.get(key, {}), dict):
            raise ModelFileError(f"{where}.{key} is not a table")
    for key, value in row.items():
        for full, figure in flat(key, value, _DEPTH.get(key, 0)):
            rule = _TEXT if key == "sources" else _RULES[key]
            if not rule.holds(figure):
                raise ModelFileError(f"{where}.{full} is {figure!r}, not {rule.what}")
    _check_names(where, row)
    _check_together(where, row)
    for key in (*NUMBERS, *TABLES, "ops", "except_ops", "schemes"):
        if key in row and key not in sources:
            raise ModelFileError(
                f"{where}.{key} has no source", fix=f'[devices.X.sources] {key} = "estimate: ..."'
            )


def _check_names(where: str, row: Mapping[str, Any]) -> None:
    """See that all names are of ops, dtypes, schemes or kinds of ops that there are."""
    for key in ("ops", "except_ops", "max_elements"):
        for name in row.get(key, ()):
            if not has_op(name):
                raise ModelFileError(f"{where}.{key} has {name!r}, which is no op")
    for name in (*row.get("dtypes", ()), *row["flops"]):
        if name not in NAMES:
            raise ModelFileError(
                f"{where} has {name!r}, which is no dtype", facts=[f"known: {', '.join(NAMES)}"]
            )
    for name in row.get("schemes", ()):
        if name not in SCHEMES:
            raise ModelFileError(
                f"{where}.schemes has {name!r}, which is no scheme of quantisation",
                facts=[f"known: {', '.join(SCHEMES)}"],
            )
    kinds = sorted({"default", "depthwise", *(op.family for op in all_ops())})
    for full, _ in flat("", row.get("efficiency", {})):
        *dtype, kind = full.split(".")[1:]
        if kind not in kinds or len(dtype) > 1 or not set(dtype) <= set(NAMES):
            raise ModelFileError(
                f"{where}.efficiency{full}: expected KIND or DTYPE.KIND",
                facts=[f"kinds: {', '.join(kinds)}"],
            )


def _check_together(where: str, row: Mapping[str, Any]) -> None:
    if not row["flops"]:
        raise ModelFileError(f"{where}.flops is empty")
    if row.get("memory", HOST) != HOST and not row.get("link_bandwidth"):
        raise ModelFileError(f"{where} has memory of its own and no link_bandwidth")
    if row.get("streams_weights") and (
        row.get("memory", HOST) == HOST or not row.get("memory_bytes")
    ):
        raise ModelFileError(
            f"{where} streams weights and has no memory of its own with memory_bytes"
        )
    if row.get("sram") and not row.get("sram_bandwidth"):
        raise ModelFileError(f"{where} has sram and no sram_bandwidth")


def _check_published(where: str, row: object, devices: Mapping[str, Any]) -> None:
    known = {field.name: field.default is MISSING for field in fields(Published)}
    if not isinstance(row, dict) or set(row) - set(known):
        raise ModelFileError(f"{where} has {', '.join(known)} and nothing else")
    missing = [name for name, needed in known.items() if needed and name not in row]
    if missing:
        raise ModelFileError(f"{where} has no {missing[0]}")
    if row["device"] not in devices:
        raise ModelFileError(f"{where}: there is no device {row['device']!r}")
    rules = {
        **dict.fromkeys(known, _TEXT),
        "ms": _RATE,
        "pipelined": _RULES["sinks"],
        "used": _Rule(lambda v: v in USES, " or ".join(map(repr, USES))),
    }
    for key, value in row.items():
        if not rules[key].holds(value):
            raise ModelFileError(f"{where}.{key} is {value!r}, not {rules[key].what}")


def flat(name: str, value: Any, depth: int = 2) -> Iterator[tuple[str, Any]]:
    """Yield a value, or what is in a table and the tables in it, to a depth, by full name."""
    if not depth or not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from flat(f"{name}.{key}", inner, depth - 1)
