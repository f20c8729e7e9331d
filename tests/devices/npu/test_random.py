"""Random quantised graphs on random machines: the reference's bits, every intermediate too."""

import numpy as np
import pytest
from npu import Run, feeds_of, supported_part
from random_graphs import random_graph

from trireme.backend.registry import open_device
from trireme.devices.npu.spec import spec_names
from trireme.ir.interpreter import interpret

SRAM_SIZES = (1500, 3000, 8000, 40_000, 300_000)


@pytest.mark.parametrize("seed", range(40))
def test_random_graph_bit_for_bit(seed):
    rng = np.random.default_rng(seed)
    name = str(rng.choice(spec_names()))
    device = open_device("npu", spec=name, sram_bytes=int(rng.choice(SRAM_SIZES)), trace=True)
    graph = supported_part(device, random_graph(seed, 12, quantised=True))
    feeds = feeds_of(graph, rng)
    want = {}
    interpret(graph, feeds, lambda node, made: want.update(zip(node.outputs, made, strict=True)))
    run = Run(device, graph, feeds)
    for value in graph.outputs:
        np.testing.assert_array_equal(run.outputs[value], want[value], f"seed {seed}")
    for value, array in want.items():
        np.testing.assert_array_equal(run.call.intermediate(value), array, f"seed {seed}")
    device.close()
