"""Run graphs on a simulated NPU through the device contract alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from op_samples import feeds_of as feeds_of_sample

import trireme.ops  # noqa: F401  (fills the registry)
from trireme.backend.device import Device, NodeSpan
from trireme.devices.npu.executable import NpuCall, NpuExecutable
from trireme.ir.builder import GraphBuilder, graph_of_sample
from trireme.ir.graph import Graph, Quant, TensorType
from trireme.ir.op import OpDef, Sample
from trireme.support.dtypes import Array, numpy_dtype


class Run:
    """One graph compiled and launched once; `outputs` by value id."""

    def __init__(self, device: Device, graph: Graph, feeds: Mapping[int, Array]) -> None:
        (executable,) = device.compile([graph])
        assert isinstance(executable, NpuExecutable)
        self.executable, self.device, self.graph = executable, device, graph
        self.inputs = [device.alloc(graph.type(v).nbytes) for v in graph.inputs]
        self.places = [device.alloc(graph.type(v).nbytes) for v in graph.outputs]
        scratch = device.alloc(executable.scratch_bytes) if executable.scratch_bytes else None
        self.call: NpuCall = executable.bind([*self.inputs, *self.places], scratch)
        self.launch(feeds)

    def launch(self, feeds: Mapping[int, Array]) -> dict[int, Array]:
        """Copy in, launch, wait, copy out."""
        for value, buffer in zip(self.graph.inputs, self.inputs, strict=True):
            self.device.write(buffer, np.ascontiguousarray(feeds[value]))
        event = self.call.launch(profile=True)
        event.wait()
        self.spans: Sequence[NodeSpan] = event.spans()
        self.outputs: dict[int, Array] = {}
        for value, buffer in zip(self.graph.outputs, self.places, strict=True):
            type = self.graph.type(value)
            array = np.empty(type.dims, numpy_dtype(type.dtype))
            self.device.read(buffer, array)
            self.outputs[value] = array
        return self.outputs


def sample_graph(op: OpDef, sample: Sample) -> tuple[Graph, dict[int, Array]]:
    """Return the graph of one node, and what to feed it."""
    graph = graph_of_sample(op, sample, _outputs(op, sample))
    return graph, feeds_of_sample(graph, sample)


def _outputs(op: OpDef, sample: Sample) -> int:
    if op.name == "split":
        given = sample.inputs[1] if len(sample.inputs) > 1 else None
        return len(given) if given is not None else int(sample.attrs["num_outputs"])
    return 1


def supported_part(device: Device, graph: Graph) -> Graph:
    """Return the nodes of a graph that the device takes, as one graph."""
    nodes = tuple(n for n in graph.nodes if device.unsupported_reason(graph, n) is None)
    inside, made = {n.id for n in nodes}, {v for n in nodes for v in n.outputs}
    used = {v for n in nodes for v in (*n.used, *n.outputs)}
    fed = dict.fromkeys(v for n in nodes for v in n.used if v not in made)
    inputs = tuple(v for v in fed if not graph.values[v].is_constant)
    outputs = tuple(
        v
        for v in sorted(made)
        if v in graph.outputs or any(user.id not in inside for user in graph.users(v))
    )
    return Graph(graph.name, inputs, outputs, nodes, {v: graph.values[v] for v in sorted(used)})


def feeds_of(graph: Graph, rng: np.random.Generator) -> dict[int, Array]:
    """Return random stored integers of the whole range for every input."""
    types = {value: graph.type(value) for value in graph.inputs}
    return {
        value: rng.integers(0, 256, type.dims).astype(np.uint8).view(numpy_dtype(type.dtype))
        for value, type in types.items()
    }


class Int8Builder(GraphBuilder):
    """A builder with short cuts for quantised graphs; `dtype` is int8 or uint8."""

    def __init__(self, rng: np.random.Generator, dtype: str = "int8") -> None:
        super().__init__(f"npu {dtype}")
        self.rng, self.dtype = rng, dtype
        self.feeds: dict[int, Array] = {}

    def random(self, shape: Sequence[int]) -> Array:
        """Return stored integers of the whole range."""
        info = np.iinfo(self.dtype)
        return self.rng.integers(info.min, info.max + 1, shape).astype(self.dtype)

    def quant(self, scale: float | None = None) -> Quant:
        """Return a quantisation with a random zero point."""
        info = np.iinfo(self.dtype)
        scale = scale or float(self.rng.uniform(0.01, 0.1))
        return Quant((float(np.float32(scale)),), (int(self.rng.integers(info.min, info.max)),))

    def feed(self, *shape: int, quant: Quant | None = None) -> int:
        """Add an input with random data."""
        value = self.input("x", TensorType(shape, self.dtype, quant or self.quant()))
        self.feeds[value] = self.random(shape)
        return value

    def weights(self, *shape: int, per_channel: bool = True) -> int:
        """Add a constant weight, quantised along its first axis if asked and int8."""
        scales = tuple(float(np.float32(s)) for s in self.rng.uniform(0.001, 0.02, shape[0]))
        if self.dtype == "int8" and per_channel:
            quant = Quant(scales, (0,) * shape[0], 0)
        else:
            quant = Quant(scales[:1], (0 if self.dtype == "int8" else 131,))
        return self.constant("w", self.random(shape), quant)

    def bias(self, count: int) -> int:
        """Add a constant int32 bias."""
        data = self.rng.integers(-2000, 2000, count).astype(np.int32)
        return self.constant("b", data, Quant((0.001,), (0,)))

    def op(
        self, name: str, *inputs: int | None, quant: Quant | None = None, **attrs: object
    ) -> int:
        """Add a node whose output is quantised."""
        return self.add_node(name, inputs, attrs, quants=[quant or self.quant()])[0]

    def conv(
        self,
        x: int,
        channels: int,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        activation: str = "",
        same: bool = True,
    ) -> int:
        """Add a conv with bias."""
        depth = int(self.type(x).shape[-1]) // groups
        pad = kernel // 2 if same else 0
        return self.op(
            "conv",
            x,
            self.weights(channels, kernel, kernel, depth),
            self.bias(channels),
            strides=(stride, stride),
            pads=(pad,) * 4,
            dilations=(1, 1),
            groups=groups,
            activation=activation,
        )
