"""`trireme whatif`: place a model on variants of a described machine, without running anything.

Each figure given with --vary takes a row of values; every combination is placed, ranked, and
compared with its neighbour along each figure: a flip is where the placement changes, which nodes
move, and what moving them gains there over leaving them.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trireme.calibrating.calibration import Calibration
from trireme.cost import CostModel
from trireme.devices.described import Soc, load_soc
from trireme.errors import RunError
from trireme.graph import Graph, node_names
from trireme.optimise import optimise
from trireme.place import Pricing
from trireme.placing.bounds import Forest
from trireme.placing.objective import OBJECTIVES, UNIT, Objective, Scorer, check_objective
from trireme.placing.problem import Assignment, Problem
from trireme.placing.search import Search
from trireme.tools.commands import emit, load
from trireme.tools.options import Progress

ARGUMENTS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--soc",), dict(required=True, metavar="FILE",
                      help="the described machine: a name or a .toml file")),
    (("--vary",), dict(action="append", default=[], metavar="FIGURE=A..B",
                       help="multiples of a figure, evenly in ratio; or =1e9,2e9: values of it, or "
                       "=x0.5,x2: multiples")),
    (("--steps",), dict(type=int, default=11, help="values of each A..B")),
    (("--objective",), dict(choices=OBJECTIVES, default="makespan",
                            help="what the placement makes small")),
)  # fmt: skip
_MOST = 400
_WORTH = 1e-3
"""A placement changes where that gains more than this share; else the one before is kept."""


@dataclass(frozen=True)
class Axis:
    """A figure, its full names in the description, and what it is set to: values or multiples."""

    figure: str
    names: tuple[str, ...]
    values: tuple[float, ...]
    multiples: bool

    def changes(self, soc: Soc, value: float) -> dict[str, float]:
        """Return the full names and their values."""
        known = soc.figures()
        return {name: known[name] * value if self.multiples else value for name in self.names}

    def text(self, value: float) -> str:
        """Return the figure and value as they are shown."""
        return f"{self.figure} {'x ' if self.multiples else ''}{value:.4g}"

    def described(self, soc: Soc) -> str:
        """Return the figure as the description has it, where it is set to values."""
        known = ", ".join(f"{soc.figures()[name]:.4g}" for name in self.names)
        return f"{self.figure} is {known} as described"


@dataclass(frozen=True)
class Variant:
    """One machine: the values of the axes, the placement, and its score in seconds or joules."""

    values: tuple[float, ...]
    assigned: Assignment
    score: float


@dataclass(frozen=True)
class Flip:
    """Between two neighbours on an axis: the nodes that move, and what that gains at the second."""

    axis: str
    others: tuple[str, ...]
    low: float
    high: float
    moves: Mapping[str, tuple[str, ...]]
    gain: float


def parse_axis(soc: Soc, row: str, steps: int) -> Axis:
    """Return an axis from FIGURE=A..B, FIGURE=1e9,2e9 or FIGURE=x0.5,x2.

    Errors: RunError, if it is neither, or there is no such figure
    """
    figure, _, text = row.partition("=")
    low, dots, high = text.partition("..")
    try:
        if dots:
            first, last = float(low), float(high)
            if first <= 0 or last <= 0 or steps < 2:
                raise ValueError
            ratio = (last / first) ** (1 / (steps - 1))
            values, multiples = tuple(first * ratio**i for i in range(steps)), True
        else:
            rows = text.split(",")
            multiples = all(one.startswith("x") for one in rows)
            values = tuple(float(one.removeprefix("x") if multiples else one) for one in rows)
    except ValueError:
        raise RunError(
            f"--vary {row}: expected FIGURE=0.5..16, FIGURE=1e9,2e9 or FIGURE=x0.5,x2"
        ) from None
    return Axis(figure, tuple(soc.named(figure)), values, multiples)


def variants(
    graph: Graph, soc: Soc, axes: Sequence[Axis], objective: Objective, progress: Progress
) -> tuple[list[Variant], list[Flip]]:
    """Return the best placement for every combination of the axes' values, and the flips."""
    found: dict[tuple[int, ...], Variant] = {}
    flips: list[Flip] = []
    places = list(itertools.product(*(range(len(axis.values)) for axis in axes)))
    if len(places) > _MOST:
        raise RunError(f"{len(places)} variants are more than {_MOST}", fix="fewer --steps")
    names = list(node_names(graph).values())
    for number, at in enumerate(places):
        progress("placing variants", number, len(places))
        values = tuple(axis.values[i] for axis, i in zip(axes, at, strict=True))
        changes: dict[str, float] = {}
        for axis, value in zip(axes, values, strict=True):
            changes.update(axis.changes(soc, value))
        devices = dict(soc.varied(changes).devices())
        problem = Pricing.of(graph, CostModel(devices, Calibration())).problem
        check_objective(problem.machine, objective)
        near = [_before(at, a) for a in range(len(axes)) if at[a]]
        known = found[near[-1]].assigned if near else None
        assigned, score = _placed(problem, objective, known)
        found[at] = Variant(values, assigned, score)
        for a in (a for a in range(len(axes)) if at[a]):
            before = found[_before(at, a)]
            moves = _moves(names, tuple(devices), before.assigned, assigned)
            if moves:
                gain = Scorer(problem, objective).settle(before.assigned)[0] - score
                others = tuple(axes[b].text(values[b]) for b in range(len(axes)) if b != a)
                flips.append(Flip(axes[a].figure, others, before.values[a], values[a], moves, gain))
    return list(found.values()), flips


