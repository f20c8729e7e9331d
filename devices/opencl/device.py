"""The OpenCL device behind trireme's contract: memory, copies, and graphs made into regions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from trireme.backend.core_latency import CoreLatency
from trireme.backend.device import (
    HOST_CORES,
    Buffer,
    Device,
    DeviceSpec,
    Event,
    Executable,
    KernelCost,
)
from trireme.backend.registry import open_core_meter
from trireme.devices.opencl import tuning as tunings
from trireme.devices.opencl.context import MEMORY, OpenCLContext
from trireme.devices.opencl.cost_features import TERM_LIMITS, cost_features_of
from trireme.devices.opencl.gpu_prices import GpuFacts
from trireme.devices.opencl.kernels import TABLE, lower, reason
from trireme.devices.opencl.kernels.source import PRELUDE
from trireme.devices.opencl.lowering import ALIGNMENT, Lowering
from trireme.devices.opencl.options import OpenCLOptions
from trireme.devices.opencl.platforms import FoundDevice, choose
from trireme.devices.opencl.pocl import cpu_flags
from trireme.devices.opencl.programs import Programs
from trireme.devices.opencl.region import OpenCLExecutable
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.user_files import cache_folder

_CORRECTLY_ROUNDED = 1 << 7


def open_opencl(options: OpenCLOptions) -> OpenCLDevice:
    """Return the preferred device that the options allow.

    Errors: DeviceError, if there is none
    """
    found = choose(options.platform, options.device)
    folder = cache_folder("opencl") if options.cache_dir is None else Path(options.cache_dir)
    tuning = tunings.tuning_for(found, options.tuning)
    return OpenCLDevice(found, tuning, options.precision == "float16", folder)


class OpenCLDevice(Device):
    """One OpenCL device: its description, its kernels, and a context of its own."""

    kernel_table = TABLE

    term_limits = TERM_LIMITS

    def __init__(
        self, found: FoundDevice, tuning: tunings.Tuning, half_weights: bool, folder: Path | None
    ) -> None:
        self.found, self.tuning, self.half_weights = found, tuning, half_weights
        self.context = OpenCLContext(found)
        self.driver_queue = self.context.handle
        self._cores: Device | None = None
        self.exact_division = bool(int(found.handle.single_fp_config) & _CORRECTLY_ROUNDED)
        options = ["-w", "-cl-std=CL1.2"]
        if self.exact_division:
            options.append("-cl-fp32-correctly-rounded-divide-sqrt")
        if found.kind == "cpu":
            options.append("-DTRIREME_FMA")
        self.programs = Programs(
            self.context.handle, found.handle, _identity(found), options, folder
        )
        self.spec = _spec(found)
        self.gpu = _gpu_facts(found)
        self.guesses_kernels = self.gpu is not None

    def unsupported_reason(self, graph: Graph, node: Node) -> str | None:
        """Return None if there is a kernel for the node, else one sentence."""
        from_float = node.op == "quantize" and graph.type(node.used[0]).quant is None
        if from_float and not self.exact_division:
            return "the device's division is not exact, so quantising would not be bit for bit"
        return reason(graph, node)

    def compile(self, graphs: Sequence[Graph]) -> list[Executable]:
        """Lower each graph, build all their kernels together, and upload their constants."""
        self.context.check_open()
        lowered = [lower(Lowering(graph, self.tuning, self.half_weights)) for graph in graphs]
        sources: dict[str, str] = {}
        for each in lowered:
            sources.update(each.sources)
        programs = self.programs.build(sources, PRELUDE)
        return [OpenCLExecutable(self.context, each, programs) for each in lowered]

    def cost_features(self, graph: Graph) -> list[KernelCost]:
        """Return the kernels that the graph is lowered to."""
        lowered = lower(Lowering(graph, self.tuning, self.half_weights))
        return cost_features_of(lowered, self._units, bool(self.spec.cores), self.gpu)

    @property
    def _units(self) -> int:
        return max(int(self.found.handle.max_compute_units), 1)

    def core_latency(self) -> CoreLatency | None:
        """Return the core latency of the CPU's cores now, if the kernels run on them.

        Another device measures it between its own threads, in a millisecond. OpenCL cannot: it has
        no means to run two work-groups at once.
        """
        self.context.check_open()
        if not self.spec.cores or self._units < 2:
            return None
        with self.context.lock:
            if self._cores is None:
                self._cores = open_core_meter()
            return self._cores.core_latency()

    def alloc(self, nbytes: int) -> Buffer:
        """Return new device memory; raise DeviceError when the driver has none."""
        return self.context.alloc(nbytes)

    def write(self, target: Buffer, source: Array) -> None:
        """Copy an array into device memory and wait for it."""
        self.context.write(target, source)

    def read(self, source: Buffer, target: Array) -> None:
        """Copy device memory into an array and wait for it."""
        self.context.read(source, target)

    def start_write(
        self, target: Buffer, source: Array, profile: bool = False, after: Sequence[Event] = ()
    ) -> Event:
        """Enqueue a copy of an array into device memory."""
        return self.context.start_write(target, source, profile, after)

    def start_read(
        self, source: Buffer, target: Array, profile: bool = False, after: Sequence[Event] = ()
    ) -> Event:
        """Enqueue a copy of device memory into an array."""
        return self.context.start_read(source, target, profile, after)

    def finish(self) -> None:
        """Wait until no enqueued work is under way."""
        self.context.finish()

    def close(self) -> None:
        """Wait for running work and refuse further work."""
        if self.context.closed or os.getpid() != self.context.owner:
            return
        self.context.close()
        if self._cores is not None:
            self._cores.close()


def _identity(found: FoundDevice) -> str:
    """Return the facts that a built binary depends on, besides source and options."""
    parts = [found.platform, found.device, found.version, found.cpu_name]
    if found.kind == "cpu":
        parts.append(hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest())
    return "\n".join([*parts, str(found.handle.version)])


def _gpu_facts(found: FoundDevice) -> GpuFacts | None:
    """Return the facts that prices of a GPU's kernels follow; None for other devices."""
    if found.kind != "gpu":
        return None
    units, clock = tunings.units_and_clock(found.handle)
    return GpuFacts(units, clock, tunings.figures(found.handle, found.kind)[1])


def _spec(found: FoundDevice) -> DeviceSpec:
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
        memory=MEMORY,
        memory_bytes=int(handle.global_mem_size),
        buffer_bytes=int(handle.max_mem_alloc_size),
        link_latency_s=10e-6 if shared else 20e-6,
        link_bandwidth=8e9 if shared else 7e9,
        resource_group=HOST_CORES if shared else "opencl",
        cores=frozenset(range(os.cpu_count() or 1)) if shared else frozenset(),
    )
