"""Run graphs on an OpenCL device in poisoned memory, for tests; skips where there is no device."""

import functools

import numpy as np
import pytest

from trireme.devices.opencl import list_devices
from trireme.dtypes import numpy_dtype

MARGIN = 192
POISON = 0xA5


@functools.cache
def skip_reason() -> str:
    """Why OpenCL tests cannot run here, or nothing."""
    usable = [found for found in list_devices() if not found.checker]
    return "" if usable else "no OpenCL platform"


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
