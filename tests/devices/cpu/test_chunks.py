"""How steps are cut into chunks: all of the work once, evenly, and not at all where it is short."""

import re

import numpy as np
import pytest

from trireme.devices.cpu.codegen.target import choose_isa
from trireme.devices.cpu.compile.program import build
from trireme.devices.cpu.kernels.lowering import ALONE_S, deal
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType

TOTALS = (1, 2, 3, 5, 7, 25, 49, 112, 125, 1000, 50_176)
SECONDS = (0.0, 1e-6, ALONE_S, 3e-6, 1e-5, 1e-4, 1e-3, 1e-1)


@pytest.mark.parametrize("total", TOTALS)
@pytest.mark.parametrize("seconds", SECONDS)
def test_chunks_cover_the_work(total, seconds):
    size, chunks = deal(total, seconds)
    assert size * (chunks - 1) < total <= size * chunks


def test_short_work_is_not_cut():
    for total in TOTALS:
        assert deal(total, ALONE_S / 2)[1] == 1


@pytest.mark.parametrize("total", [t for t in TOTALS if t > 1])
@pytest.mark.parametrize("seconds", [s for s in SECONDS if s >= 3e-6])
def test_two_threads_share_evenly(total, seconds):
    """The first half of the chunks is not much more than half the work."""
    size, chunks = deal(total, seconds)
    mine = min(-(-chunks // 2) * size, total)
    assert mine <= total / 2 * 1.2 + 1


def test_chunks_are_long_enough():
    for total in TOTALS:
        for seconds in SECONDS:
            assert deal(total, seconds)[1] <= max(2, 1.5 * seconds / 1e-6)


def test_a_product_of_few_rows_is_cut_along_its_channels_alone():
    b = GraphBuilder("one row")
    x = b.input("x", TensorType((1, 4096), "int8", Quant((0.02,), (3,))))
    w = b.constant("w", np.ones((1000, 4096), np.int8), Quant((0.01,), (0,)))
    out = b.add_node("fully_connected", [x, w], {}, quants=[Quant((0.05,), (0,))])
    isa = choose_isa("auto")
    (step,) = (s for s in build(b.finish(*out), isa, 2).items if "gemm" in s.code.name)
    rows, vectors = map(int, re.search(r"_(\d+)x(\d+)__", step.code.name).groups())
    panels = -(-1000 // (vectors * isa.lanes))
    assert (rows, step.chunks) == (1, deal(panels, step.seconds)[1])
    assert step.chunks > 1
