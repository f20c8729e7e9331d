"""Observed times of a run: when each task ran, and the device's records of its inside."""

from __future__ import annotations

from trireme.backend.device import Done, Event, NodeSpan
from trireme.support.records import dataclass


@dataclass(frozen=True)
class TaskSpan:
    """When a task ran, in seconds of time.perf_counter, and the device's records of its inside.

    batch: for a task of a driver queue, when the host launched it and saw it to be over; the start
        and end are then the driver's
    worker: the host's thread that launched the task and waited for it
    """

    task: int
    start_s: float
    end_s: float
    nodes: tuple[NodeSpan, ...]
    batch: tuple[float, float] | None = None
    worker: str = ""

    @property
    def held_s(self) -> tuple[float, float]:
        """When the worker launched the task, and when the worker saw it to be over."""
        return self.batch or (self.start_s, self.end_s)


def span_of(
    index: int, event: Event, launched_s: float, seen_s: float, queued: bool, worker: str
) -> TaskSpan:
    """Return when a finished task ran; a queued task has the driver's own times.

    Call it after the run: reading the times takes a driver some microseconds a kernel.
    """
    nodes = tuple(event.spans())
    if not queued or type(event) is Done:
        return TaskSpan(index, launched_s, seen_s, nodes, None, worker)
    batch = launched_s, seen_s
    if not nodes:
        return TaskSpan(index, launched_s, seen_s, nodes, batch, worker)
    start_s = max(launched_s, nodes[0].start_s)
    return TaskSpan(index, start_s, nodes[-1].end_s, nodes, batch, worker)
