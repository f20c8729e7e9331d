"""Softmax on 8-bit integers, bit for bit with the reference, on every instruction set.

The kernel divides through float64. So rows have sums of every kind: one power, equal powers,
hundreds of unlike ones; and outputs have coarse and fine scales.
"""

import numpy as np
import pytest
from cpu_run import isas_for, node_graph, run

from trireme.backend.registry import open_device
from trireme.cost.work import roofline_s, work_of
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.graph import Quant
from trireme.ir.interpreter import interpret

SEED = 26
LENGTHS = (1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 130, 197, 1001)
CLASSES = ((1 / 256, -128), (1 / 256, 0), (0.001, -100), (0.5, 3), (1e-6, -128))
"""Scales and zero points of outputs."""


def rows_of(rng, count, length, dtype):
    """Random rows: spread, close together, equal, and one element above all others."""
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, (count, length))
    x[1::4] = rng.integers(0, 4, x[1::4].shape)
    x[2::4] = info.max
    x[3::4] = info.min
    x[3::4, length // 2] = info.max
    return x.astype(dtype)


def softmax_graph(x, scale, output, axis=-1):
    dtype = x.dtype.name
    zero = output[1] if dtype == "int8" else output[1] + 128
    quants = [Quant((scale,), (5,))], [Quant((output[0],), (zero,))]
    return node_graph("softmax", [x], {"axis": axis}, quants=quants[0], out_quants=quants[1])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_bit_for_bit(cpus, dtype, length):
    rng = np.random.default_rng([SEED, length])
    for number, output in enumerate(CLASSES):
        scale = float(rng.choice([0.003, 0.02, 0.09, 0.5]))
        graph, feeds = softmax_graph(rows_of(rng, 41, length, dtype), scale, output)
        (want,) = interpret(graph, feeds).values()
        for isa in isas_for(length + number, available_isas()):
            (got,), kernels, _ = run(cpus[isa, 1 + number % 2], graph, feeds, number % 2 == 0)
            assert "softmax_q8" in " ".join(kernels.values())
            np.testing.assert_array_equal(got, want, err_msg=f"seed {SEED} {graph}")


def test_what_has_no_kernel_says_why(cpus):
    x = np.zeros((3, 4), np.int8)
    cpu = cpus[available_isas()[0], 1]
    for axis, output, why in ((0, (1 / 256, 0), "last axis"), (1, (1e-9, 0), "50 bits")):
        graph, feeds = softmax_graph(x, 0.1, output, axis)
        assert why in cpu.kernel_note(graph, graph.nodes[0])
        (got,), _, _ = run(cpu, graph, feeds)
        np.testing.assert_array_equal(got, *interpret(graph, feeds).values())


def test_its_price_without_a_calibration_is_that_of_its_integers():
    """The roofline counts table reads and a division, which take 0.8 ns an element on AVX-512."""
    graph, _ = softmax_graph(np.zeros((8, 197), np.int8), 0.1, (1 / 256, 0))
    (node,) = graph.nodes
    spec = open_device("cpu", threads=1).spec
    assert roofline_s(work_of(graph, node), spec) / (8 * 197) > 0.3e-9
