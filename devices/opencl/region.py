"""An executable region: steps bound to memory, launched on one in-order queue with one wait."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.backend.arena import LiveRange, pack
from trireme.backend.device import Buffer, Event, Executable, NodeSpan
from trireme.devices.opencl.context import OpenCLContext
from trireme.devices.opencl.enqueue import KernelRows
from trireme.devices.opencl.events import (
    Checked,
    Enqueued,
    device_error,
    enqueued,
    handles,
    reports_of,
)
from trireme.devices.opencl.lowering import ALIGNMENT, KernelLaunch, Lowering, Ref
from trireme.devices.opencl.reports import Reports
from trireme.devices.opencl.timed_wait import wait_for
from trireme.ir.graph import Graph
from trireme.support.errors import InternalError


@dataclass(frozen=True)
class ScratchLayout:
    """The places of a region's intermediates in its scratch memory."""

    offsets: Mapping[Ref, int]
    nbytes: int


def plan_scratch(lowering: Lowering) -> ScratchLayout:
    """Pack the values and temporaries that are not arguments of the region by their live steps."""
    graph = lowering.graph
    outside = {Ref("value", value) for value in (*graph.inputs, *graph.outputs)}
    first: dict[Ref, int] = {}
    last: dict[Ref, int] = {}
    for index, step in enumerate(lowering.steps):
        for tensor in step.tensors:
            if tensor.ref.space in ("value", "temporary") and tensor.ref not in outside:
                first.setdefault(tensor.ref, index)
                last[tensor.ref] = index
    refs = list(first)
    ranges = [LiveRange(i, first[r], last[r], _nbytes(lowering, r)) for i, r in enumerate(refs)]
    if not ranges:
        return ScratchLayout({}, 0)
    packing = pack(ranges, ALIGNMENT)
    return ScratchLayout({r: packing.offsets[i] for i, r in enumerate(refs)}, packing.nbytes)


def _nbytes(lowering: Lowering, ref: Ref) -> int:
    if ref.space == "temporary":
        return lowering.temporaries[ref.key]
    return lowering.graph.type(ref.key).nbytes


class OpenCLExecutable(Executable):
    """The steps of one graph with their programs and constants; immutable."""

    def __init__(
        self, context: OpenCLContext, lowering: Lowering, programs: Mapping[str, Any]
    ) -> None:
        self.context = context
        self.graph: Graph = lowering.graph
        self.steps = tuple(lowering.steps)
        self.programs = {step.kernel: programs[step.kernel] for step in self.steps}
        self.layout = plan_scratch(lowering)
        self.scratch_bytes = self.layout.nbytes
        self.constant_offsets = tuple(lowering.constant_offsets)
        self.constant_bytes = lowering.constant_bytes
        self.constants = context.upload(lowering)
        self.reports = tuple(lowering.reports)
        self.kernels = dict(lowering.kernels)

    def bind(self, args: Sequence[Buffer], scratch: Buffer | None) -> OpenCLCall:
        """Return a call on these places; every kernel's arguments are set here, once."""
        self.context.check_open()
        ids = (*self.graph.inputs, *self.graph.outputs)
        places = {
            Ref("value", i): (arg.handle, arg.offset) for i, arg in zip(ids, args, strict=True)
        }
        if self.scratch_bytes and scratch is None:
            raise InternalError(f"{self.graph.name} needs {self.scratch_bytes} bytes of scratch")
        if scratch is not None:
            for ref, offset in self.layout.offsets.items():
                places[ref] = (scratch.handle, scratch.offset + offset)
        reports = Reports(self.context, self.reports) if self.reports else None
        if reports is not None:
            for key in range(2 * len(self.reports)):
                places[Ref("report", key)] = reports.place(key)
        launches = [self._launch(step, places) for step in self.steps]
        return OpenCLCall(self.context, launches, (self, *args, scratch), reports)

    def _launch(self, step: KernelLaunch, places: Mapping[Ref, tuple[Any, int]]) -> _Launch:
        import pyopencl as cl

        kernel = cl.Kernel(self.programs[step.kernel], step.kernel)
        values: list[Any] = []
        for tensor in step.tensors:
            if tensor.ref.space == "constant":
                handle, offset = self.constants, self.constant_offsets[tensor.ref.key]
            else:
                handle, offset = places[tensor.ref]
            values += [handle, np.uint64(offset)]
        kernel.set_args(*values, *(np.int32(value) for value in step.scalars))
        return _Launch(step.nodes, str(step.name), kernel, step.work, step.group)


