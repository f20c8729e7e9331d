"""A device in fifty lines: the numpy references behind the contract of `trireme.backend.device`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import trireme
from trireme.backend.device import (
    Buffer,
    Device,
    DeviceSpec,
    Done,
    Event,
    Executable,
    HostMemoryDevice,
    host_view,
)
from trireme.backend.registry import register_device
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Node, TensorType
from trireme.ir.interpreter import interpret


@dataclass
class NullCall:
    """An executable on its memory."""

    work: Callable[[], None]

    def launch(self, profile: bool = False) -> Event:
        """Do the work; it is over when this returns."""
        self.work()
        return Done()


class NullExecutable(Executable):
    """A region that the numpy references run."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def bind(self, args: Sequence[Buffer], scratch: Buffer | None) -> NullCall:
        """Return the region on memory: inputs first, then outputs."""
        graph = self.graph
        ids = (*graph.inputs, *graph.outputs)
        views = {v: host_view(at, graph.type(v)) for v, at in zip(ids, args, strict=True)}

        def work() -> None:
            made = interpret(graph, {v: views[v] for v in graph.inputs})
            for value in graph.outputs:
                views[value][...] = made[value]

        return NullCall(work)


class NullDevice(HostMemoryDevice):
    """Runs relu and add, in host memory."""

    spec = DeviceSpec("null", "the numpy references", {"float32": 1e9}, 1e9, 1e-6)

    def unsupported_reason(self, graph: Graph, node: Node) -> str | None:
        """Return None if the device can run the node, else one sentence saying why not."""
        return None if node.op in ("relu", "add") else f"no kernel for {node.op}"

    def compile(self, graphs: Sequence[Graph]) -> list[Executable]:
        """Return an executable for each graph."""
        return [NullExecutable(graph) for graph in graphs]


def open_device() -> Device:
    """Open the device; `register_device` names this function."""
    return NullDevice()


def main() -> None:
    """Run a graph on the null device, with the cpu for what it refuses."""
    register_device("null", f"{__name__}:open_device")  # or "my_package:open_device"
    b = GraphBuilder("example")
    x = b.input("x", TensorType((2, 3), "float32"))
    graph = b.finish(b.add("tanh", b.add("relu", x)))
    with trireme.Session(
        graph, devices=[open_device(), "cpu"], pins={"op:relu": "null"}
    ) as session:
        print(session.run({"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}))
        print(trireme.explain(session.placement))


if __name__ == "__main__":
    main()
