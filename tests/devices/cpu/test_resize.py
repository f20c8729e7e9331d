"""resize on the cpu device: stored integers bit for bit, every dtype, one channel, odd scales."""

import numpy as np
import pytest
from cpu_run import agree, node_graph

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.graph import Quant

SEED = 12
by_isa = pytest.mark.parametrize("isa", available_isas(variants=False))
ONE = Quant((0.05,), (3,))


def graph_of(rng, shape, size, dtype, mode, how, axes=(1, 2), quant=None, **attrs):
    if np.dtype(dtype).kind == "f":
        x = rng.standard_normal(shape).astype(dtype)
        x.flat[:: max(x.size // 4, 1)] = (np.nan, np.inf, -np.inf, -0.0, 1, 1)[
            : -(-x.size // max(x.size // 4, 1))
        ]
    elif np.dtype(dtype).kind == "b":
        x = rng.integers(0, 2, shape).astype(dtype)
    else:
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    attrs = {"mode": mode, "coordinate_transformation_mode": how, "axes": axes, **attrs}
    inputs = [x, None, None, np.array(size, np.int64)]
    quants = (quant,) if quant else ()
    return node_graph("resize", inputs, attrs, {3}, quants, out_quants=quants)


@by_isa
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("how", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize(
    "shape, size",
    [
        ((1, 5, 7, 21), (33, 40)),
        ((2, 9, 8, 1), (4, 3)),
        ((1, 1, 1, 70), (6, 5)),
        ((1, 13, 11, 16), (13, 30)),
        ((3, 6, 5, 3), (1, 1)),
    ],
)
def test_linear_on_stored_integers(cpus, dtype, how, shape, size, isa):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    agree(cpus, isa, *graph_of(rng, shape, size, dtype, "linear", how, quant=ONE))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "float16", "bool"])
@pytest.mark.parametrize("quant", [None, ONE])
def test_nearest_copies_any_dtype(cpus, dtype, quant):
    if quant and dtype not in ("int8", "uint8"):
        return
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    for shape, size, axes in (
        ((2, 5, 7, 3), (11, 4), (1, 2)),
        ((1, 3, 6, 5), (13, 10), (2, 3)),
        ((4, 9), (20,), (1,)),
    ):
        graph = graph_of(rng, shape, size, dtype, "nearest", "asymmetric", axes, quant)
        agree(cpus, available_isas()[0], *graph)


@by_isa
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("shape", [(2, 5, 7, 1), (1, 6, 5, 3), (1, 4, 3, 19)])
def test_floats_of_few_channels(cpus, mode, shape, isa):
    rng = np.random.default_rng(SEED)
    graph, feeds = graph_of(rng, shape, (9, 12), "float32", mode, "half_pixel")
    if mode != "nearest":  # the reference adds an axis at a time: inf - inf in another place
        feeds[graph.inputs[0]] = rng.standard_normal(shape).astype(np.float32)
    agree(cpus, isa, graph, feeds)


def test_channels_first_is_resized_where_it_lies(cpus):
    rng = np.random.default_rng(SEED)
    graph, feeds = graph_of(rng, (2, 3, 5, 7), (10, 9), "float32", "linear", "half_pixel", (2, 3))
    feeds[graph.inputs[0]] = rng.standard_normal((2, 3, 5, 7)).astype(np.float32)
    agree(cpus, available_isas()[0], graph, feeds)
