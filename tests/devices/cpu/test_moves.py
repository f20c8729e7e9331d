"""pad in all modes, depth_to_space, space_to_depth and reverse on the cpu device, by dtype."""

import numpy as np
import pytest
from cpu_run import agree, node_graph, run

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.interpreter import interpret

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
