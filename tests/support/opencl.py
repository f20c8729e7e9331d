"""Run graphs on an OpenCL device in poisoned memory, for tests; skips where there is no device."""

import functools

import numpy as np
import pytest

import trireme.ops  # noqa: F401 - fills the registry
from trireme.devices.opencl.platforms import choose
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.support.dtypes import numpy_dtype
from trireme.support.errors import DeviceError

MARGIN = 192
POISON = 0xA5


@functools.cache
def skip_reason() -> str:
    """Why OpenCL tests cannot run here, or nothing."""
    try:
        choose(None, None)
    except DeviceError as error:
        return str(error)
    return ""


def need_opencl() -> None:
    """Skip the test where there is no OpenCL device."""
    if skip_reason():
        pytest.skip(skip_reason())


class Arena:
    """One device buffer with places for several tensors, each between poisoned margins."""

    def __init__(self, device, sizes):
        self.device, self.places, at = device, [], MARGIN
        for nbytes in sizes:
            self.places.append((at, nbytes))
            at += -(-nbytes // 64) * 64 + MARGIN
        self.whole = device.alloc(at)
        device.write(self.whole, np.full(at, POISON, np.uint8))
        self.buffers = [self.whole.at(offset, nbytes) for offset, nbytes in self.places]

    def check(self, what=""):
        data = np.empty(self.whole.nbytes, np.uint8)
        self.device.read(self.whole, data)
        for offset, nbytes in self.places:
            data[offset : offset + nbytes] = POISON
        wrong = np.flatnonzero(data != POISON)
        assert not wrong.size, f"{what}: bytes outside its tensors were written: {wrong[:8]}"


def run(device, graph, feeds, executable=None, profile=False):
    """Compile and run a graph; returns its outputs in order, and the spans."""
    executable = executable or device.compile([graph])[0]
    ids = (*graph.inputs, *graph.outputs)
    sizes = [graph.type(i).nbytes for i in ids]
    arena = Arena(device, [*sizes, executable.scratch_bytes])
    *args, scratch = arena.buffers
    for value, place in zip(graph.inputs, args, strict=False):
        device.write(place, np.ascontiguousarray(feeds[value]))
    call = executable.bind(args, scratch)
    event = call.launch(profile)
    event.wait()
    arena.check(graph.name)
    results = []
    for value, place in zip(graph.outputs, args[len(graph.inputs) :], strict=True):
        array = np.empty(graph.type(value).dims, numpy_dtype(graph.type(value).dtype))
        device.read(place, array)
        results.append(array)
    return results, event.spans()


def region():
    """A graph with a chain to fuse, a value read twice, an alias and two outputs."""
    builder = GraphBuilder("region")
    x = builder.input("x", TensorType((3, 5, 7), "float32"))
    scale = builder.constant("scale", np.linspace(-2, 2, 7, dtype=np.float32))
    shape = builder.constant("shape", np.array([15, 7]))
    y = builder.add("relu", builder.add("add", builder.add("mul", x, scale), x))
    flat = builder.add("reshape", builder.add("tanh", y), shape)
    z = builder.add("sub", flat, builder.add("reshape", y, shape))
    return builder.finish(flat, z)


def feed(graph, seed=7):
    rng = np.random.default_rng(seed)
    return {v.id: rng.standard_normal(v.type.dims).astype(np.float32) for v in graph.input_values()}


def assert_right(graph, found):
    wanted = interpret(graph, feed(graph))
    for value, array in zip(graph.outputs, found, strict=True):
        np.testing.assert_allclose(array, wanted[value], rtol=1e-5, atol=1e-6)
