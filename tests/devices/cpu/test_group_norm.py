"""Instance and group normalisation on the cpu device: both layouts, blocks, far means, NaN."""

import numpy as np
import pytest
from cpu_run import agree, node_graph

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas

SEED = 12
by_isa = pytest.mark.parametrize("isa", available_isas(variants=False))

CASES = {  # x as NHWC, groups; 0 for an instance norm
    "channels": ((2, 5, 7, 19), 0),
    "one pixel": ((1, 1, 1, 5), 0),
    "one channel": ((2, 6, 5, 1), 0),
    "many blocks": ((1, 40, 48, 37), 0),
    "one group": ((1, 30, 30, 64), 1),
    "groups": ((2, 9, 8, 24), 4),
    "wide groups": ((1, 30, 31, 66), 3),
    "line": ((2, 97, 6), 2),
    "volume": ((1, 3, 4, 5, 8), 2),
    "matrix": ((3, 12), 4),
    "one long row": ((1, 50, 1000, 1), 1),
}


def graph_of(rng, shape, groups, layout, mean=3.0):
    x = (rng.standard_normal(shape) + mean).astype(np.float32)
    if layout == "NCHW":
        x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    scale, bias = rng.standard_normal((2, shape[-1])).astype(np.float32)
    attrs = {"layout": layout, "epsilon": 1e-3}
    if groups:
        return node_graph(
            "group_normalization", [x, scale, bias], {**attrs, "num_groups": groups}, {1, 2}
        )
    return node_graph("instance_normalization", [x, scale, bias], attrs, {1, 2})


@by_isa
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", CASES)
def test_norms(cpus, name, layout, isa):
    print("seed", SEED)
    agree(cpus, isa, *graph_of(np.random.default_rng(SEED), *CASES[name], layout))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("groups", [0, 2])
def test_a_mean_far_from_zero_costs_no_digits(cpus, layout, groups):
    rng = np.random.default_rng(SEED)
    graph, feeds = graph_of(rng, (1, 40, 40, 18), groups, layout, mean=3000.0)
    agree(cpus, available_isas()[0], graph, feeds, rtol=2e-4)  # x has 24 bits, 12 below 1


def test_not_a_number_stays_in_its_group(cpus):
    graph, feeds = graph_of(np.random.default_rng(SEED), (2, 9, 8, 24), 4, "NHWC")
    x = feeds[graph.inputs[0]]
    x[0, 1, 1, 0], x[1, 8, 7, 23] = np.nan, np.inf
    agree(cpus, available_isas()[0], graph, feeds)
