"""The OpenCL device behind trireme's contract: memory, copies, and graphs made into regions."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trireme.backend.core_latency import Handover
from trireme.backend.device import Buffer, Device, DeviceSpec, Done, Event, Executable, KernelWork
from trireme.backend.registry import open_device
from trireme.devices.opencl import tuning as tunings
from trireme.devices.opencl.cost_features import TERM_LIMITS, works_of
from trireme.devices.opencl.kernels import TABLE, lower, reason
from trireme.devices.opencl.kernels.source import PRELUDE
from trireme.devices.opencl.lowering import ALIGNMENT, Lowering
from trireme.devices.opencl.platforms import Found, check_process, choose
from trireme.devices.opencl.pocl import cpu_flags
from trireme.devices.opencl.programs import Programs
from trireme.devices.opencl.region import CopyEvent, OpenCLExecutable, handles
from trireme.devices.opencl.reports import reports_of
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.errors import DeviceError
from trireme.support.user_files import cache_folder

_PRECISIONS = ("float32", "float16")
_CORRECTLY_ROUNDED = 1 << 7


def open_opencl(
    platform: str | None, device: str | None, precision: str, cache_dir: str | Path | None,
    tuning: str | None,
) -> Device:  # fmt: skip
    """Open a device; see `trireme.devices.opencl.open_device`."""
    if precision not in _PRECISIONS:
        known = ", ".join(_PRECISIONS)
        raise DeviceError(f"opencl: unknown precision {precision!r}", facts=[f"known: {known}"])
    found = choose(platform, device)
    folder = cache_folder("opencl") if cache_dir is None else Path(cache_dir)
    return OpenCLDevice(found, tunings.tuning_for(found, tuning), precision == "float16", folder)


class OpenCLDevice(Device):
    """One OpenCL device with its own context, a queue for kernels and one a direction of copies."""

    kernel_table = TABLE

    term_limits = TERM_LIMITS

    def __init__(
        self, found: Found, tuning: tunings.Tuning, half_weights: bool, folder: Path | None
    ) -> None:
        import pyopencl as cl

        self.found, self.tuning, self.half_weights = found, tuning, half_weights
        self.owner = os.getpid()
        self.closed = False
        self.lock = threading.Lock()
        self._cores: Device | None = None
        try:
            self.context = cl.Context([found.handle])
            self.chain = self.context
            self.queues: dict[tuple[str, bool], Any] = {}
            for work in ("kernels", "writes", "reads"):
                self.queues[work, False] = cl.CommandQueue(self.context, found.handle)
        except cl.Error as error:
            raise DeviceError(f"opencl: {found} cannot be opened: {error}") from error
        self.exact_division = bool(int(found.handle.single_fp_config) & _CORRECTLY_ROUNDED)
        options = ["-w", "-cl-std=CL1.2"]
        if self.exact_division:
            options.append("-cl-fp32-correctly-rounded-divide-sqrt")
        if found.kind == "cpu":
            options.append("-DTRIREME_FMA")
        self.programs = Programs(
            self.context, found.handle, _identity(found), options, folder
        )  # fmt: skip
        self.spec = _spec(found)

    def unsupported_reason(self, graph: Graph, node: Node) -> str | None:
        """Return None if there is a kernel for the node, else one sentence."""
        from_float = node.op == "quantize" and graph.type(node.used[0]).quant is None
        if from_float and not self.exact_division:
            return "the device's division is not exact, so quantising would not be bit for bit"
        return reason(graph, node)

    def compile(self, graphs: Sequence[Graph]) -> list[Executable]:
        """Lower each graph, build all their kernels together, and upload their constants."""
        self.check_open()
        lowered = [lower(Lowering(graph, self.tuning, self.half_weights)) for graph in graphs]
        sources: dict[str, str] = {}
        for each in lowered:
            sources.update(each.sources)
        programs = self.programs.build(sources, PRELUDE)
        return [OpenCLExecutable(self, each, programs) for each in lowered]

    def works(self, graph: Graph) -> list[KernelWork]:
        """Return the kernels that the graph is lowered to."""
        lowered = lower(Lowering(graph, self.tuning, self.half_weights))
        return works_of(lowered, self._units, on_cores=bool(self.spec.cores))

    @property
    def _units(self) -> int:
        return max(int(self.found.handle.max_compute_units), 1)

    def handover(self) -> Handover | None:
        """Return what passing data between the CPU's cores costs now, if the kernels run on them.

        The cpu device measures it, as it does for its own threads, in a millisecond. OpenCL cannot:
        nothing makes two work-groups run at once.
        """
        self.check_open()
        if not self.spec.cores or self._units < 2:
            return None
        with self.lock:
            if self._cores is None:
                self._cores = open_device("cpu")
            return self._cores.handover()

    def alloc(self, nbytes: int) -> Buffer:
        """Return new device memory; raise DeviceError when the driver has none."""
        self.check_open()
        import pyopencl as cl

        most = int(self.found.handle.max_mem_alloc_size)
        if nbytes > most:
            raise DeviceError(
                f"opencl: {nbytes} bytes in one piece, {self.found.device} allows {most}"
            )
        try:
            buffer = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(nbytes, 1))
        except cl.Error as error:
            raise DeviceError(f"opencl: no memory for {nbytes} bytes: {error}") from error
        return Buffer(self.spec.memory, buffer, 0, nbytes)

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
        try:
            if host.nbytes:
                event = cl.enqueue_copy(
                    queue, target, source, is_blocking=False, wait_for=handles(after), **offset
                )
            elif not after:
                return Done()
            else:
                event = cl.enqueue_marker(queue, wait_for=handles(after))
            queue.flush()
        except cl.Error as error:
            raise DeviceError(f"opencl: a copy of {host.nbytes} bytes failed: {error}") from error
        return CopyEvent(event, host.nbytes, start, reports_of(after))

    def upload(self, lowering: Lowering) -> Any:
        """Return a buffer with the lowering's constants at their offsets."""
        packed = np.zeros(max(lowering.constant_bytes, ALIGNMENT), np.uint8)
        for data, offset in zip(lowering.constants, lowering.constant_offsets, strict=True):
            packed[offset : offset + data.nbytes] = data.reshape(-1).view(np.uint8)
        buffer = self.alloc(packed.nbytes)
        self.write(buffer, packed)
        return buffer.handle

    def queue(self, work: Literal["kernels", "writes", "reads"], profile: bool) -> Any:
        """Return the queue for a kind of work; one that keeps times is made when asked for.

        Each runs what it is given in order, and waits for the others where events say so.
        """
        self.check_open()
        if (work, profile) not in self.queues:
            import pyopencl as cl

            with self.lock:
                if (work, profile) not in self.queues:
                    self.queues[work, profile] = cl.CommandQueue(
                        self.context, self.found.handle,
                        properties=cl.command_queue_properties.PROFILING_ENABLE if profile else 0,
                    )  # fmt: skip
        return self.queues[work, profile]

    def check_open(self) -> None:
        """Raise DeviceError on a closed device, or in a process forked from its owner."""
        check_process(self.owner)
        if self.closed:
            raise DeviceError("opencl: the device is closed")

    def finish(self) -> None:
        """Return when nothing that was enqueued is under way."""
        if os.getpid() == self.owner:
            for queue in list(self.queues.values()):
                queue.finish()

    def close(self) -> None:
        """Wait for what runs and refuse further work."""
        if self.closed or os.getpid() != self.owner:
            return
        self.finish()
        if self._cores is not None:
            self._cores.close()
        self.closed = True


def _identity(found: Found) -> str:
    """What a built binary depends on, besides source and options."""
    parts = [found.platform, found.device, found.version, found.cpu_name]
    if found.kind == "cpu":
        parts.append(hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest())
    return "\n".join([*parts, str(found.handle.version)])


def _spec(found: Found) -> DeviceSpec:
    handle = found.handle
    flops, bandwidth = tunings.figures(handle, found.kind)
    shared = found.kind == "cpu"
    return DeviceSpec(
        name="opencl",
        description=str(found),
        flops={"float32": flops, "float16": flops, "int8": flops / 4, "uint8": flops / 4},
        bandwidth=bandwidth,
        launch_s=20e-6,
        alignment=ALIGNMENT,
        memory="opencl",
        memory_bytes=int(handle.global_mem_size),
        buffer_bytes=int(handle.max_mem_alloc_size),
        link_latency_s=10e-6,
        link_bandwidth=8e9 if shared else 6e9,
        resource_group="cpu" if shared else "opencl",
        cores=frozenset(range(os.cpu_count() or 1)) if shared else frozenset(),
    )
