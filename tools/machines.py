"""`trireme devices --soc NAME`: a described machine, and how far its predictions are off."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trireme.devices.described import Soc, load_soc
from trireme.devices.described.published import SUFFIXES, Compared, compare, held_out_errors
from trireme.support.errors import RunError
from trireme.support.units import time_text
from trireme.tools import commands
from trireme.tools.commands import rates_text
from trireme.tools.options import argument
from trireme.tools.output import emit

ARGUMENTS = (
    argument("--soc", metavar="NAME", help="show a described machine: its name or a .toml file"),
    argument(
        "--models",
        metavar="DIR",
        help="with --soc: folder of the models of its published runs",
    ),
)


def devices(options: argparse.Namespace) -> int:
    """Show the devices of this machine, or with --soc those of a described one."""
    if options.models and not options.soc:
        raise RunError("--models is of a described machine", fix="add --soc NAME")
    return described(options) if options.soc else commands.devices(options)


def described(options: argparse.Namespace) -> int:
    """Show a description's devices, and its published runs beside what is predicted for them.

    Errors: RunError, if the folder of models is none; those of `load_soc` and `compare`
    """
    soc = load_soc(options.soc)
    models = Path(options.models) if options.models else None
    if models is not None and not models.is_dir():
        raise RunError(f"--models {models}: there is no such folder")
    rows = compare(soc, models)
    errors = held_out_errors(rows)
    data = {"soc": soc.name, "published": [_json(row) for row in rows], "held_out": dict(errors)}
    emit(options, data, "\n".join([*_device_lines(soc), *_run_lines(rows, models)]))
    return 0


def _json(row: Compared) -> dict[str, Any]:
    return {**vars(row.run), "predicted_ms": row.predicted_ms, "error": row.error}


def _device_lines(soc: Soc) -> list[str]:
    lines = [soc.name]
    for name, device in soc.devices().items():
        lines.append(f"  {name:6} {device.spec.description}: {rates_text(device.spec)}")
    return lines


def _run_lines(rows: Sequence[Compared], models: Path | None) -> list[str]:
    """Return the table of published runs, and how far the held-out ones are off."""
    if not rows:
        return ["the description has no published run"]
    width = max(len(row.run.model) for row in rows)
    lines = [f"  {'device':6} {'dtype':8} {'model':{width}} {'published':>12} {'predicted':>12}"]
    for row in rows:
        run = row.run
        found = "no model" if row.predicted_ms is None else time_text(row.predicted_ms / 1e3)
        error = "" if row.error is None else f" {row.error:+5.0%}"
        lines.append(
            f"  {run.device:6} {run.dtype:8} {run.model:{width}} {time_text(run.ms / 1e3):>12}"
            f" {found:>12}  {run.used}{error}"
        )
    errors = held_out_errors(rows)
    if errors:
        lines.append(
            f"held out: predicted within a factor of {errors['median']:.2f} in the median, "
            f"{errors['worst']:.2f} at worst"
        )
    absent = sorted({row.run.model for row in rows if row.predicted_ms is None})
    if absent:
        where = f"in {models}" if models else "without --models DIR"
        lines.append(f"not predicted (no {'|'.join(SUFFIXES)} {where}): {', '.join(absent)}")
    return lines
