"""Float ops on int8 weights as integer kernels of the cpu device: the reference's very bits.

The graphs are what converters/tflite/dynamic_range.py makes.
"""

import dataclasses
import functools

import numpy as np
import pytest
from cpu_run import assert_close, run
from hybrid_graphs import Case, Hybrid, graph_of, numbers
from sweep import sweep

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.kernels.expressions import ACTIVATIONS
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.ir.quantization.dynamic_range import HybridProduct, find_hybrid

by_isa = pytest.mark.parametrize("isa", available_isas())


SAME = (1, 1, 1, 1)
CASES = [
    Case((1, 25, 5, 64), (64, 1, 1, 64)),
    Case((1, 49, 10, 1), (64, 10, 4, 1), strides=(2, 2), pads=(4, 1, 5, 1)),
    Case((1, 7, 5, 3), (17, 3, 3, 3), pads=SAME, activation="", bias=False),
    Case((2, 9, 11, 6), (8, 3, 3, 6), pads=SAME, asymmetric=True, by_channel=True),
    Case((3, 4, 5, 7), (33, 1, 1, 7), asymmetric=True, activation="relu6"),
    Case((1, 12, 13, 5), (20, 3, 2, 5), strides=(2, 3), dilations=(2, 1), pads=(1, 0, 2, 1)),
    Case((2, 6, 6, 8), (12, 3, 3, 4), groups=2, pads=SAME, asymmetric=True, activation="tanh"),
    Case((1, 70, 64, 16), (5, 3, 3, 16), pads=(2, 0, 1, 3)),
    Case((2, 61, 67, 13), (18, 1, 1, 13), asymmetric=True, by_channel=True, activation=""),
    Case((9, 16, 17, 19), (3, 2, 2, 19), by_channel=True),
    Case((1, 64), (10, 64), activation=""),
    Case((3, 12), (5, 12), asymmetric=True, activation=""),
    Case((1, 1), (1, 1), bias=False),
    Case((130, 37), (16, 37), by_channel=True, activation="gelu"),
    Case((2, 5, 500), (33, 500), asymmetric=True, by_channel=True),
    Case((1, 9, 11, 64), (64, 3, 3, 1), groups=64, pads=SAME),
    Case(
        (2, 8, 10, 96),
        (96, 3, 3, 1),
        groups=96,
        strides=(2, 2),
        pads=(0, 0, 1, 1),
        asymmetric=True,
        by_channel=True,
    ),
    Case((1, 12, 9, 24), (24, 5, 5, 1), groups=24, pads=(2, 2, 2, 2), asymmetric=True),
    Case((1, 11, 13, 67), (67, 3, 3, 1), groups=67, dilations=(2, 2), pads=(2, 2, 2, 2)),
    Case((1, 6, 1, 3), (3, 3, 1, 1), groups=3, pads=(1, 0, 1, 0), activation="", bias=False),
    Case((1, 37, 5, 16), (16, 2, 4, 1), groups=16, pads=(0, 3, 1, 0), by_channel=True),
]


def answer(graph, x):
    """The reference's output."""
    with np.errstate(all="ignore"):
        (want,) = interpret(graph, {graph.inputs[0]: x}).values()
    return want


@functools.cache
def plain(number):
    """(graph, input, output) of a case."""
    graph, x = graph_of(CASES[number]), numbers(CASES[number])
    return graph, x, answer(graph, x)


def check(device, graph, x, want, exact, at_end=True):
    """Run a graph that fuses to two kernels (or three); compare with the reference.

    Without VNNI it may stay in float, where Winograd's algorithm is faster and rounds.
    """
    (got,), kernels, _ = run(device, graph, {graph.inputs[0]: x}, at_end)
    names = set(kernels.values())
    if any("winograd" in name for name in names):
        assert not device.isa.vnni
        assert_close(got, want, 1e-5, str(graph))
        return got
    assert len(names) == 2 and any("levels" in name for name in names), names
    if exact:
        np.testing.assert_array_equal(got, want, err_msg=str(graph))
    else:
        assert_close(got, want, 3e-6, str(graph))
    return got


