"""Enqueued work: the driver's events, and copies as trireme's events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from trireme.backend.capabilities import QueuedEvent
from trireme.backend.device import Event, NodeSpan
from trireme.devices.opencl.timed_wait import wait_for
from trireme.support.errors import DeviceError, FaultKind

_OUT_OF_MEMORY = (-4, -6)
"""CL_MEM_OBJECT_ALLOCATION_FAILURE and CL_OUT_OF_HOST_MEMORY. Source: OpenCL 1.2, CL/cl.h"""


class Checked(Protocol):
    """Checked when an event is over; `reports.Reports` is one."""

    def check(self) -> None:
        """Raise RunError if a kernel reported a wrong index."""


@dataclass(frozen=True, eq=False)
class Enqueued:
    """Enqueued work that other work of the context can wait for.

    handle: the driver's event; None without work
    reports: checked once the work is over
    """

    handle: Any
    reports: Sequence[Checked]


def device_error(sentence: str, code: int) -> DeviceError:
    """Return the error of work that the driver refused, or ended, with a code.

    A driver may give a buffer its memory when work first needs the buffer. NVIDIA's does. So copies
    and launches run out of memory too, and not only allocations.
    """
    found = DeviceError(f"opencl: {sentence}")
    return found.of_kind(FaultKind.OUT_OF_MEMORY) if code in _OUT_OF_MEMORY else found


def enqueued(events: Sequence[Event]) -> list[Enqueued]:
    """Return the enqueued work behind some events of this context."""
    return [cast(Enqueued, cast(QueuedEvent, event).driver_event) for event in events]


def handles(before: Sequence[Enqueued]) -> list[Any] | None:
    """Return the driver's events of earlier enqueued work, None for none."""
    found = [one.handle for one in before if one.handle is not None]
    return found or None


def reports_of(before: Sequence[Enqueued]) -> tuple[Checked, ...]:
    """Return the reports of earlier enqueued work, each once."""
    return tuple(dict.fromkeys(report for one in before for report in one.reports))


class CopyEvent:
    """A copy under way; over when the driver reports its end. reports: as of OpenCLEvent."""

    def __init__(
        self, handle: Any, nbytes: int, start: float, reports: Sequence[Checked] = ()
    ) -> None:
        self.driver_event = Enqueued(handle, reports)
        self.nbytes, self.start = nbytes, start

    def wait_for(self, most_s: float) -> bool:
        """See TimedEvent."""
        handle = self.driver_event.handle
        if not wait_for(handle, most_s):
            return False
        if handle.command_execution_status < 0 or self.driver_event.reports:
            self.wait()
        return True

    def wait(self) -> None:
        """Return when the copy is over; errors as of OpenCLEvent.wait."""
        import pyopencl as cl

        try:
            self.driver_event.handle.wait()
        except cl.Error as error:
            sentence = f"a copy of {self.nbytes} bytes failed: {error}"
            raise device_error(sentence, error.code) from error
        for reports in self.driver_event.reports:
            reports.check()

    def spans(self) -> Sequence[NodeSpan]:
        """Return when the copy ran, if its queue keeps times, on the clock of OpenCLEvent.spans."""
        import pyopencl as cl

        try:
            times = self.driver_event.handle.profile
            zero = self.start - times.queued * 1e-9
            return [NodeSpan((), "copy", zero + times.start * 1e-9, zero + times.end * 1e-9)]
        except cl.Error:
            return ()
