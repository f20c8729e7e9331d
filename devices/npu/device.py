"""The NPU behind the contract of trireme.backend.device: compile, submit, wait, and look inside.

The host sees one submit and one completion of a whole task, and NPU memory only through copies. A
thread of the device does the work in the order of submission, as one machine does.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from queue import SimpleQueue
from typing import Any

import numpy as np

from trireme.backend.device import (
    Buffer,
    Device,
    DeviceSpec,
    Done,
    Event,
    Executable,
    NodeSpan,
    Resident,
)
from trireme.backend.device_kind import Instance
from trireme.devices.npu.compiler.compile import TABLE, Compiled, compile_graph, node_kernels
from trireme.devices.npu.compiler.constraints import Options, reason_against
from trireme.devices.npu.compiler.estimate import Estimator
from trireme.devices.npu.options import NpuOptions
from trireme.devices.npu.simulator.simulate import execute
from trireme.devices.npu.simulator.timing import Timeline, simulate_cycles
from trireme.devices.npu.spec import NpuSpec, load_spec
from trireme.devices.npu.stream.codec import decode, encode
from trireme.devices.npu.stream.commands import ARGUMENTS, SRAM, Barrier, Command, Task, array_of
from trireme.devices.npu.stream.verify import verify
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, DeviceError, RunError
from trireme.support.forks import register_at_fork

GARBAGE = 0xA5
"""What SRAM holds at the start of every task: a read before a write shows up as wrong values."""


def open_npu(options: NpuOptions, instance: Instance) -> Npu:
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
        self.sram = np.full(machine.sram.bytes, GARBAGE, np.uint8)
        self._estimator = Estimator(machine)
        self._closed = False
        self._allocated = 0
        self.reset_after_fork()
        register_at_fork(self)
        self._reasons: weakref.WeakKeyDictionary[Graph, dict[int, str | None]]
        self._reasons = weakref.WeakKeyDictionary()

    def reset_after_fork(self) -> None:
        """Start afresh, without a thread."""
        self._queue: _Work = SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None

    def unsupported_reason(self, graph: Graph, node: Node) -> str | None:
        """Return None or the sentence of the first constraint that the node breaks."""
        with self._lock:
            known = self._reasons.setdefault(graph, {})
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
        return NpuExecutable(self, graph, compiled, encode(compiled.task))

    def alloc(self, nbytes: int) -> Buffer:
        """Return new NPU memory; its handle is private to the device."""
        memory = np.zeros(nbytes, np.uint8)
        self.take(nbytes, memory)
        return Buffer(self.spec.memory, memory, 0, nbytes)

    def take(self, nbytes: int, owner: object) -> None:
        """Count bytes of device memory as in use for as long as their owner is there.

        Errors: DeviceError, if there are not so many
        """
        with self._lock:
            if self._allocated + nbytes > self.machine.dram.bytes:
                raise DeviceError(
                    f"npu: {nbytes} bytes do not fit its memory",
                    facts=[f"{self._allocated} of {self.machine.dram.bytes} bytes are in use"],
                )
            self._allocated += nbytes
        weakref.finalize(owner, self._give_back, nbytes)

    def _give_back(self, nbytes: int) -> None:
        with self._lock:
            self._allocated -= nbytes

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
        """Return the modelled seconds of a node in the midst of a region."""
        found = self._estimator.predicted(graph, node)
        return found.seconds if found else None

    def resident(self, graph: Graph, node: Node) -> Resident:
        """Return what a node's packed weights and its commands take of the device's memory."""
        found = self._estimator.predicted(graph, node)
        return found.resident_of(graph, node) if found else super().resident(graph, node)

    def submit(self, work: Callable[[], None]) -> None:
        """Queue work for the machine; it runs on the device's thread, in order."""
        with self._lock:
            if self._closed:
                raise DeviceError("npu: the device is closed")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_serve, args=(self._queue,), name="trireme-npu", daemon=True
                )
                self._thread.start()
                weakref.finalize(self, self._queue.put, None).atexit = False
            self._queue.put(work)

    def finish(self) -> None:
        """Return when nothing that was submitted is under way."""
        over = threading.Event()
        with self._lock:
            if self._thread is None:
                return
            self._queue.put(over.set)
        over.wait()

    def close(self) -> None:
        """Finish what was submitted and stop the thread."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()


_Work = SimpleQueue[Callable[[], object] | None]


def _serve(queue: _Work) -> None:
    """Run what is submitted, until the device is closed or nobody has it any more."""
    while (work := queue.get()) is not None:
        work()
        del work  # it holds the device


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


class NpuExecutable(Executable):
    """A compiled region: the stream, its constants in NPU memory, and its cycles.

    stream: FlatBuffers of schema/task.fbs, see `disassemble`
    sram_bytes: the most SRAM in use while each node runs; `sram_peak_bytes` is the whole task's
    """

    def __init__(self, device: Npu, graph: Graph, compiled: Compiled, stream: bytes) -> None:
        self.device, self.graph, self.stream = device, graph, stream
        self.task: Task = verify(device.machine, decode(stream))
        self.constants = compiled.constants.build()
        self.sram_bytes = compiled.sram_bytes
        self.sram_peak_bytes = self.task.regions[SRAM].nbytes
        self.scratch_bytes = compiled.scratch_bytes
        self.constant_bytes, self.code_bytes = self.constants.size, len(stream)
        device.take(self.constant_bytes + self.code_bytes, self.constants)
        self.kernels: Mapping[int, str] = node_kernels(graph, self.task.commands)

    @cached_property
    def timeline(self) -> Timeline:
        """Cycles of the task, of its nodes and of its commands."""
        return simulate_cycles(self.device.machine, self.task)

    @cached_property
    def spans(self) -> tuple[NodeSpan, ...]:
        """A span a node, on the virtual clock; together they are the whole task."""
        clock = self.device.machine.clock_hz
        macs = self.device.machine.macs
        spans, now = [], 0
        rows = zip(self.task.nodes, self.timeline.nodes, self.sram_bytes, strict=True)
        for info, node, sram_bytes in rows:
            start, now = now, now + node.added
            detail = {
                "dma_bytes": float(node.dram_bytes),
                "mac_utilisation": node.macs / (macs * node.added) if node.added else 0.0,
                "sram_peak_bytes": float(sram_bytes),
                **{f"{engine}_cycles": float(busy) for engine, busy in node.busy.items()},
            }
            kernel = self.kernels[info.id]
            spans.append(
                NodeSpan(
                    (info.id,), kernel, start / clock, now / clock, "virtual", node.added, detail
                )
            )
        return tuple(spans)

    def bind(self, args: Sequence[Buffer], scratch: Buffer | None) -> NpuCall:
        """Return a call on these places in NPU memory.

        Errors: RunError, if a place is missing, elsewhere or too small
        """
        regions = self.task.regions
        if len(args) != len(regions) - ARGUMENTS:
            raise RunError(f"npu: {len(args)} arguments, expected {len(regions) - ARGUMENTS}")
        wanted = [r.nbytes for r in regions[ARGUMENTS:]]
        places = list(zip(args, wanted, strict=True))
        if self.scratch_bytes:
            if scratch is None:
                raise RunError(f"npu: {self.scratch_bytes} bytes of scratch memory are missing")
            places.append((scratch, self.scratch_bytes))
        for buffer, nbytes in places:
            if buffer.memory != self.device.spec.memory or buffer.nbytes < nbytes:
                raise RunError(
                    f"npu: a buffer of {buffer.nbytes} bytes in {buffer.memory}, "
                    f"expected {nbytes} in {self.device.spec.memory}"
                )
        return NpuCall(self, [_bytes(b, n) for b, n in places])


def _bytes(buffer: Buffer, nbytes: int) -> Array:
    place: Array = buffer.handle[buffer.offset : buffer.offset + nbytes]
    return place


class NpuCall:
    """An executable on its memory."""

    def __init__(self, executable: NpuExecutable, places: list[Array]) -> None:
        self.executable = executable
        count = len(executable.task.regions) - ARGUMENTS
        scratch = places[count] if len(places) > count else np.zeros(0, np.uint8)
        self._memory = [executable.device.sram, executable.constants, scratch, *places[:count]]
        self._outputs = places[len(executable.graph.inputs) : count]
        self._traced: dict[int, Array] = {}
        self.repeat(False)

    def launch(self, profile: bool = False) -> Event:
        """Submit the task and return at once; put back what it made, where that is asked for."""
        spans = self.executable.spans if profile else ()
        if self._made:
            for place, made in zip(self._outputs, self._made, strict=True):
                place[...] = made
            return Done(spans)
        event = NpuEvent(spans)
        self.executable.device.submit(lambda: event.run(self._run))
        return event

    def repeat(self, repeats: bool) -> None:
        """Have launches put back the outputs of the first of them (True), or simulate (False)."""
        self._repeats, self._made = repeats, list[Array]()

    def intermediate(self, value: int) -> Array:
        """Return a value that the last launch made, by its id in the graph.

        Errors: RunError, if the device was opened without trace=True, before a launch, or if the
                value is not made by the task
        """
        if value not in self._traced:
            raise RunError(
                f"npu: no trace of value %{value}",
                fix="open the device with trace=True and launch before asking",
            )
        return self._traced[value]

    def _run(self) -> None:
        self._simulate()
        if self._repeats:
            self._made = [place.copy() for place in self._outputs]

    def _simulate(self) -> None:
        memory = self._memory
        memory[SRAM].fill(GARBAGE)
        if not self.executable.device.trace:
            for command in self.executable.task.commands:
                execute(command.work, memory)
            return
        task = self.executable.task
        last = _last_commands(task.commands, len(task.nodes))
        for index, command in enumerate(task.commands):
            execute(command.work, memory)
            for value in task.values:
                if last[value.node] == index:
                    self._keep(value.id, array_of(memory[value.place.region], value.place))
        for value in task.values:
            if last[value.node] < 0:
                self._keep(value.id, array_of(memory[value.place.region], value.place))

    def _keep(self, value: int, data: Array) -> None:
        type = self.executable.graph.type(value)
        self._traced[value] = data.reshape(type.dims).copy()


def _last_commands(commands: Sequence[Command], nodes: int) -> list[int]:
    """The index of the last command of each node, -1 where it has none."""
    last = [-1] * nodes
    for index, command in enumerate(commands):
        if not isinstance(command.work, Barrier):
            last[command.node] = index
    return last


class NpuEvent:
    """A submitted task."""

    def __init__(self, spans: Sequence[NodeSpan]) -> None:
        self._spans = spans
        self._over = threading.Event()
        self._error: Exception | None = None

    def run(self, work: Callable[[], Any]) -> None:
        """Do the work, on the device's thread."""
        try:
            work()
        except Exception as error:
            self._error = error
        finally:
            self._over.set()

    def wait(self) -> None:
        """Return when the task is complete.

        Errors: DeviceError, if the simulator failed
        """
        self._over.wait()
        if self._error is not None:
            raise DeviceError(f"npu: the simulator failed: {self._error}") from self._error

    def spans(self) -> Sequence[NodeSpan]:
        """Return what each node took, if launched with profile=True."""
        return self._spans