@by_isa
def test_bits_are_the_references(cpus, isa):
    for number, case in enumerate(CASES):
        exact = case.activation in ("", "relu", "relu6")
        one, two = (check(cpus[isa, n], *plain(number), exact, at_end=n == 1) for n in (1, 2))
        assert one.tobytes() == two.tobytes()


ODD = [0.0, -0.0, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-38, 1e-45]


@functools.cache
def with_odd(number, asymmetric):
    """A case's graph, with (input, output) for every odd number in it."""
    case = dataclasses.replace(CASES[number], asymmetric=asymmetric, activation="relu")
    graph, made = graph_of(case), []
    for odd in ODD:
        x = numbers(case)
        if abs(odd) < 1:
            x[:1] = odd
        x.reshape(-1)[x.size // 3] = odd
        made.append((x, answer(graph, x)))
    return graph, made


@by_isa
@pytest.mark.parametrize("number", sweep([1, 3, 7, 11, 13, 16], always=[1, 3, 11]))
@pytest.mark.parametrize("asymmetric", [False, True])
def test_odd_numbers(cpus, isa, number, asymmetric):
    """Always in windows, in a batch of them and in rows; at times in many chunks and depthwise."""
    graph, runs = with_odd(number, asymmetric)
    for x, want in runs:
        check(cpus[isa, 2], graph, x, want, exact=True)


@by_isa
def test_products_that_share_levels(cpus, isa):
    """Projections of one input, with one scale too, and windows that want different borders."""
    made = Hybrid()
    x = made.b.input("x", TensorType((5, 40), "float32"))
    levels, step = made.levels(x, [-1], asymmetric=True)
    cases = [Case((5, 40), (n, 40), by_channel=True) for n in (7, 16, 33)]
    scale = made.scale(Case((5, 40), (7, 40)), step)
    outputs = [made.product(case, levels, step) for case in cases]
    outputs += [made.product(cases[0], levels, step, scale) for _ in range(2)]
    graphs = [made.b.finish(*outputs)]
    made = Hybrid()
    x = made.b.input("x", TensorType((2, 9, 8, 12), "float32"))
    levels, step = made.levels(x, [1, 2, 3], asymmetric=True)
    cases = [Case((2, 9, 8, 12), (20, 1, 1, 12)), Case((2, 9, 8, 12), (9, 3, 2, 12), pads=SAME)]
    graphs.append(made.b.finish(*[made.product(case, levels, step) for case in cases]))
    for graph in graphs:
        (value,) = graph.inputs
        feeds = {
            value: np.random.default_rng(1).standard_normal(graph.type(value).dims, np.float32)
        }
        want = interpret(graph, feeds)
        got, _, _ = run(cpus[isa, 2], graph, feeds)
        assert sum(
            isinstance(one, HybridProduct) for one in find_hybrid(graph, ACTIVATIONS)
        ) == len(got)
        for found, expected in zip(got, want.values(), strict=True):
            np.testing.assert_array_equal(found, expected)


def changed(change):
    """A hybrid product with one thing that its kernels could not do."""
    case = Case((2, 6), (6, 6), activation="")
    made = Hybrid()
    x = made.b.input("x", TensorType(case.x, "float32"))
    levels, step = made.levels(x, [0] if change == "axes" else [-1], asymmetric=False)
    if change == "weights":
        w = made.b.constant("w", np.full(case.w, 0.5, np.float32))
        product = made.b.add("fully_connected", levels, w)
        return made.b.finish(made.b.add("mul", product, step))
    y = made.product(case, levels, step)
    more = {"levels are read": levels, "the step is read": step}.get(change)
    return made.b.finish(y) if more is None else made.b.finish(y, made.b.add("neg", more))


@pytest.mark.parametrize("change", ["axes", "weights", "levels are read", "the step is read"])
def test_what_must_not_fuse(cpus, change):
    graph = changed(change)
    assert not find_hybrid(graph, ACTIVATIONS)
    feeds = {graph.inputs[0]: np.random.default_rng(2).standard_normal((2, 6)).astype(np.float32)}
    want = interpret(graph, feeds)
    got, _, _ = run(cpus[available_isas()[0], 1], graph, feeds)
    for found, expected in zip(got, want.values(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