@dataclass(frozen=True)
class _Launch:
    nodes: tuple[int, ...]
    label: str
    kernel: Any
    work: tuple[int, ...]
    group: tuple[int, ...]


class OpenCLCall:
    """An executable on its memory. One launch at a time: kernel objects are not thread-safe.

    A kernel does not keep its arguments alive, so `alive` of the call holds them.
    """

    def __init__(
        self,
        context: OpenCLContext,
        launches: Sequence[_Launch],
        alive: Sequence[object],
        reports: Reports | None = None,
    ) -> None:
        self.context, self.launches, self.alive = context, launches, alive
        self.reports = reports
        self.driver_queue = context.handle
        self._between = KernelRows([(one.kernel, one.work, one.group) for one in launches[1:-1]])

    def launch(self, profile: bool = False, after: Sequence[Event] = ()) -> Event:
        """Enqueue every kernel and return; with `profile` on a queue that keeps times.

        The first kernel waits for `after`, the others for the kernel before them. Only the first
        and the last have an event, or with `profile` all.
        """
        import pyopencl as cl

        queue = self.context.queue("kernels", profile)
        start, before = time.perf_counter(), enqueued(after)
        first = handles(before)
        try:
            events = []
            for at, each in enumerate(self.launches):
                if 0 < at < len(self.launches) - 1 and not profile:
                    if at == 1:
                        self._between.enqueue(queue)
                    continue
                events.append(
                    cl.enqueue_nd_range_kernel(
                        queue, each.kernel, each.work, each.group, wait_for=first
                    )
                )
                first = None
            if self.reports is not None:
                events.append(self.reports.start_read(queue))
            if first is not None:
                events.append(cl.enqueue_marker(queue, wait_for=first))
            queue.flush()
        except cl.Error as error:
            raise device_error(f"a launch failed: {error}", error.code) from error
        own = () if self.reports is None else (self.reports,)
        return OpenCLEvent(
            self.launches if profile else (), events, start, reports_of(before) + own
        )


class OpenCLEvent:
    """A region under way; over when its last kernel is.

    reports: its own and those of the work it waits for, because a driver queue is awaited at its
        end only
    """

    def __init__(
        self,
        launches: Sequence[_Launch],
        events: Sequence[Any],
        start: float,
        reports: Sequence[Checked] = (),
    ) -> None:
        self.launches, self.events, self.start = launches, events, start
        self.driver_event = Enqueued(events[-1] if events else None, reports)

    def wait_for(self, most_s: float) -> bool:
        """See TimedEvent."""
        if not self.events:
            return True
        last = self.events[-1]
        if not wait_for(last, most_s):
            return False
        if last.command_execution_status < 0 or self.driver_event.reports:
            self.wait()
        return True

    def wait(self) -> None:
        """Return when the last kernel is over.

        Errors: DeviceError, if one failed; RunError, if one reports a wrong index
        """
        import pyopencl as cl

        if not self.events:
            return
        try:
            self.events[-1].wait()
        except cl.Error as error:
            raise device_error(f"a kernel failed: {error}", error.code) from error
        for reports in self.driver_event.reports:
            reports.check()

    def spans(self) -> Sequence[NodeSpan]:
        """Return when each kernel ran, on the clock of time.perf_counter.

        The launch's begin is assumed to be the first kernel's time of queueing on the device's
        clock.
        """
        if not self.launches:
            return []
        zero = self.start - self.events[0].profile.queued * 1e-9
        return [
            NodeSpan(
                each.nodes,
                each.label,
                zero + event.profile.start * 1e-9,
                zero + event.profile.end * 1e-9,
            )
            for each, event in zip(self.launches, self.events, strict=False)
        ]
