"""`trireme whatif`: place a model on variants of a described machine, without running anything.

Each figure given with --vary takes a row of values. Every combination is placed as `trireme place
--soc` would place it, ranked, and compared with its neighbour along each figure. A flip is where
the placement changes: which nodes move, at which value the two placements take the same, and what
moving gains at the second neighbour. The commands printed below a flip reproduce both sides; the
gain is the difference of what they predict.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from trireme.devices.described import Soc, load_soc
from trireme.ir.selectors import pinned, pins_called
from trireme.passes.pipeline import optimise
from trireme.placement.objective import OBJECTIVES, UNIT
from trireme.support.units import energy_text, time_text
from trireme.tools.commands import load
from trireme.tools.figures import VariedFigure, parse_axis
from trireme.tools.number_options import whole
from trireme.tools.output import emit
from trireme.tools.parsed import device_list, parse_pins, sharding
from trireme.tools.progress import Progress
from trireme.tools.variants import Flip, Variant, variants

ARGUMENTS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--soc",),
        dict(required=True, metavar="FILE", help="described machine: its name or a .toml file"),
    ),
    (("--devices",), dict(metavar="NAMES", help="devices of the machine to use (default: all)")),
    (
        ("--vary",),
        dict(
            action="append",
            default=[],
            metavar="FIGURE=A..B",
            help="multiples of a figure, evenly in ratio; =x0.5,x2 for some multiples, =1e9,2e9 "
            "for values",
        ),
    ),
    (
        ("--steps",),
        dict(
            type=whole(2),
            default=11,
            metavar="N",
            help="number of values of each A..B (default: 11)",
        ),
    ),
    (
        ("--objective",),
        dict(
            choices=OBJECTIVES, default="makespan", help="quantity to minimise (default: makespan)"
        ),
    ),
)


def whatif(options: argparse.Namespace) -> int:
    """Place a model on variants of a described machine."""
    soc = load_soc(options.soc)
    soc = soc if options.devices is None else soc.only(device_list(options))
    axes = [parse_axis(soc, row, options.steps) for row in options.vary]
    progress = Progress()
    try:
        progress(f"preparing {options.model}")
        graph = optimise(load(options))
        graph = pinned(graph, pins_called(graph, parse_pins(options.pin), soc.devices()))
        found, flips = variants(graph, soc, axes, options.objective, progress, sharding(options))
    finally:
        progress.done()
    emit(options, _json(options, soc, axes, found, flips), _text(options, soc, axes, found, flips))
    return 0


def _json(
    options: argparse.Namespace,
    soc: Soc,
    axes: Sequence[VariedFigure],
    found: Sequence[Variant],
    flips: Sequence[Flip],
) -> dict[str, Any]:
    return {
        "soc": soc.name,
        "objective": options.objective,
        "axes": [vars(axis) for axis in axes],
        "variants": [one.to_json() for one in found],
        "flips": [
            {**flip.to_json(), "commands": commands_of(options, axes, flip)} for flip in flips
        ],
        "devices": list(soc.devices()),
    }


def _text(
    options: argparse.Namespace,
    soc: Soc,
    axes: Sequence[VariedFigure],
    found: Sequence[Variant],
    flips: Sequence[Flip],
) -> str:
    text = energy_text if UNIT[options.objective] == "J" else time_text
    name = found[0].placement.source.name
    lines = [f"{name!r} on {soc.name}, {options.objective}, the best first:"]
    lines += [axis.described(soc) for axis in axes if not axis.multiples]
    for one in sorted(found, key=lambda variant: variant.score):
        what = ", ".join(axis.text(v) for axis, v in zip(axes, one.values, strict=True))
        rows = dict.fromkeys((*soc.devices(), *one.where), 0) | Counter(one.where)
        counts = ", ".join(f"{device} {count}" for device, count in rows.items())
        lines.append(f"  {text(one.score):>12}  {what or 'as described'}: {counts}")
    for flip in flips:
        lines.append(_flip_text(axes, flip, text))
        lines += [f"    {command}" for command in commands_of(options, axes, flip)]
    lines += ["no flips: the placement is the same for all"] if axes and not flips else []
    return "\n".join(lines)


def _flip_text(axes: Sequence[VariedFigure], flip: Flip, text: Callable[[float], str]) -> str:
    axis = next(axis for axis in axes if axis.figure == flip.axis)
    moves = "; ".join(
        f"{way}: {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"
        for way, names in flip.moves.items()
    )
    others = f" (at {', '.join(flip.others)})" if flip.others else ""
    gains = f"gains {text(flip.gain)} there"
    if flip.gain == math.inf:
        gains = "the placement before is impossible there"
    between = f"flip between {axis.text(flip.low)} and {axis.text(flip.high)}"
    if flip.crossing is not None:
        between += f", at {flip.crossing:.4g}"
    return f"{between}{others}: {moves}; {gains}"


_LOCKS = ("before.toml", "after.toml")


def commands_of(options: argparse.Namespace, axes: Sequence[VariedFigure], flip: Flip) -> list[str]:
    """Return the commands that reproduce a flip: each locks one side's placement where it was
    found, then holds it at the second neighbour. The gain is the difference of the two last.
    """
    lines, values = [], flip.after.values
    for side, lock in zip((flip.before, flip.after), _LOCKS, strict=True):
        found = _place_command(options, axes, side.found_at)
        lines.append(f"{found} --lock {lock}")
    lines += [f"{_place_command(options, axes, values)} --placement {lock}" for lock in _LOCKS]
    return lines


def _place_command(
    options: argparse.Namespace, axes: Sequence[VariedFigure], values: Sequence[float]
) -> str:
    """Return the command that places the model at these values of the axes."""
    words = ["trireme", "place", options.model, "--soc", options.soc]
    words += [word for row in options.shape for word in ("--shape", row)]
    words += ["--devices", options.devices] if options.devices else []
    words += ["--objective", options.objective]
    words += [word for row in options.pin for word in ("--pin", row)]
    words += [word for row in options.shard for word in ("--shard", row)]
    for axis, value in zip(axes, values, strict=True):
        words += ["--vary", f"{axis.figure}={'x' if axis.multiples else ''}{value!r}"]
    return shlex.join(words)
