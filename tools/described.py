"""A described machine in place of this one: `--soc` and `--vary` of place, explain and profile."""

from __future__ import annotations

import argparse

from trireme.backend.device import Device
from trireme.backend.registry import add_host
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.devices.described import load_soc
from trireme.ir.effects import States
from trireme.passes.pipeline import optimise
from trireme.placement.place import place
from trireme.placement.placement import Placement
from trireme.placement.shards.batch import batched
from trireme.support.errors import RunError
from trireme.tools.commands import load
from trireme.tools.figures import figures_set
from trireme.tools.options import flag_name, flagged_options, option_group
from trireme.tools.parsed import device_list, passes_off, placement_options
from trireme.tools.progress import Progress

_REAL = (
    "--threads",
    "--fallback",
    "--measure",
    "--measure-deciding",
    "--dump-ir",
    "--dump-asm",
    "--stream",
    "--replicas",
)
"""Options of devices that run, beside those of their kinds: a described machine has none."""


def add_described(parser: argparse.ArgumentParser) -> None:
    """Add the choice of a described machine and of its figures."""
    group = option_group(parser, "machine")
    group.add_argument(
        "--soc", metavar="NAME", help="place on a described machine: its name or a .toml file"
    )
    group.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="FIGURE=x1.5",
        help="with --soc: multiply a figure of the description, or set it with =1e9",
    )


def is_described(options: argparse.Namespace) -> bool:
    """Whether the options name a described machine.

    Errors: RunError, if they set figures of none
    """
    if options.vary and not options.soc:
        raise RunError("--vary sets figures of a described machine", fix="add --soc NAME")
    return options.soc is not None


def described_devices(options: argparse.Namespace) -> dict[str, Device]:
    """Return the devices of the described machine that the options name.

    Errors: RunError, if an option is only for devices that run, or a figure cannot be set;
    ModelFileError, if the description cannot be read
    """
    for flag in (*_REAL, *flagged_options()):
        if vars(options).get(flag_name(flag)):
            raise RunError(f"{flag} is for devices that run; those of --soc are only described")
    soc = load_soc(options.soc)
    soc = soc.varied(figures_set(soc, options.vary))
    soc = soc.only(device_list(options)) if options.devices_given else soc
    return dict(soc.devices())


def described_placement(options: argparse.Namespace) -> Placement:
    """Return the model's placement on the described machine.

    Errors: as `described_devices` and `place`
    """
    progress = Progress()
    progress(f"placing {options.model}")
    try:
        devices = described_devices(options)
        graph = optimise(load(options), disable=passes_off(options))
        graph = graph if options.batch is None else batched(graph, options.batch)
        add_host(devices, graph, States({}))
        costs = CostModel(devices, Calibration())
        return place(graph, costs, placement_options(options))
    finally:
        progress.done()
