"""A run's stages next to their predictions, where no one plan runs the model.

A model is cut where a few nodes have no program for every shape, or where shapes depend on values.
Every stage has a region with a program of its own, and steps that the host runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trireme.support.fault_events import FaultEvent, event_lines
from trireme.support.showing import Shown
from trireme.support.units import bytes_text, time_text


@dataclass(frozen=True)
class StageTimes:
    """Measured seconds of one stage of a run.

    region_s: of its region; steps_s: of each step that the host ran, in order
    grown_bytes: of the results of steps. Their shapes came with the run, so no arena has room for
        them: each is an array of its own
    """

    region_s: float
    steps_s: tuple[float, ...]
    grown_bytes: int


@dataclass(frozen=True)
class StageRow:
    """One stage in a profile; times are medians over the runs.

    shapes: of its inputs, by name
    nodes, on, tier: of its region; predicted_s: of the region's plan, None without one
    steps: the seconds of each step that the host ran, by its label
    grown_bytes: memory outside of arenas, as `StageTimes` has it
    """

    shapes: Mapping[str, tuple[int, ...]]
    nodes: int
    on: str
    tier: str
    predicted_s: float | None
    region_s: float
    steps: tuple[tuple[str, float], ...]
    grown_bytes: int

    def lines(self, number: int) -> list[str]:
        """Return the row as text: one line for the region, and one for each step."""
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self.shapes.items())
        estimate = "-" if self.predicted_s is None else time_text(self.predicted_s)
        lines = []
        if self.nodes:
            times = f"{estimate:>12} {time_text(self.region_s):>12}"
            what = f"{self.nodes} nodes on {self.on}, {self.tier}: {shapes}"
            lines.append(f"  {number:5} {times}  {what}")
        lines += [
            f"  {number:5} {'-':>12} {time_text(seconds):>12}  then host: {label}"
            for label, seconds in self.steps
        ]
        if self.grown_bytes:
            text = f"{bytes_text(self.grown_bytes)} grew outside of the arenas"
            lines.append(f"  {'':5} {'':12} {'':12}  {text}")
        return lines


@dataclass(frozen=True, repr=False)
class StagedProfile(Shown):
    """The profile of some runs in stages.

    wall_s: of each run
    events: the faults of devices that the session met so far, and what became of each
    """

    model: str
    wall_s: tuple[float, ...]
    stages: tuple[StageRow, ...]
    events: tuple[FaultEvent, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the profile as plain data."""
        return {
            "model": self.model,
            "runs": len(self.wall_s),
            "wall_s": {
                "median": statistics.median(self.wall_s),
                "best": min(self.wall_s),
                "all": list(self.wall_s),
            },
            "stages": [
                vars(row)
                | {
                    "shapes": {name: list(shape) for name, shape in row.shapes.items()},
                    "steps": [{"step": label, "seconds": seconds} for label, seconds in row.steps],
                }
                for row in self.stages
            ],
            "events": [one.to_json() for one in self.events],
        }

    def __str__(self) -> str:
        median, best = statistics.median(self.wall_s), min(self.wall_s)
        lines = [
            f"profile of {self.model!r} in stages, {len(self.wall_s)} runs",
            f"  wall clock     median {time_text(median)}, best {time_text(best)}",
            *event_lines(self.events),
            "",
            f"  {'stage':5} {'estimate':>12} {'measured':>12}  what",
        ]
        for number, row in enumerate(self.stages):
            lines += row.lines(number)
        return "\n".join(lines)


class StageFacts(Protocol):
    """The facts of a stage beside its times."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of its inputs, by name."""

    @property
    def nodes(self) -> int:
        """The nodes of its region."""

    @property
    def on(self) -> str:
        """The executor of the region."""

    @property
    def tier(self) -> str:
        """The region's tier."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The labels of the steps that the host runs."""


def profile_of_stages(
    model: str,
    wall_s: Sequence[float],
    stages: Sequence[StageFacts],
    predicted: Sequence[float | None],
    runs: Sequence[Sequence[StageTimes]],
) -> StagedProfile:
    """Return the profile of some runs.

    stages: of the last run, and the predicted seconds of their regions
    runs: the times of each stage, of every run
    """
    rows = []
    for facts, seconds, times in zip(stages, predicted, zip(*runs, strict=True), strict=True):
        took = map(statistics.median, zip(*(one.steps_s for one in times), strict=True))
        rows.append(
            StageRow(
                facts.shapes,
                facts.nodes,
                facts.on,
                facts.tier,
                seconds,
                statistics.median(one.region_s for one in times),
                tuple(zip(facts.steps, took, strict=True)),
                max(one.grown_bytes for one in times),
            )
        )
    return StagedProfile(model, tuple(wall_s), tuple(rows))
