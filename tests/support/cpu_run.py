"""Run graphs on the cpu device with poisoned margins around everything a kernel may write."""

import os
import random

import numpy as np
from guard import run_guarded

from trireme.backend.registry import open_device
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.compile.program import REFERENCE
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.support.dtypes import dtype_name, numpy_dtype

EVERY_ISA = "TRIREME_TEST_EVERY_ISA" in os.environ
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


def open_all():
    """One device for each instruction set and thread count, sharing the user's cache."""
    return {
        (isa, threads): open_device("cpu", threads=threads, isa=isa)
        for isa in available_isas()
        for threads in (1, 2)
    }


def isas_for(case, isas):
    """The best of some instruction sets or one of the others, as the case draws; or every one.

    A case costs a compilation for each set and thread count, and cases are many for each kernel.
    TRIREME_TEST_EVERY_ISA asks for all of them: .ci/isas does.
    """
    best, *others = isas
    if EVERY_ISA or not others:
        return tuple(isas)
    draw = random.Random(case)
    return (best if draw.random() < 0.5 else draw.choice(others),)


def run(device, graph, feeds, at_end=True, executable=None):
    """Compile (or take) and run a graph; returns outputs, kernels and spans. Checks every margin.

    The kernels also run between guard pages, which must give the same bits.
    """
    executable = executable or device.compile([graph])[0]
    ids = (*graph.inputs, *graph.outputs)
    memory = [Poisoned(device, graph.type(i).nbytes) for i in ids]
    scratch = Poisoned(device, executable.scratch_bytes)
    for place, value in zip(memory, graph.inputs, strict=False):
        device.write(place.buffer, np.ascontiguousarray(feeds[value]))
    call = executable.bind([m.buffer for m in memory], scratch.buffer)
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
    guarded = run_guarded(executable, feeds, at_end)
    for found, value in zip(guarded or [], results, strict=False):
        assert found.tobytes() == value.tobytes(), f"other bits between guard pages: {graph}"
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


def sample_graph(op, sample):
    """A graph of one node from an op's sample, and its feeds."""
    outputs = 1 if "*" in op.outputs else len(op.outputs.split()) - op.outputs.count("?")
    if op.name == "split":
        outputs = sample.attrs.get("num_outputs") or outputs
    return node_graph(
        op.name,
        sample.inputs,
        sample.attrs,
        sample.constants,
        sample.quants,
        outputs,
        sample.out_quants,
    )


def agree_everywhere(cpus, graph, feeds, rtol=1e-5):
    """Instruction sets give the reference's result, the same bits by both thread counts."""
    want = list(interpret(graph, feeds).values())
    for isa in isas_for(str(graph), available_isas(variants=False)):
        agree(cpus, isa, graph, feeds, rtol, want=want)


def assert_close(got, want, rtol, what):
    """Equal NaNs and infinities; finite values within rtol of the largest."""
    if want.dtype.kind not in "fc" and want.dtype.name not in ("bfloat16", "float16"):
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    if want.dtype.kind == "c":
        got, want = got.view(np.float32), want.view(np.float32)
    got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=what)
    infinite = np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite], err_msg=what)
    finite = np.isfinite(want)
    if finite.any():
        scale = np.abs(want[finite]).max()
        error = np.abs(got[finite] - want[finite]).max()
        assert error <= max(rtol, 2e-6) * scale + 1e-38, f"{what}: {error} of {scale}"


def agree(cpus, isa, graph, feeds, rtol=1e-5, native=True, want=None):
    """Both thread counts give the reference's result (or `want`), and the same bits."""
    want = list(interpret(graph, feeds).values()) if want is None else want
    bits = []
    for threads in (1, 2):
        got, kernels, _ = run(cpus[isa, threads], graph, feeds, at_end=threads == 1)
        assert native != (REFERENCE in kernels.values()), kernels
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, rtol, f"{isa} {kernels} {graph}")
        bits.append([g.tobytes() for g in got])
    assert bits[0] == bits[1], f"results depend on the number of threads of {isa}"
