"""The pages docs/reference/serve-config.md and metrics.md, from the classes that hold the facts."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from trireme.serving.admission import ServingLimits
from trireme.serving.config import (
    BatchSettings,
    ModelSettings,
    PipelineSettings,
    ServerSettings,
)
from trireme.serving.metric_names import NAMES
from trireme.serving.versions import VersionPolicy

_TABLES = {
    "server": ServerSettings,
    "limits": ServingLimits,
    "defaults": ModelSettings,
    "models.NAME": ModelSettings,
    "models.NAME.versions": VersionPolicy,
    "models.NAME.batching": BatchSettings,
    "pipelines.NAME": PipelineSettings,
}
"""The class of each table of serve.toml."""
_TYPES = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "Sequence[str]": "list of texts",
    "Sequence[int]": "list of whole numbers",
    "Mapping[str, str]": "table of texts",
    "Mapping[str, Sequence[int]]": "table of lists",
    "Mapping[str, Sequence[str]]": "table of lists",
    "Mapping[str, Sequence[int | str]]": "table of lists",
    "VersionPolicy": "table",
    "BatchSettings": "table",
}
_EXAMPLE = """[server]
repository = "models"
http = 8000
grpc = 8001

[limits]
max_queue = 64

[defaults]
threads = 2

[models.digits]
devices = ["cpu"]
versions = {latest = 2}

[models.digits.batching]
max_batch_size = 16
max_queue_delay_us = 500

[pipelines.reader]
stages = ["preparing:decode", "digits"]
inputs = {image = "BYTES[1]"}
"""
_CONFIG = """`trireme.serving.config_file.read_config("serve.toml")` reads the file, and
`trireme.serving.configured.server_of(config)` makes its server. Relative paths are seen from the
folder of the file. A wrong key is an error that names its table.
"""
_METRICS = """The page `/metrics` has these metrics, in the text format of Prometheus. Each server
has a registry of its own.

* The seconds of histograms end at the answer. HTTP and gRPC count alike.
* Busy seconds of a simulated device are those of the device's own clock.
* A session with one device keeps the device busy for as long as a run takes. The seconds of runs
  that are under way at once add up.
* Of a session with several devices one run in 64 is watched. The runs between are taken to spend
  the same share of their time on each device.
* The prediction ratio is there where shapes are fixed, no device is simulated, and no stored
  program runs.
* Labels are never made from names that clients make up: such requests have empty labels.
"""


def config_page(note: str) -> str:
    """Return the page of serve.toml."""
    lines = [note, "# serve.toml", "", _CONFIG, "```toml", *_EXAMPLE.splitlines(), "```"]
    for table, kind in _TABLES.items():
        lines += ["", f"## {table}", ""]
        if table == "defaults":
            lines += ["Keys as in [models.NAME](#modelsname). They hold for models that do not set"]
            lines += ["the key themselves."]
            continue
        lines += [" ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()), ""]
        lines += ["| key | value | default | meaning |", "|---|---|---|---|", *_rows(kind)]
    return "\n".join(lines) + "\n"


def metrics_page(note: str) -> str:
    """Return the page of the metrics."""
    lines = [note, "# Metrics", "", _METRICS, "| metric | kind | labels | meaning |"]
    lines += ["|---|---|---|---|"]
    for name, known in NAMES.items():
        labels = ", ".join(f"`{one}`" for one in known.labels)
        lines.append(f"| `{name}` | {known.kind} | {labels} | {known.meaning} |")
    return "\n".join(lines) + "\n"


def _rows(kind: Any) -> Iterator[str]:
    """Yield the row of each field of a class."""
    meanings = _meanings(kind)
    for one in dataclasses.fields(kind):
        type_name = str(one.type).removesuffix(" | None")
        default = _default(one)
        yield f"| `{one.name}` | {_TYPES[type_name]} | {default} | {meanings[one.name]} |"


def _default(field: Any) -> str:
    """Return the default of a field as TOML; nothing for one that is empty."""
    value = field.default
    if value is dataclasses.MISSING or value is None or value in ("", ()):
        return ""
    return f"`{json.dumps(value)}`"


def _meanings(kind: Any) -> dict[str, str]:
    """Return the meaning of each field, from the lines "name: meaning" of the docstring."""
    found: dict[str, str] = {}
    name = ""
    for line in (inspect.getdoc(kind) or "").splitlines():
        match = re.match(r"(\w+): (.*)", line)
        if match:
            name = match[1]
            found[name] = match[2]
        elif name and line.startswith("    "):
            found[name] += f" {line.strip()}"
    return found
