"""Predict a node's time and memory: compile its own stream and time it, without packing constants.

Inputs and outputs count as in SRAM where they fit, as inside a sunk region.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trireme.backend.device import Resident
from trireme.devices.npu.compiler.compile import compile_graph
from trireme.devices.npu.compiler.jobs import Shared
from trireme.devices.npu.simulator.timing import Timeline, simulate_cycles
from trireme.devices.npu.spec import NpuSpec
from trireme.devices.npu.stream.commands import ENGINES
from trireme.ir.graph import Graph, Node, Value, graph_of
from trireme.support.errors import CompileError, InternalError
from trireme.support.forks import register_at_fork

COMMAND_BYTES = 130
"""Approximate bytes of a command in a stream: a FlatBuffers table of several views."""
NODE_BYTES = 700
"""Approximate bytes of a node in a stream."""


@dataclass(frozen=True)
class Predicted:
    """A node's cost inside a region: seconds, and bytes of device memory.

    shared: (key, bytes) of the constants that other nodes may use too; the key has their positions
        among the inputs
    """

    seconds: float
    resident: Resident
    shared: tuple[tuple[Shared, int], ...]

    def resident_of(self, graph: Graph, node: Node) -> Resident:
        """Return the bytes that such a node keeps in the device's memory."""
        shared = ((_renamed(key, node.inputs), nbytes) for key, nbytes in self.shared)
        kept = (one for one in shared if len(graph.users(one[0].value)) > 1)
        return replace(self.resident, shared=tuple(kept))


def _positions(key: Shared, node: Node) -> Shared:
    """Return a key with the positions of its constants among a node's inputs."""
    addend = None if key.addend is None else node.inputs.index(key.addend)
    return key._replace(value=node.inputs.index(key.value), addend=addend)


def _renamed(key: Shared, inputs: Sequence[int | None]) -> Shared:
    """Return a key of positions as one of the constants in these inputs."""
    value = inputs[key.value]
    if value is None:
        raise InternalError("a constant of an input that was left out")
    return key._replace(value=value, addend=None if key.addend is None else inputs[key.addend])


class Estimator:
    """Caches estimates, by every property of a node that its cycles depend on."""

    def __init__(self, machine: NpuSpec) -> None:
        self.machine = machine
        self._known: dict[Any, Predicted | None] = {}
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Replace, in a forked child, the lock that an estimate of another thread may hold."""
        self._lock = threading.Lock()

    def predicted(self, graph: Graph, node: Node) -> Predicted | None:
        """Return a supported node's cost, None for a node that cannot be compiled."""
        key = _key(graph, node)
        with self._lock:
            if key in self._known:
                return self._known[key]
        try:
            made = compile_graph(self.machine, graph_of(graph, node), arguments_inside=True)
            cycles = _overlapped(simulate_cycles(self.machine, made.task))
            code = NODE_BYTES + COMMAND_BYTES * len(made.task.commands)
            kept = Resident(made.constants.nbytes, code)
            sizes = made.constants.shared.items()
            shared = tuple((_positions(key, node), nbytes) for key, nbytes in sizes)
            found: Predicted | None = Predicted(cycles / self.machine.clock_hz, kept, shared)
        except CompileError:
            found = None
        with self._lock:
            self._known[key] = found
        return found


def _overlapped(timeline: Timeline) -> float:
    """Return cycles between those of the node alone and those of its busiest engine.

    Neighbours hide the work of the other engines. Over the zoo's regions they hide about half of
    the maximum.
    """
    busiest = max(sum(node.busy[engine] for node in timeline.nodes) for engine in ENGINES)
    return (timeline.cycles + busiest) / 2


def _key(graph: Graph, node: Node) -> Any:
    attrs = tuple((key, repr(value)) for key, value in sorted(node.attrs.items()))
    inputs = tuple(None if v is None else _operand(graph.values[v]) for v in node.inputs)
    outputs = tuple(graph.type(v) for v in node.outputs)
    same = tuple(node.inputs.index(v) if v is not None else -1 for v in node.inputs)
    return node.op, attrs, inputs, outputs, same


def _operand(value: Value) -> Any:
    """Return a type, and the data of small constants such as shapes and axes."""
    small = value.data is not None and value.data.size <= 16
    data = value.data.tobytes() if small and value.data is not None else b""
    return value.type, value.is_constant, data
