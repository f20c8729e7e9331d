"""The NPU behind the contract of trireme.backend.device: compile, submit, wait, and look inside.

The host sees one submit and one completion of a whole task, and accesses NPU memory only by copies.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trireme.backend.device import Buffer, Device, DeviceSpec, Executable, Resident
from trireme.backend.device_kind import DeviceInstance
from trireme.devices.npu.chip import Chip
from trireme.devices.npu.compiler.compile import TABLE, compile_graph
from trireme.devices.npu.compiler.constraints import Options, reason_against
from trireme.devices.npu.compiler.estimate import Estimator
from trireme.devices.npu.executable import NpuExecutable
from trireme.devices.npu.options import NpuOptions
from trireme.devices.npu.spec import NpuSpec, load_spec
from trireme.devices.npu.stream.codec import encode
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, DeviceError
from trireme.support.forks import register_at_fork
from trireme.support.live_objects import LiveKeys


def open_npu(options: NpuOptions, instance: DeviceInstance) -> Npu:
    """Return a simulated NPU.

    Errors: DeviceError, naming the description's field or the option
    """
    described = load_spec(options.spec)
    half = options.float32 == "float16"
    if half and "float16" not in described.dtypes:
        raise DeviceError(f"npu: {described.name} has no float16 to run float32 nodes with")
    if options.sram_bytes is not None:
        if options.sram_bytes < 256:
            raise DeviceError(f"npu: option sram_bytes={options.sram_bytes}, expected 256 or more")
        described = replace(described, sram=replace(described.sram, bytes=options.sram_bytes))
    return Npu(described, Options(half), options.trace, instance.name)


class Npu(Device):
    """A simulated NPU; `machine` is its description."""

    kernel_table = TABLE

    def __init__(self, machine: NpuSpec, options: Options, trace: bool, name: str) -> None:
        self.machine, self.options, self.trace = machine, options, trace
        self.spec = _device_spec(machine, options, name)
        self.chip = Chip(machine, name)
        self._estimator = Estimator(machine)
        self.reset_after_fork()
        register_at_fork(self)
        self._reasons = LiveKeys[Graph, dict[int, str | None]]()

    def reset_after_fork(self) -> None:
        """Reset, with a new lock."""
        self._lock = threading.Lock()

    def unsupported_reason(self, graph: Graph, node: Node) -> str | None:
        """Return None or the sentence of the first constraint that the node breaks."""
        with self._lock:
            known = self._reasons.get(graph)
            if known is None:
                known = self._reasons[graph] = {}
        if node.id not in known:
            known[node.id] = reason_against(self.machine, self.options, graph, node)
        return known[node.id]

    def compile(self, graphs: Sequence[Graph]) -> list[Executable]:
        """Return an executable for each graph: one command stream, its constants packed."""
        return [self._compile(graph) for graph in graphs]

    def _compile(self, graph: Graph) -> Executable:
        for node in graph.nodes:
            reason = self.unsupported_reason(graph, node)
            if reason:
                raise CompileError(f"npu cannot run {node.label}: {reason}")
        compiled = compile_graph(self.machine, graph)
        return NpuExecutable(self.chip, graph, compiled, encode(compiled.task), self.trace)

    def alloc(self, nbytes: int) -> Buffer:
        """Return new NPU memory; its handle is private to the device."""
        memory = np.zeros(nbytes, np.uint8)
        self.chip.take(nbytes, memory)
        return Buffer(self.spec.memory, memory, 0, nbytes)

    def write(self, target: Buffer, source: Array) -> None:
        """Copy an array into NPU memory; the caller has waited for tasks that use the bytes."""
        self._copy(target, source, into=True)

    def read(self, source: Buffer, target: Array) -> None:
        """Copy NPU memory into an array; the caller has waited for tasks that write the bytes."""
        self._copy(source, target, into=False)

    def _copy(self, buffer: Buffer, array: Array, into: bool) -> None:
        if buffer.memory != self.spec.memory or array.nbytes > buffer.nbytes:
            raise DeviceError(
                f"npu: {array.nbytes} bytes to or from a buffer of {buffer.nbytes} "
                f"bytes in {buffer.memory}"
            )
        place = buffer.handle[buffer.offset : buffer.offset + array.nbytes]
        flat = array.reshape(-1).view(np.uint8)
        if into:
            place[...] = flat
        else:
            flat[...] = place

    def estimate_s(self, graph: Graph, node: Node) -> float | None:
        """Return the modelled seconds of a node inside a region."""
        found = self._estimator.predicted(graph, node)
        return found.seconds if found else None

    def resident(self, graph: Graph, node: Node) -> Resident:
        """Return the bytes of a node's packed weights and commands in the device's memory."""
        found = self._estimator.predicted(graph, node)
        return found.resident_of(graph, node) if found else super().resident(graph, node)

    def finish(self) -> None:
        """Wait until no submitted work is under way."""
        self.chip.finish()

    def close(self) -> None:
        """Finish the submitted work and stop the thread."""
        self.chip.close()


def _device_spec(machine: NpuSpec, options: Options, name: str) -> DeviceSpec:
    flops = {
        dtype: 2.0 * machine.macs * machine.clock_hz * machine.matrix.rate[dtype]
        for dtype in machine.dtypes
    }
    if options.float32_as_float16:
        flops["float32"] = flops["float16"]
    return DeviceSpec(
        name,
        machine.description,
        flops,
        machine.dram.bandwidth,
        machine.host.launch_s,
        alignment=machine.alignment,
        memory=name,
        memory_bytes=machine.dram.bytes,
        sram_bytes=machine.sram.bytes,
        link_latency_s=machine.host.latency_s,
        link_bandwidth=machine.host.bandwidth,
        resource_group=name,
        clock="virtual",
    )
