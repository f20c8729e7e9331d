"""The file of a locked placement: TOML, a line a node, to be read, kept and compared."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trireme.placement.lock import Lock, LockedNode, LockedOptions
from trireme.support.atomic import write_atomic
from trireme.support.errors import ModelFileError

VERSION = 4


def lock_text(locked: Lock) -> str:
    """Return the file's text."""
    lines = [
        "# A placement of trireme: which node runs where, and why.",
        "# `trireme place MODEL --check FILE` says what would change it.",
        f"version = {VERSION}",
        f"model = {_quoted(locked.model)}",
        f"trireme = {_quoted(locked.trireme)}",
        f"objective = {_quoted(locked.objective)}",
        f"predicted = {locked.predicted!r}",
        f"lower_bound = {locked.lower_bound!r}",
        f"unit = {_quoted(locked.unit)}",
        f"shards = [{', '.join(map(_quoted, locked.shards))}]",
        f"measured = {str(locked.measured).lower()}",
        "nodes = [",
    ]
    lines += [
        f"  {{name = {_quoted(n.name)}, op = {_quoted(n.op)}, device = {_quoted(n.device)}, "
        f"task = {n.task}, us = {n.us:.3f}, why = {_quoted(n.why)}{_body(n)}}},"
        for n in locked.nodes
    ]
    lines += ["]", "", *_option_lines(locked.options), "", "[devices]"]
    lines += [f"{_quoted(name)} = {_quoted(text)}" for name, text in locked.devices.items()]
    return "\n".join(lines) + "\n"


def _body(node: LockedNode) -> str:
    return f", body = [{', '.join(map(_quoted, node.body))}]" if node.body else ""


def _option_lines(options: LockedOptions) -> list[str]:
    """Return the table of options; what was not given is left out."""
    pins = ", ".join(f"{_quoted(name)} = {_quoted(to)}" for name, to in options.pins.items())
    figures = ", ".join(f"{_quoted(name)} = {value!r}" for name, value in options.figures.items())
    given = {
        "devices": f"[{', '.join(map(_quoted, options.devices))}]",
        "batch": "" if options.batch is None else str(options.batch),
        "threads": "" if options.threads is None else str(options.threads),
        "pins": f"{{{pins}}}" if pins else "",
        "soc": _quoted(options.soc) if options.soc else "",
        "figures": f"{{{figures}}}" if figures else "",
        "calibration": _quoted(options.calibration) if options.calibration else "",
    }
    return ["[options]", *(f"{name} = {text}" for name, text in given.items() if text)]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def save_lock(locked: Lock, path: Path) -> None:
    """Write the lock, whole or not at all.

    Errors: ModelFileError, if it cannot be written
    """
    try:
        write_atomic(path, [lock_text(locked).encode()])
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error.summary}") from error


def load_lock(file: str | os.PathLike[str]) -> Lock:
    """Read a lock.

    Errors: ModelFileError, if it cannot be read, is damaged or of a version not known here
    """
    path = Path(file)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: not a placement: {error}") from error
    if data.get("version") != VERSION:
        raise ModelFileError(
            f"{path}: version {data.get('version')!r} of placements, this trireme reads {VERSION}",
            fix="place the model anew: trireme place MODEL --lock FILE",
        )
    try:
        nodes = tuple(_node(row) for row in data["nodes"])
        devices = {str(name): str(text) for name, text in data["devices"].items()}
        return Lock(
            model=str(data["model"]),
            trireme=str(data["trireme"]),
            objective=str(data["objective"]),
            predicted=float(data["predicted"]),
            lower_bound=float(data["lower_bound"]),
            unit=str(data["unit"]),
            devices=devices,
            nodes=nodes,
            shards=tuple(str(text) for text in data.get("shards", ())),
            measured=bool(data.get("measured", False)),
            options=_options(data["options"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{path}: a placement without its {error}") from error


def _options(row: Mapping[str, Any]) -> LockedOptions:
    batch, threads = row.get("batch"), row.get("threads")
    return LockedOptions(
        devices=tuple(str(name) for name in row["devices"]),
        batch=None if batch is None else int(batch),
        threads=None if threads is None else int(threads),
        pins={str(name): str(device) for name, device in row.get("pins", {}).items()},
        soc=str(row.get("soc", "")),
        figures={str(name): float(value) for name, value in row.get("figures", {}).items()},
        calibration=str(row.get("calibration", "")),
    )


def _node(row: Mapping[str, Any]) -> LockedNode:
    return LockedNode(
        str(row["name"]),
        str(row["op"]),
        str(row["device"]),
        int(row["task"]),
        float(row["us"]),
        str(row["why"]),
        tuple(str(text) for text in row.get("body", ())),
    )
