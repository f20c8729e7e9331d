"""The cpu device against the reference: every op's samples on every instruction set and thread
count, with poisoned margins around what kernels may write.
"""

import numpy as np
import pytest

import trireme.ops  # noqa: F401
from trireme.builder import GraphBuilder
from trireme.device import Buffer, Done
from trireme.devices.cpu import open_device
from trireme.devices.cpu.program import REFERENCE
from trireme.devices.cpu.target import available_isas
from trireme.dtypes import dtype_name, numpy_dtype
from trireme.errors import TriremeError
from trireme.graph import TensorType
from trireme.interpret import interpret
from trireme.op import all_ops, get_op

SEED = 20261121
MARGIN = 256
POISON = 0xA5


@pytest.fixture(scope="session")
def devices(tmp_path_factory):
    """One device for each instruction set and thread count, sharing one object cache."""
    cache = tmp_path_factory.mktemp("objects")
    made = {
        (isa, threads): open_device(threads=threads, isa=isa, cache_dir=cache)
        for isa in available_isas()
        for threads in (1, 2)
    }
    yield made
    for device in made.values():
        device.close()


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


def run(device, graph, feeds, executable=None):
    """Compile and run a graph; returns outputs, kernels and spans. Checks every margin."""
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
    return results, executable.kernels, spans


def sample_graph(op, sample):
    """A graph of one node from an op's sample, and its feeds."""
    builder = GraphBuilder(op.name)
    ids, feeds = [], {}
    for position, array in enumerate(sample.inputs):
        if array is None:
            ids.append(None)
            continue
        quant = sample.quants[position] if position < len(sample.quants) else None
        if position in sample.constants:
            ids.append(builder.constant(f"x{position}", array, quant))
        else:
            type = TensorType(array.shape, dtype_name(array.dtype), quant)
            ids.append(builder.input(f"x{position}", type))
            feeds[ids[-1]] = array
    outputs = max(len(op.outputs.split()) if "*" not in op.outputs else 1, 1)
    if "?" in op.outputs:
        outputs = sum(not name.endswith("?") for name in op.outputs.split())
    if op.name == "split":
        outputs = sample.attrs.get("num_outputs") or outputs
    made = builder.add_node(
        op.name, ids, sample.attrs, outputs=outputs, quants=sample.out_quants, source="sample"
    )
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


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("name", [op.name for op in all_ops()])
def test_samples(devices, name, isa):
    op = get_op(name)
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    for number, sample in enumerate(op.samples(rng)):
        try:
            graph, feeds = sample_graph(op, sample)
        except TriremeError:
            continue  # a sample that only the reference takes
        if devices[isa, 1].unsupported_reason(graph, graph.nodes[0]) is not None:
            continue
        if REFERENCE in _kernels(devices[isa, 1], graph):
            continue  # the numpy reference against itself
        want = list(interpret(graph, feeds).values())
        bits = []
        for threads in (1, 2):
            got, kernels, _ = run(devices[isa, threads], graph, feeds)
            for g, w in zip(got, want, strict=True):
                assert_close(g, w, op.rtol, f"{name} sample {number} {sample.note} {kernels}")
            bits.append([g.tobytes() for g in got])
        assert bits[0] == bits[1], "results depend on the number of threads"


def _kernels(device, graph):
    return device.compile([graph])[0].kernels.values()


def test_reference_steps_run_in_order(devices):
    """Native and reference steps in one region, with an alias and an output used twice."""
    builder = GraphBuilder("mixed")
    x = builder.input("x", TensorType((4, 6), "float32"))
    y = builder.add("tanh", x)
    z = builder.add("relu", y)
    graph = builder.finish(z, y, x, z)
    feed = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    for device in devices.values():
        got, _, spans = run(device, graph, {x: feed})
        np.testing.assert_allclose(got[1], np.tanh(feed), rtol=1e-6)
        np.testing.assert_array_equal(got[0], np.maximum(got[1], 0))
        np.testing.assert_array_equal(got[2], feed)
        np.testing.assert_array_equal(got[3], got[0])
        assert [s.start_s <= s.end_s for s in spans] == [True] * len(spans)


def test_types_of_the_contract(devices):
    device = next(iter(devices.values()))
    assert isinstance(device.alloc(100), Buffer)
    assert device.alloc(100).handle.ctypes.data % 64 == 0
    assert isinstance(Done(), Done)
