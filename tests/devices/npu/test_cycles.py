"""The cycle formulas against published figures (see docs/explanation/npu.md)."""

from math import ceil

import numpy as np
import pytest
from npu import Int8Builder, Run

from trireme.backend.registry import open_device
from trireme.devices.npu.simulator.cycles import conv_cycles, depthwise_cycles, systolic_cycles
from trireme.devices.npu.spec import load_spec
from trireme.devices.npu.stream.commands import Matrix, Window

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


RESNET18 = [
    (224, 7, 3, 64, 2),
    *[(56, 3, 64, 64, 1)] * 4,
    (56, 3, 64, 128, 2),
    (28, 3, 128, 128, 1),
    (56, 1, 64, 128, 2),
    *[(28, 3, 128, 128, 1)] * 2,
    (28, 3, 128, 256, 2),
    (14, 3, 256, 256, 1),
    (28, 1, 128, 256, 2),
    *[(14, 3, 256, 256, 1)] * 2,
    (14, 3, 256, 512, 2),
    (7, 3, 512, 512, 1),
    (14, 1, 256, 512, 2),
    *[(7, 3, 512, 512, 1)] * 2,
    (1, 1, 512, 1000, 1),
]
"""(side, kernel, channels, filters, stride) of ResNet-18's layers, without padding."""
RESNET18_CYCLES = {
    16: (6359601, 7885563, 8539239),
    32: (1718353, 2519815, 2838997),
    64: (547249, 910115, 1165349),
}


@pytest.mark.parametrize("side", RESNET18_CYCLES)
def test_resnet18_is_scale_sims_sum(side):
    totals = []
    for flow in ("os", "ws", "is"):
        products = [(ceil((h - k + s) / s) ** 2, n, k * k * c) for h, k, c, n, s in RESNET18]
        totals.append(sum(systolic_cycles(flow, side, side, *product) for product in products))
    assert tuple(totals) == RESNET18_CYCLES[side]


def test_a_stream_takes_the_formulas_cycles():
    """A GEMM of SCALE-Sim's table: each command takes its tile's cycles, all overlap with DMA."""
    builder = Int8Builder(np.random.default_rng(1))
    x = builder.feed(256, 256)
    y = builder.op("fully_connected", x, builder.weights(128, 256), builder.bias(128))
    device = open_device("npu", spec="systolic_32x32")
    run = Run(device, builder.finish(y), builder.feeds)
    commands = [c.work for c in run.executable.task.commands if isinstance(c.work, Matrix)]
    tiles = [(w.ofm.shape[2], w.ofm.shape[3], w.ifm.shape[3]) for w in commands]
    expected = sum(systolic_cycles("os", 32, 32, *tile) for tile in tiles)
    assert sum(span.detail["matrix_cycles"] for span in run.spans) == expected
    assert 10175 - len(tiles) < expected <= 1.2 * 10175
    traffic = (256 * 256 + 256 * 128 + 256 * 128) / 10
    assert traffic < run.executable.timeline.cycles < 1.5 * traffic
    device.close()
