"""arg_max, arg_min, top_k, running sums, one_hot, trilu and reverse on the cpu device: every kind
of element, ties, NaN, long and short rows along every axis.
"""

import numpy as np
import pytest
from cpu_run import agree, node_graph

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas

SEED = 20261125
BEST = available_isas()[0]
by_isa = pytest.mark.parametrize("isa", available_isas(variants=False))
SHAPES = (((3, 77), -1), ((5, 41, 3), 1), ((19, 2, 37), 0), ((4, 1), 1))
DTYPES = ("float32", "float16", "float64", "int8", "uint8", "int64", "bool")


def draw(rng, shape, dtype):
    """Few different numbers, so that there are ties; of floats also NaN, infinities and -0."""
    x = rng.integers(0, 6, shape)
    if not dtype.startswith("float"):
        return x.astype(dtype)
    return np.array([0.0, -0.0, 2.5, -1.25, 3.0, -7.0], dtype)[x]


def with_edges(rng, x):
    if x.dtype.kind == "f":
        x = x.copy()
        x.reshape(-1)[rng.integers(0, x.size, 4)] = np.nan, np.inf, -np.inf, np.nan
    return x


@by_isa
def test_arg(cpus, isa):
    rng = np.random.default_rng(SEED)
    for shape, axis in SHAPES:
        for op, last, dtype in (("arg_max", 0, "float32"), ("arg_min", 1, "int64")):
            attrs = {"axis": axis, "select_last_index": last, "keepdims": last}
            x = with_edges(rng, draw(rng, shape, dtype))
            agree(cpus, isa, *node_graph(op, [x], attrs))


@pytest.mark.parametrize("dtype", DTYPES)
def test_arg_of_every_kind_of_element(cpus, dtype):
    rng = np.random.default_rng(SEED)
    for shape, axis in SHAPES[:2]:
        for op in ("arg_max", "arg_min"):
            x = with_edges(rng, draw(rng, shape, dtype))
            for last in (0, 1):
                attrs = {"axis": axis, "select_last_index": last, "keepdims": 0}
                agree(cpus, BEST, *node_graph(op, [x], attrs))


def top_k(cpus, isa, x, k, **attrs):
    count = np.array([k], np.int64)
    agree(cpus, isa, *node_graph("top_k", [x, count], attrs, {1}, outputs=2), rtol=0)


@by_isa
def test_top_k_of_few_and_of_many(cpus, isa):
    rng = np.random.default_rng(SEED)
    x = with_edges(rng, rng.standard_normal((3, 500, 2)).astype(np.float32))
    for k in (1, 5, 33, 500):
        top_k(cpus, isa, x, k, axis=1)


@pytest.mark.parametrize("dtype", DTYPES[:-1])
def test_top_k_of_every_kind_of_element(cpus, dtype):
    rng = np.random.default_rng(SEED)
    x = with_edges(rng, draw(rng, (3, 50), dtype))
    x[0, :2] = (0, 1) if dtype == "bool" else (127, 0)
    for k in (4, 40):
        for largest in (0, 1):
            top_k(cpus, BEST, x, k, axis=-1, largest=largest)


@by_isa
def test_top_k_of_rows_that_fill_the_list_again_and_again(cpus, isa):
    """Rising rows, where each element is among the best so far; falling, equal and mixed ones."""
    rng = np.random.default_rng(SEED)
    rising = np.arange(1031, dtype=np.float32)
    few = draw(rng, 1031, "float32")
    mixed = with_edges(rng, rng.standard_normal(1031).astype(np.float32))
    mostly_nan = np.where(few > 0, np.float32(np.nan), few)
    x = np.stack([rising, -rising, few, mixed, np.zeros_like(few), mostly_nan])
    for k in (1, 17, 100, 1031):
        for largest in (0, 1):
            top_k(cpus, isa, x, k, axis=-1, largest=largest)


@by_isa
@pytest.mark.parametrize("op", ["cum_sum", "cum_prod"])
def test_running(cpus, isa, op):
    rng = np.random.default_rng(SEED)
    for shape, axis in SHAPES:
        for dtype, exclusive, reverse in (("float32", 0, 1), ("int8", 1, 0), ("int64", 1, 1)):
            x = rng.integers(1, 4, shape).astype(dtype)
            x = x / np.float32(2.5) if dtype == "float32" else x
            attrs = {"exclusive": exclusive, "reverse": reverse}
            inputs = [x, np.array(axis, np.int64)]
            agree(cpus, isa, *node_graph(op, inputs, attrs, {1}), rtol=0)


@by_isa
def test_one_hot(cpus, isa):
    """Indices from the front, from the back and outside; values known and not."""
    rng = np.random.default_rng(SEED)
    for index, constants in (("int64", {1, 2}), ("int32", {1})):
        for axis in (-1, 0, 1):
            indices = rng.integers(-30, 30, (4, 7)).astype(index)
            values = np.array([-1.5, 2.5], np.float32)
            inputs = [indices, np.array(21, np.int64), values]
            agree(cpus, isa, *node_graph("one_hot", inputs, {"axis": axis}, constants), rtol=0)


def test_the_greatest_unsigned_index_is_no_place_from_the_back(cpus):
    indices = np.array([3, (1 << 64) - 1], np.uint64)
    inputs = [indices, np.array(4, np.int64), np.array([-1.5, 2.5], np.float32)]
    graph, feeds = node_graph("one_hot", inputs, {"axis": -1}, {1, 2})
    agree(cpus, BEST, graph, feeds, rtol=0, native=False)
    agree(cpus, BEST, *node_graph("one_hot", [indices.astype(np.uint32), *inputs[1:]], {}, {1, 2}))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_trilu_and_reverse(cpus, dtype):
    rng = np.random.default_rng(SEED)
    x = draw(rng, (2, 9, 21), dtype)
    for upper, k in ((0, 0), (1, -3), (0, 40)):
        inputs = [x, np.array(k, np.int64)]
        agree(cpus, BEST, *node_graph("trilu", inputs, {"upper": upper}, {1}), rtol=0)
    for axes in ((0,), (1, -1), (-1,)):
        agree(cpus, BEST, *node_graph("reverse", [x], {"axes": axes}), rtol=0)