def _before(at: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*at[:axis], at[axis] - 1, *at[axis + 1 :])


def _placed(
    problem: Problem, objective: Objective, known: Assignment | None
) -> tuple[Assignment, float]:
    """Return the placement, the known one kept where another gains next to nothing."""
    search = Search(problem, objective, Forest(problem), None, known)
    best, score = search.best, search.candidates["search"]
    if known is not None and known != best:
        kept = search.scorer.settle(known)[0]
        if kept <= score * (1 + _WORTH):
            return known, min(kept, score)
    return best, score


def _moves(
    names: Sequence[str], devices: Sequence[str], old: Assignment, new: Assignment
) -> dict[str, tuple[str, ...]]:
    """Return "from -> to" and the nodes that move so."""
    found: dict[str, list[str]] = {}
    for name, one, two in zip(names, old, new, strict=True):
        if one != two:
            found.setdefault(f"{devices[one]} -> {devices[two]}", []).append(name)
    return {way: tuple(moved) for way, moved in found.items()}


def whatif(options: argparse.Namespace) -> int:
    """Place a model on variants of a described machine."""
    soc = load_soc(options.soc)
    axes = [parse_axis(soc, row, options.steps) for row in options.vary]
    progress = Progress()
    try:
        progress(f"preparing {options.model}")
        graph = optimise(load(options))
        found, flips = variants(graph, soc, axes, options.objective, progress)
    finally:
        progress.done()
    unit, scale = ("mJ", 1e3) if UNIT[options.objective] == "J" else ("us", 1e6)
    names = list(soc.devices())
    lines = [f"{graph.name!r} on {soc.name}, {options.objective}, the best first:"]
    lines += [axis.described(soc) for axis in axes if not axis.multiples]
    for one in sorted(found, key=lambda variant: variant.score):
        where = ", ".join(axis.text(v) for axis, v in zip(axes, one.values, strict=True))
        counts = ", ".join(f"{n} {one.assigned.count(d)}" for d, n in enumerate(names))
        lines.append(f"  {one.score * scale:12.1f} {unit}  {where or 'as described'}: {counts}")
    lines += [_flip_text(axes, flip, unit, scale) for flip in flips]
    lines += ["no flips: the placement is the same for all"] if axes and not flips else []
    data = {
        "soc": soc.name,
        "objective": options.objective,
        "axes": [vars(axis) for axis in axes],
        "variants": [vars(one) for one in found],
        "flips": [vars(flip) for flip in flips],
        "devices": names,
    }
    emit(options, data, "\n".join(lines))
    return 0


def _flip_text(axes: Sequence[Axis], flip: Flip, unit: str, scale: float) -> str:
    axis = next(axis for axis in axes if axis.figure == flip.axis)
    moves = "; ".join(
        f"{way}: {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"
        for way, names in flip.moves.items()
    )
    others = f" (at {', '.join(flip.others)})" if flip.others else ""
    return (
        f"flip between {axis.text(flip.low)} and {axis.text(flip.high)}{others}: {moves}; "
        f"gains {flip.gain * scale:.1f} {unit} there"
    )
