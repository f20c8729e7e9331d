"""Reports of wrong indices by the kernels of a bound call: flags that are read with the results.

The flags of a call are contiguous, so one copy behind its last kernel reads them all. The host
waits for that copy instead of the kernel. The first wrong index is fetched only for a set flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.backend.arena import align_up
from trireme.devices.opencl.context import OpenCLContext
from trireme.devices.opencl.lowering import Report
from trireme.support.errors import RunError

_FLAG = 4
"""Bytes of a flag."""
_INDEX = 8
"""Bytes of a wrong index."""


class Reports:
    """The reports of one bound call, in device memory of their own.

    wrong: the sentence on the last launch, "" where its indices were right or are still unknown
    """

    def __init__(self, context: OpenCLContext, reports: Sequence[Report]) -> None:
        self.context, self.reports = context, reports
        self.wrong = ""
        self.flags = np.zeros(len(reports), np.int32)
        at, self.offsets = align_up(self.flags.nbytes, _INDEX), []
        for report in reports:
            self.offsets.append(at)
            at += report.count * _INDEX
        self.memory = context.alloc(at)
        context.write(self.memory, self.flags)

    def place(self, key: int) -> tuple[Any, int]:
        """Return the buffer and offset of a report's flag (even key) or list of indices (odd)."""
        number, is_list = divmod(key, 2)
        return self.memory.handle, self.offsets[number] if is_list else number * _FLAG

    def start_read(self, queue: Any) -> Any:
        """Enqueue the copy of the flags to the host; return the driver's event."""
        import pyopencl as cl

        self.wrong = ""
        return cl.enqueue_copy(queue, self.flags, self.memory.handle, is_blocking=False)

    def check(self) -> None:
        """Raise RunError if a kernel of the last launch reported a wrong index.

        Every event behind the launch raises the error, so a waiter for several events learns the
        first.
        """
        if self.flags.any():
            self.wrong = self._take()
        if self.wrong:
            raise RunError(self.wrong)

    def _take(self) -> str:
        """Return the sentence on the first flag that is set, and clear all for the next launch."""
        number = int(np.flatnonzero(self.flags)[0])
        report, found = self.reports[number], np.empty(1, np.int64)
        at = self.offsets[number] + (report.count - int(self.flags[number])) * _INDEX
        self.context.read(self.memory.at(at, _INDEX), found)
        self.flags[:] = 0
        self.context.write(self.memory, self.flags)
        return report.message(int(found[0]))
