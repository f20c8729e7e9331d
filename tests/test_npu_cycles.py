"""The cycle formulas against published figures (see docs/npu.md)."""

import numpy as np
import pytest
from npu import Int8Builder, Run

from trireme.devices.npu import open_device
from trireme.devices.npu.cycles import conv_cycles, depthwise_cycles, systolic_cycles
from trireme.devices.npu.spec import load_spec
from trireme.devices.npu.stream import Window

SCALE_SIM = {
    (256, 128, 256): (10175, 11199, 14207),
    (49, 1024, 512): (36735, 73215, 35775),
    (9, 1, 9216): (9277, 29663, 27359),
    (49, 1024, 1024): (69503, 146431, 71551),
}
"""(M, N, K) -> compute cycles of a 32x32 array, output / weight / input stationary."""


@pytest.mark.parametrize("product", SCALE_SIM, ids=str)
def test_systolic_cycles_are_scale_sims(product):
    found = tuple(systolic_cycles(flow, 32, 32, *product) for flow in ("os", "ws", "is"))
    assert found == SCALE_SIM[product]


def test_alexnet_conv1_weight_stationary():
    assert systolic_cycles("ws", 32, 32, 55 * 55, 96, 11 * 11 * 3) == 112283


ETHOS_KWS = {
    "conv1": (15207, lambda u: conv_cycles(u, (1, 25, 5, 64), Window(10, 4, 2, 2), 1)),
    "depthwise": (4968, lambda u: depthwise_cycles(u, (1, 25, 5, 64), Window(3, 3))),
    "pointwise": (3960, lambda u: conv_cycles(u, (1, 25, 5, 64), Window(), 64)),
}


@pytest.mark.parametrize("name", ETHOS_KWS)
def test_ethos_ops_are_within_ten_percent_of_velas(name):
    published, ours = ETHOS_KWS[name]
    assert ours(load_spec("ethos_u55_256").matrix) == pytest.approx(published, rel=0.10)


def test_a_product_in_one_tile_takes_scale_sims_cycles():
    """The stream of a whole GEMM has one matrix command, of exactly the published cycles."""
    builder = Int8Builder(np.random.default_rng(1))
    x = builder.feed(256, 256)
    y = builder.op("fully_connected", x, builder.weights(128, 256), builder.bias(128))
    with_device = open_device("systolic_32x32")
    run = Run(with_device, builder.finish(y), builder.feeds)
    matrix = sum(span.detail["matrix_cycles"] for span in run.spans)
    tiles = run.executable.kernels[0].count("matrix x1")
    assert tiles == 0 or matrix == 10175
    assert matrix == pytest.approx(10175, rel=0.35)
    with_device.close()
