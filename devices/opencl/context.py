"""An opened device of a driver: the context, its queues, and memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from trireme.backend.device import Buffer, Done, Event
from trireme.devices.opencl.events import CopyEvent, device_error, enqueued, handles, reports_of
from trireme.devices.opencl.lowering import ALIGNMENT, Lowering
from trireme.devices.opencl.platforms import FoundDevice, check_process
from trireme.support.dtypes import Array
from trireme.support.errors import DeviceError, FaultKind

MEMORY = "opencl"
"""The memory space of every buffer."""


class OpenCLContext:
    """One context of one device, with a queue for kernels and one for each direction of copies.

    handle: the driver's context
    """

    def __init__(self, found: FoundDevice) -> None:
        import pyopencl as cl

        self.found, self.owner, self.closed = found, os.getpid(), False
        self.lock = threading.Lock()
        self.queues: dict[tuple[str, bool], Any] = {}
        try:
            self.handle = cl.Context([found.handle])
            for work in ("kernels", "writes", "reads"):
                self.queues[work, False] = cl.CommandQueue(self.handle, found.handle)
        except cl.Error as error:
            raise DeviceError(f"opencl: {found} cannot be opened: {error}") from error

    def alloc(self, nbytes: int) -> Buffer:
        """Return new device memory; raise DeviceError when the driver has none."""
        self.check_open()
        import pyopencl as cl

        most = int(self.found.handle.max_mem_alloc_size)
        if nbytes > most:
            refused = DeviceError(
                f"opencl: {nbytes} bytes in one piece, {self.found.device} allows {most}"
            )
            raise refused.of_kind(FaultKind.OUT_OF_MEMORY)
        try:
            buffer = cl.Buffer(self.handle, cl.mem_flags.READ_WRITE, max(nbytes, 1))
        except cl.Error as error:
            found = DeviceError(f"opencl: no memory for {nbytes} bytes: {error}")
            raise found.of_kind(FaultKind.OUT_OF_MEMORY) from error
        return Buffer(MEMORY, buffer, 0, nbytes)

    def write(self, target: Buffer, source: Array) -> None:
        """Copy an array into device memory and wait for it."""
        self.start_write(target, source).wait()

    def read(self, source: Buffer, target: Array) -> None:
        """Copy device memory into an array and wait for it."""
        self.start_read(source, target).wait()

    def start_write(
        self, target: Buffer, source: Array, profile: bool = False, after: Sequence[Event] = ()
    ) -> Event:
        """Enqueue a copy of an array into device memory."""
        queue = self.queue("writes", profile)
        return self._start(queue, after, target.handle, source, dst_offset=target.offset)

    def start_read(
        self, source: Buffer, target: Array, profile: bool = False, after: Sequence[Event] = ()
    ) -> Event:
        """Enqueue a copy of device memory into an array."""
        queue = self.queue("reads", profile)
        return self._start(queue, after, target, source.handle, src_offset=source.offset)

    def _start(
        self, queue: Any, after: Sequence[Event], target: Any, source: Any, **offset: int
    ) -> Event:
        import pyopencl as cl

        host, start = source if isinstance(source, np.ndarray) else target, time.perf_counter()
        before = enqueued(after)
        try:
            if host.nbytes:
                event = cl.enqueue_copy(
                    queue, target, source, is_blocking=False, wait_for=handles(before), **offset
                )
            elif not after:
                return Done()
            else:
                event = cl.enqueue_marker(queue, wait_for=handles(before))
            queue.flush()
        except cl.Error as error:
            sentence = f"a copy of {host.nbytes} bytes failed: {error}"
            raise device_error(sentence, error.code) from error
        return CopyEvent(event, host.nbytes, start, reports_of(before))

    def upload(self, lowering: Lowering) -> Any:
        """Return a buffer with the lowering's constants at their offsets."""
        packed = np.zeros(max(lowering.constant_bytes, ALIGNMENT), np.uint8)
        for data, offset in zip(lowering.constants, lowering.constant_offsets, strict=True):
            packed[offset : offset + data.nbytes] = data.reshape(-1).view(np.uint8)
        buffer = self.alloc(packed.nbytes)
        self.write(buffer, packed)
        return buffer.handle

    def queue(self, work: Literal["kernels", "writes", "reads"], profile: bool) -> Any:
        """Return the queue for a kind of work; a queue that keeps times is made on first use.

        Each queue runs its work in order, and waits for the other queues by events.
        """
        self.check_open()
        if (work, profile) not in self.queues:
            import pyopencl as cl

            with self.lock:
                if (work, profile) not in self.queues:
                    self.queues[work, profile] = cl.CommandQueue(
                        self.handle,
                        self.found.handle,
                        properties=cl.command_queue_properties.PROFILING_ENABLE if profile else 0,
                    )
        return self.queues[work, profile]

    def check_open(self) -> None:
        """Raise DeviceError on a closed device, or in a process forked from its owner."""
        check_process(self.owner)
        if self.closed:
            raise DeviceError("opencl: the device is closed")

    def finish(self) -> None:
        """Wait until no enqueued work is under way."""
        if os.getpid() == self.owner:
            for queue in list(self.queues.values()):
                queue.finish()

    def close(self) -> None:
        """Wait for running work and refuse further work."""
        self.finish()
        self.closed = True
