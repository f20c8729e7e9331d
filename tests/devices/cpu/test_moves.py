"""pad in all modes, depth_to_space, space_to_depth and reverse on the cpu device, by dtype; and the
ops that only move stored integers.
"""

import numpy as np
import pytest
from cpu_run import agree, node_graph, run, sample_graph

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.kernels.movement.move import MOVES
from trireme.ir.graph import Quant
from trireme.ir.interpreter import interpret
from trireme.ir.op import Sample, get_op, ops_with

SEED = 20261128
BEST = available_isas()[0]
by_dtype = pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])


@by_dtype
@pytest.mark.parametrize("mode", ["constant", "reflect", "symmetric", "edge", "wrap"])
def test_pad(cpus, mode, dtype):
    """Axes first, last, between and none; cuts, and more elements than there are."""
    x = np.random.default_rng(SEED).integers(0, 99, (3, 5, 7, 4)).astype(dtype)
    for pads in ((0, 1, 2, 0, 0, 3, 0, 0), (2, 0, 0, 9, 1, 0, 0, 1), (0,) * 8, (0, -2, 1, 0) * 2):
        inputs = [x, np.array(pads, np.int64)]
        agree(cpus, BEST, *node_graph("pad", inputs, {"mode": mode}, {1}), rtol=0)


def test_pad_of_a_dtype_that_has_no_zero(cpus):
    """The reference fills with zeroed memory; a cast of 0 is NaN there."""
    x = np.ones((3, 5), "float8_e8m0fnu")
    graph, feeds = node_graph("pad", [x, np.ones(4, np.int64)], {}, {1})
    for device in (cpus[BEST, 1], cpus[BEST, 2]):
        (found,), _, _ = run(device, graph, feeds)
        (want,) = interpret(graph, feeds).values()
        assert found.tobytes() == want.tobytes()


@by_dtype
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks(cpus, mode, layout, dtype):
    rng, attrs = np.random.default_rng(SEED), {"mode": mode, "layout": layout, "blocksize": 3}
    deep, flat = (
        ((2, 5, 4, 18), (2, 15, 12, 2)) if layout == "NHWC" else ((2, 18, 5, 4), (2, 2, 15, 12))
    )
    for op, shape in (("depth_to_space", deep), ("space_to_depth", flat)):
        x = rng.integers(0, 99, shape).astype(dtype)
        agree(cpus, BEST, *node_graph(op, [x], attrs), rtol=0)


ONE = Quant((0.25,), (3,))


def stored(op, sample):
    """Return a sample of an op with its float32 inputs as int8 of one quantisation."""
    inputs = [
        x.astype(np.int8) if k not in sample.constants and x.dtype == np.float32 else x
        for k, x in enumerate(sample.inputs)
    ]
    quants = tuple(ONE if x.dtype == np.int8 else None for x in inputs)
    return Sample(tuple(inputs), sample.attrs, sample.constants, quants, (ONE,) * 4)


def is_plain(sample):
    """Whether the first input is an array of finite floats, and no activation follows."""
    x = sample.inputs[0]
    if x is None or not x.ndim or 0 in sample.constants or sample.attrs.get("activation"):
        return False
    is_whole = all(one is not None for one in sample.inputs)
    return is_whole and x.dtype == np.float32 and bool(np.isfinite(x).all())


@pytest.mark.parametrize("name", sorted({*MOVES, *ops_with(lambda op: op.moves)}))
def test_stored_integers_of_one_quantisation_are_moved_as_bytes(cpus, name):
    """A table of 256 entries takes a nanosecond a byte; a copy takes a fiftieth of that."""
    op, rng = get_op(name), np.random.default_rng(SEED)
    for sample in filter(is_plain, op.samples(rng)):
        graph, feeds = sample_graph(op, stored(op, sample))
        if feeds:
            (executable,) = cpus[BEST, 1].compile([graph])
            assert not any("table" in kernel for kernel in executable.kernels.values())


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_concat_copies_what_has_its_scale(cpus, axis):
    """The other input goes through a table: halves of 0.25 are steps of 0.5."""
    rng = np.random.default_rng(SEED)
    shape = [[2, 3, 5], [2, 3, 5], [2, 3, 5]]
    shape[1][axis] = 7
    inputs = [rng.integers(-128, 128, one).astype(np.int8) for one in shape]
    quants = (ONE, Quant((0.5,), (-4,)), ONE)
    graph, feeds = node_graph("concat", inputs, {"axis": axis}, (), quants, 1, (ONE,))
    agree(cpus, BEST, graph, feeds, rtol=0)
    _, kernels, _ = run(cpus[BEST, 1], graph, feeds)
    (name,) = kernels.values()
    assert "concat_b8" in name
    assert "table_q8" in name
