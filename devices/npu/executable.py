"""Compiled tasks of the NPU: bound to memory, launched, and inspected.

A launch submits the whole task to the chip and returns. Its event is over when the simulator has
run every command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trireme.backend.device import Buffer, Done, Event, Executable, NodeSpan
from trireme.devices.npu.chip import GARBAGE, Chip
from trireme.devices.npu.compiler.compile import Compiled, node_kernels
from trireme.devices.npu.simulator.simulate import execute
from trireme.devices.npu.simulator.timing import Timeline, simulate_cycles
from trireme.devices.npu.stream.codec import decode
from trireme.devices.npu.stream.commands import (
    ARGUMENTS,
    SRAM,
    Barrier,
    Command,
    CommandStream,
    array_of,
)
from trireme.devices.npu.stream.verify import verify
from trireme.ir.graph import Graph
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array
from trireme.support.errors import DeviceError, RunError
from trireme.support.locks import Latch


class NpuExecutable(Executable):
    """A compiled region: the stream, its constants in NPU memory, and its cycles.

    stream: FlatBuffers of schema/task.fbs, see `disassemble`
    trace: whether calls keep every intermediate of their last launch
    sram_bytes: the most SRAM in use while each node runs; `sram_peak_bytes` is the whole task's
    """

    def __init__(
        self, chip: Chip, graph: Graph, compiled: Compiled, stream: bytes, trace: bool
    ) -> None:
        self.chip, self.graph, self.stream, self.trace = chip, graph, stream, trace
        self.task: CommandStream = verify(chip.machine, decode(stream))
        self.constants = compiled.constants.build()
        self.sram_bytes = compiled.sram_bytes
        self.sram_peak_bytes = self.task.regions[SRAM].nbytes
        self.scratch_bytes = compiled.scratch_bytes
        self.constant_bytes, self.code_bytes = self.constants.size, len(stream)
        chip.take(self.constant_bytes + self.code_bytes, self.constants)
        self.kernels: Mapping[int, str] = node_kernels(graph, self.task.commands)

    @cached_property
    def timeline(self) -> Timeline:
        """Cycles of the task, of its nodes and of its commands."""
        return simulate_cycles(self.chip.machine, self.task)

    @cached_property
    def spans(self) -> tuple[NodeSpan, ...]:
        """A span a node, on the virtual clock; together they are the whole task."""
        clock = self.chip.machine.clock_hz
        macs = self.chip.machine.macs
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
            if buffer.memory != self.chip.memory or buffer.nbytes < nbytes:
                raise RunError(
                    f"npu: a buffer of {buffer.nbytes} bytes in {buffer.memory}, "
                    f"expected {nbytes} in {self.chip.memory}"
                )
        return NpuCall(self, [_bytes(b, n) for b, n in places])


def _bytes(buffer: Buffer, nbytes: int) -> Array:
    place: Array = buffer.handle[buffer.offset : buffer.offset + nbytes]
    return place


class NpuCall:
    """An executable bound to memory."""

    def __init__(self, executable: NpuExecutable, places: list[Array]) -> None:
        self.executable = executable
        count = len(executable.task.regions) - ARGUMENTS
        scratch = places[count] if len(places) > count else np.zeros(0, np.uint8)
        self._memory = [executable.chip.sram, executable.constants, scratch, *places[:count]]
        self._outputs = places[len(executable.graph.inputs) : count]
        self._traced: dict[int, Array] = {}
        self.repeat(False)

    def launch(self, profile: bool = False) -> Event:
        """Submit the task and return at once; after `repeat(True)`, restore earlier outputs
        instead.
        """
        spans = self.executable.spans if profile else ()
        if self._made:
            for place, made in zip(self._outputs, self._made, strict=True):
                place[...] = made
            return Done(spans)
        event = NpuEvent(spans)
        self.executable.chip.submit(lambda: event.run(self._run))
        return event

    def repeat(self, repeats: bool) -> None:
        """Let launches restore the first launch's outputs (True), or simulate (False)."""
        self._repeats, self._made = repeats, list[Array]()

    def intermediate(self, value: int) -> Array:
        """Return a value of the last launch, by its id in the graph.

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
        if not self.executable.trace:
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
    """Return the index of the last command of each node, -1 without commands."""
    last = [-1] * nodes
    for index, command in enumerate(commands):
        if not isinstance(command.work, Barrier):
            last[command.node] = index
    return last


class NpuEvent:
    """A submitted task."""

    def __init__(self, spans: Sequence[NodeSpan]) -> None:
        self._spans = spans
        self._over = Latch()
        self._error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Whether the task is complete, or was given up with an error."""
        return self._over.is_open

    def run(self, work: Callable[[], Any]) -> None:
        """Do the work, on the chip's thread."""
        try:
            work()
        except Exception as error:
            self._error = error
        finally:
            self._over.open()

    def wait_for(self, most_s: float) -> bool:
        """See TimedEvent."""
        if not self._over.wait_for(most_s):
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Return when the task is complete.

        Errors: DeviceError, if the simulator failed
        """
        self._over.wait()
        if self._error is not None:
            raise DeviceError(f"npu: the simulator failed: {self._error}") from self._error

    def spans(self) -> Sequence[NodeSpan]:
        """Return the span of each node, if launched with profile=True."""
        return self._spans
