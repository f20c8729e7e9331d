"""Virtual time: when each task of a plan would run, given how long each takes.

A discrete-event run of the plan: a task starts when what it waits for is over and its resource is
free; devices of one resource group take turns, so do copies on one link. With estimates it is the
prediction; with measured or modelled durations it is what the described machine would take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trireme.plan.plan import Plan


@dataclass(frozen=True)
class Slice:
    """When one task runs in virtual time, in seconds from the start of the run."""

    task: int
    resource: str
    start_s: float
    end_s: float


def timeline(plan: Plan, seconds: Sequence[float], serial: bool = False) -> list[Slice]:
    """Return a slice for each task, in plan order, if task i takes seconds[i].

    serial: one task after another
    """
    free: dict[str, float] = {}
    slices: list[Slice] = []
    for task, duration in zip(plan.tasks, seconds, strict=True):
        spec = plan.placement.specs.get(task.device)
        resource = (spec.resource_group or spec.name) if spec else task.device
        ready = max((slices[other].end_s for other in task.waits), default=0.0)
        start = slices[-1].end_s if serial and slices else max(ready, free.get(resource, 0.0))
        slices.append(Slice(task.index, resource, start, start + duration))
        free[resource] = start + duration
    return slices


def makespan_s(slices: Sequence[Slice]) -> float:
    """Return when the last task is over."""
    return max((piece.end_s for piece in slices), default=0.0)
