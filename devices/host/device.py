"""Run nodes on the numpy references, where inputs, outputs and states live.

A session of a graph with states or control flow opens one by itself, for these nodes alone. Asked
for by name it runs every op: slow, and never chosen silently.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from trireme.backend.device import (
    ANY_NUMBER,
    HOST,
    HOST_CORES,
    Buffer,
    DeviceSpec,
    Done,
    Event,
    Executable,
    NodeSpan,
    host_view,
)
from trireme.backend.host_memory import HostMemoryDevice
from trireme.backend.refusal import needs_host
from trireme.devices.host.options import HostOptions
from trireme.ir.effects import States, uses_state
from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import interpret
from trireme.ir.op import get_op
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError

REFERENCE = "numpy reference"
DRIVES = "the host drives control flow"
_SPEC = DeviceSpec(
    name=HOST,
    description="numpy references, control flow, and the states of a session",
    flops={"float32": 1e9},
    bandwidth=5e9,
    launch_s=15e-6,
    resource_group=HOST_CORES,
    calibrated=False,
)


class HostDevice(HostMemoryDevice):
    """The references behind the contract."""

    spec = _SPEC
    calls_at_once = busy_calls = ANY_NUMBER

    def __init__(self, options: HostOptions) -> None:
        self.states = States() if options.states is None else options.states
        self.operators = options.operators

    def unsupported_reason(self, graph: Graph, node: Node) -> str | None:
        """Return None if the references can run the node in planned memory."""
        for value in (*node.used, *node.outputs):
            type = graph.type(value)
            if not type.is_static:
                return f"shape {list(type.shape)} is dynamic; memory is planned for exact shapes"
            if type.dtype == "string":
                return "planned memory holds no strings"
        if not self.operators and not needs_host(node):
            return (
                "the host keeps states, drives control flow and calls Python functions; ask for "
                "the device 'host' to run other ops on it"
            )
        return None

    def kernel_note(self, graph: Graph, node: Node) -> str:
        """Return "numpy reference", but for what the host serves: states, control flow, functions.

        A Python function is no kernel: its time is as uncertain as a reference's.
        """
        if uses_state(node):
            return ""
        if get_op(node.op).calls_python:
            return _kernel_of(node)
        return DRIVES if needs_host(node) else REFERENCE

    def compile(self, graphs: Sequence[Graph]) -> list[Executable]:
        """Return an executable for each graph."""
        return [HostExecutable(graph, self.states) for graph in graphs]


class HostExecutable(Executable):
    """A graph and the states it works on."""

    def __init__(self, graph: Graph, states: States) -> None:
        self.graph, self.states = graph, states
        self.kernels = {node.id: _kernel_of(node) for node in graph.nodes}

    def bind(self, args: Sequence[Buffer], scratch: Buffer | None) -> HostCall:
        """Return a call on these places."""
        ids = (*self.graph.inputs, *self.graph.outputs)
        if len(args) != len(ids) or any(arg.memory != HOST for arg in args):
            raise InternalError(f"host: {len(args)} buffers bound, the graph has {len(ids)}")
        views = [host_view(arg, self.graph.type(i)) for i, arg in zip(ids, args, strict=True)]
        count = len(self.graph.inputs)
        return HostCall(self, views[:count], views[count:])


class HostCall:
    """An executable on its memory."""

    def __init__(
        self, executable: HostExecutable, inputs: list[Array], outputs: list[Array]
    ) -> None:
        self.executable, self.inputs, self.outputs = executable, inputs, outputs

    def launch(self, profile: bool = False) -> Event:
        """Run the nodes in order; complete when this returns."""
        graph, states = self.executable.graph, self.executable.states
        spans: list[NodeSpan] = []
        start = time.perf_counter()

        def watch(node: Node, results: tuple[Array, ...]) -> None:
            began = spans[-1].end_s if spans else start
            kernel = self.executable.kernels[node.id]
            spans.append(NodeSpan((node.id,), kernel, began, time.perf_counter()))

        feeds = dict(zip(graph.inputs, self.inputs, strict=True))
        results = interpret(graph, feeds, watch if profile else None, states.arrays)
        for value, view in zip(graph.outputs, self.outputs, strict=True):
            view[...] = results[value]
        if not profile:
            return Done()
        return Done(spans)


def _kernel_of(node: Node) -> str:
    """Return what runs a node: its own op, a function of the user, or the reference."""
    if uses_state(node):
        return node.op
    if get_op(node.op).calls_python:
        return f"python function {node.attrs['operator'].name}"
    return REFERENCE
