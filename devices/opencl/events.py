"""What was enqueued and is not over yet: the driver's events, and copies as events of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from trireme.backend.device import NodeSpan
from trireme.support.errors import DeviceError


class Checked(Protocol):
    """What is looked at when an event is over; `reports.Reports` is one."""

    def check(self) -> None:
        """Raise RunError if a kernel reported a wrong index."""


def handles(events: Sequence[Any]) -> list[Any] | None:
    """Return the driver's events of some of this module's, None for none."""
    found = [event.handle for event in events if event.handle is not None]
    return found or None


def reports_of(events: Sequence[Any]) -> tuple[Checked, ...]:
    """Return the reports behind which some events of this device come, each once."""
    return tuple(dict.fromkeys(one for event in events for one in event.reports))


class CopyEvent:
    """A copy under way; over when the driver says so. reports: as of OpenCLEvent."""

    def __init__(
        self, handle: Any, nbytes: int, start: float, reports: Sequence[Checked] = ()
    ) -> None:
        self.handle, self.nbytes, self.start, self.reports = handle, nbytes, start, reports

    def wait(self) -> None:
        """Return when the copy is over; errors as of OpenCLEvent.wait."""
        import pyopencl as cl

        try:
            self.handle.wait()
        except cl.Error as error:
            raise DeviceError(f"opencl: a copy of {self.nbytes} bytes failed: {error}") from error
        for reports in self.reports:
            reports.check()

    def spans(self) -> Sequence[NodeSpan]:
        """Return when the copy ran, if its queue keeps times, on the clock of OpenCLEvent.spans."""
        import pyopencl as cl

        try:
            times = self.handle.profile
            zero = self.start - times.queued * 1e-9
            return [NodeSpan((), "copy", zero + times.start * 1e-9, zero + times.end * 1e-9)]
        except cl.Error:
            return ()
