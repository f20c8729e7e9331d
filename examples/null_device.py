"""A device in fifty lines: the numpy references behind the contract of `trireme.backend.device`.

`tests/devices/test_contract.py` holds it to what every device is held to.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import trireme
from trireme.backend.device import (
    HOST_CORES,
    Buffer,
    DeviceSpec,
    Done,
    Event,
    Executable,
    host_view,
)
from trireme.backend.device_kind import DeviceInstance, DeviceKind, option
from trireme.backend.host_memory import HostMemoryDevice
from trireme.backend.registry import register_device
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Node, TensorType
from trireme.ir.interpreter import interpret


@dataclass(frozen=True)
class NullOptions:
    """What the device can be opened with."""

    ops: tuple[str, ...] = option(("relu", "add"), "ops that it runs")


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
        self.kernels = {node.id: "numpy reference" for node in graph.nodes}

    def bind(self, args: Sequence[Buffer], scratch: Buffer | None) -> NullCall:
        """Return the region on memory: inputs first, then outputs."""
        graph, count = self.graph, len(self.graph.inputs)
        ids = (*graph.inputs, *graph.outputs)
        places = [host_view(at, graph.type(value)) for value, at in zip(ids, args, strict=True)]

        def work() -> None:
            made = interpret(graph, dict(zip(graph.inputs, places[:count], strict=True)))
            for value, place in zip(graph.outputs, places[count:], strict=True):
                place[...] = made[value]

        return NullCall(work)


class NullDevice(HostMemoryDevice):
    """Runs some ops in host memory, on the CPU's cores."""

    def __init__(self, options: NullOptions, instance: DeviceInstance) -> None:
        self.ops = options.ops
        self.spec = DeviceSpec(
            name=instance.name,
            description="the numpy references",
            flops={"float32": 1e9},
            bandwidth=1e9,
            launch_s=1e-6,
            resource_group=HOST_CORES,
        )

    def unsupported_reason(self, graph: Graph, node: Node) -> str | None:
        """Return None if the device can run the node, else one sentence saying why not."""
        return None if node.op in self.ops else f"no kernel for {node.op}"

    def compile(self, graphs: Sequence[Graph]) -> list[Executable]:
        """Return an executable for each graph."""
        return [NullExecutable(graph) for graph in graphs]


KIND = DeviceKind("null", "the numpy references", NullDevice, NullOptions)


def main() -> None:
    """Run a graph on the null device, with the cpu for what it refuses."""
    register_device(KIND)
    b = GraphBuilder("example")
    x = b.input("x", TensorType((2, 3), "float32"))
    graph = b.finish(b.add("tanh", b.add("relu", x)))
    on_null = trireme.PlacementOptions(pins={"op:relu": "null"})
    with trireme.Session(graph, devices=["null", "cpu"], placement_options=on_null) as session:
        print(session.run({"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}))
        print(trireme.explain(session.placement))


if __name__ == "__main__":
    main()
