"""Run graphs on the cpu device with poisoned margins around everything a kernel may write."""

import ctypes
import mmap
import sys

import numpy as np

from trireme.builder import GraphBuilder
from trireme.device import HOST, Buffer
from trireme.devices.cpu import open_device
from trireme.devices.cpu.target import available_isas
from trireme.dtypes import dtype_name, numpy_dtype
from trireme.graph import TensorType

MARGIN = 256
POISON = 0xA5


class Poisoned:
    """Device memory with a margin on either side that a kernel must leave alone."""

    def __init__(self, device, nbytes):
        room = -(-nbytes // 64) * 64
        self.whole = device.alloc(room + 2 * MARGIN)
        self.whole.handle[:] = POISON
        self.buffer = self.whole.at(MARGIN, nbytes)

    def check(self, what):
        begin = self.whole.offset + MARGIN
        before = self.whole.handle[self.whole.offset : begin]
        after = self.whole.handle[begin + self.buffer.nbytes :]
        assert (before == POISON).all(), f"{what}: bytes before it were written"
        assert (after == POISON).all(), f"{what}: bytes after it were written"


class Guarded:
    """Memory between two pages that nobody may touch: a read outside ends the process.

    The bytes begin right after the first page, or end right before the second.
    """

    def __init__(self, data, at_end):
        page = mmap.PAGESIZE
        room = -(-max(data.nbytes, 1) // page) * page
        self.map = mmap.mmap(-1, room + 2 * page)
        whole = np.frombuffer(self.map, np.uint8)
        self.address, self.page, self.last = whole.ctypes.data, page, page + room
        start = self.last - data.nbytes if at_end else page
        whole[start : start + data.nbytes] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.buffer = Buffer(HOST, whole, start, data.nbytes)
        self._protect(0)

    def _protect(self, mode):
        libc = ctypes.CDLL(None, use_errno=True)
        for offset in (0, self.last):
            done = libc.mprotect(ctypes.c_void_p(self.address + offset), self.page, mode)
            assert done == 0, ctypes.get_errno()

    def close(self):
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)


def open_all(cache):
    """One device for each instruction set and thread count, sharing one object cache."""
    return {
        (isa, threads): open_device(threads=threads, isa=isa, cache_dir=cache)
        for isa in available_isas()
        for threads in (1, 2)
    }


def run(device, graph, feeds, at_end=True):
    """Compile and run a graph; returns outputs, kernels and spans. Checks every margin."""
    guards = []
    if sys.platform == "linux":
        guards = [Guarded(feeds[value], at_end) for value in graph.inputs]
    try:
        return _run(device, graph, feeds, guards)
    finally:
        for guard in guards:
            guard.close()


def _run(device, graph, feeds, guards):
    executable = device.compile([graph])[0]
    ids = (*graph.inputs, *graph.outputs)
    memory = [Poisoned(device, graph.type(i).nbytes) for i in ids]
    scratch = Poisoned(device, executable.scratch_bytes)
    for place, value in zip(memory, graph.inputs, strict=False):
        device.write(place.buffer, np.ascontiguousarray(feeds[value]))
    places = [m.buffer for m in memory]
    places[: len(guards)] = [guard.buffer for guard in guards]
    call = executable.bind(places, scratch.buffer)
    call.launch().wait()
    spans = call.launch(profile=True).spans()
    results = []
    for place, value in zip(memory[len(graph.inputs) :], graph.outputs, strict=True):
        type = graph.type(value)
        array = np.empty(type.dims, numpy_dtype(type.dtype))
        device.read(place.buffer, array)
        results.append(array)
    for place, value in zip(memory, ids, strict=True):
        place.check(f"%{value} of {graph}")
    scratch.check(f"scratch of {graph}")
    return results, executable.kernels, spans


def node_graph(op, inputs, attrs, constants=(), quants=(), outputs=1, out_quants=()):
    """A graph of one node, and its feeds; `constants` are the positions of constant inputs."""
    builder = GraphBuilder(op)
    ids, feeds = [], {}
    for position, array in enumerate(inputs):
        if array is None:
            ids.append(None)
            continue
        quant = quants[position] if position < len(quants) else None
        if position in constants:
            ids.append(builder.constant(f"x{position}", array, quant))
        else:
            type = TensorType(array.shape, dtype_name(array.dtype), quant)
            ids.append(builder.input(f"x{position}", type))
            feeds[ids[-1]] = array
    made = builder.add_node(op, ids, attrs, outputs=outputs, quants=out_quants, source="test")
    return builder.finish(*made), feeds


def assert_close(got, want, rtol, what):
    """Equal NaNs and infinities; finite values within rtol of the largest."""
    if want.dtype.kind not in "fc" and want.dtype.name not in ("bfloat16", "float16"):
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=what)
    infinite = np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite], err_msg=what)
    finite = np.isfinite(want)
    if finite.any():
        scale = np.abs(want[finite]).max()
        error = np.abs(got[finite] - want[finite]).max()
        assert error <= max(rtol, 2e-6) * scale + 1e-38, f"{what}: {error} of {scale}"
