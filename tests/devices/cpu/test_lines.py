"""Images of one spatial axis on the cpu device: stored integers, by the kernels for two axes."""

import numpy as np
import pytest
from cpu_run import agree, node_graph

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.graph import Quant

SEED = 12
by_isa = pytest.mark.parametrize("isa", available_isas(variants=False))
X, Y = Quant((0.05,), (3,)), Quant((0.2,), (-4,))

CONVS = {  # x, w [O,K,C/g], stride, pads, dilation, groups
    "plain": ((2, 19, 7), (12, 3, 7), 1, (1, 1), 1, 1),
    "strided": ((1, 40, 16), (24, 5, 16), 2, (0, 3), 1, 1),
    "dilated": ((1, 30, 5), (9, 3, 5), 1, (4, 4), 4, 1),
    "pointwise": ((1, 33, 20), (17, 1, 20), 1, (0, 0), 1, 1),
    "depthwise": ((1, 31, 24), (24, 5, 1), 1, (2, 2), 1, 24),
}


@by_isa
@pytest.mark.parametrize("name", CONVS)
def test_conv(cpus, name, isa):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    x, w, stride, pads, dilation, groups = CONVS[name]
    scales = tuple(0.004 + 0.0007 * (k % 5) for k in range(w[0]))
    inputs = [rng.integers(-128, 128, shape).astype(np.int8) for shape in (x, w)]
    inputs.append(rng.integers(-3000, 3000, w[0]).astype(np.int32))
    quants = [X, Quant(scales, (0,) * w[0], 0)]
    quants.append(Quant(tuple(0.05 * s for s in scales), (0,) * w[0], 0))
    attrs = dict(
        strides=(stride,),
        pads=pads,
        dilations=(dilation,),
        groups=groups,
        layout="NHWC",
        activation="relu",
    )
    agree(cpus, isa, *node_graph("conv", inputs, attrs, {1, 2}, quants, out_quants=(Y,)))


@by_isa
@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_pool(cpus, op, dtype, isa):
    info, rng = np.iinfo(dtype), np.random.default_rng(SEED)
    x = rng.integers(info.min, info.max, (2, 29, 21), dtype, endpoint=True)
    attrs = dict(kernel=(3,), strides=(2,), pads=(1, 0), dilations=(1,), layout="NHWC")
    agree(cpus, isa, *node_graph(op, [x], attrs, (), [X], out_quants=(X,)))
