"""Kernels for every shape: one compile, many shapes, the bits of the kernels of each shape.

Each case is a graph with symbols. It is compiled once for all shapes; at shapes that are drawn and
at small ones it gives the results of the reference, and the bits of the program of that shape.
"""

import random
import zlib

import numpy as np
import pytest
from cpu_run import assert_close, run

import trireme.ops  # noqa: F401
from trireme.backend.capabilities import PolymorphicDevice
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.support.errors import CompileError

ISAS = available_isas(variants=False)
SHAPES = 4
"""Drawn shapes of each case, beside that of ones."""


class Case:
    """A graph under construction, with weights that its name decides."""

    def __init__(self, name):
        print("seed", name)
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.builder = GraphBuilder(name)

    def input(self, name, *shape, dtype="float32"):
        return self.builder.input(name, TensorType(shape, dtype))

    def weight(self, *shape):
        data = self.rng.standard_normal(shape).astype(np.float32) / max(shape[-1], 1) ** 0.5
        return self.builder.constant(f"w{len(self.builder.values)}", data)

    def add(self, op, *inputs, **attrs):
        return self.builder.add(op, *inputs, **attrs)


def dense(c, x, columns, depth, **attrs):
    return c.add("fully_connected", x, c.weight(columns, depth), c.weight(columns), **attrs)


def flat_chain(c):
    x, y = c.input("x", "b", "s", 37), c.input("y", "b", "s", 37)
    return [c.add("mul", c.add("tanh", c.add("add", x, y)), x)]


def broadcast_bias(c):
    x = c.input("x", "b", "s", 37)
    return [c.add("relu", c.add("add", x, c.weight(37)))]


def broadcast_rows(c):
    x, y = c.input("x", "b", "s", "t"), c.input("y", "b", 1, "t")
    return [c.add("add", x, y), c.add("mul", x, c.input("z", "s", 1))]


def broadcast_scalar(c):
    return [c.add("mul", c.input("x", "b", 3, "s"), c.weight(1))]


def compare_and_choose(c):
    x, y = c.input("x", "b", "s"), c.input("y", "s")
    return [c.add("where", c.add("greater", x, y), x, y)]


def integers(c):
    x, y = (c.input(n, "b", "s", dtype="int64") for n in "xy")
    return [c.add("cast", c.add("mul", c.add("add", x, y), y), to="int8")]


def many_operands(c):
    return [c.add("max", *(c.input(f"x{k}", "b", "s") for k in range(11)))]


def layer(c):
    return [dense(c, c.input("x", "b", "s", 40), 70, 40)]


def gelu_layer(c):
    x = c.input("x", "b", "s", 64)
    return [dense(c, x, 96, 64, activation="gelu")]


def deep_layer(c):
    return [dense(c, c.input("x", "b", 3000), 24, 3000, activation="relu")]


def wide_layer(c):
    return [dense(c, c.input("x", "b", "s", 8), 1000, 8)]


def residual_layer(c):
    x, r = c.input("x", "b", "s", 32), c.input("r", "b", "s", 17)
    return [c.add("fully_connected", x, c.weight(17, 32), c.weight(17), r)]


def products_of_constants(c):
    x = c.input("x", "b", "s", 20)
    y = c.add("matmul", x, c.weight(20, 33))
    return [y, c.add("gemm", c.input("g", "b", 5), c.weight(7, 5), c.weight(7), trans_b=1)]


def batched_products(c):
    x = c.input("x", "b", 3, "s", 16)
    scores = c.add("matmul", x, c.input("k", "b", 3, 16, "t"))
    return [c.add("matmul", scores, c.input("v", "b", 3, "t", 24))]


CASES = {
    f.__name__: f
    for f in (
        flat_chain,
        broadcast_bias,
        broadcast_rows,
        broadcast_scalar,
        compare_and_choose,
        integers,
        many_operands,
        layer,
        gelu_layer,
        deep_layer,
        wide_layer,
        residual_layer,
        products_of_constants,
        batched_products,
    )
}
MOST = {"b": 5, "s": 70, "t": 90}
"""The largest drawn size of each symbol."""


def made(name):
    case = Case(name)
    outputs = CASES[name](case)
    return case, case.builder.finish(*outputs)


def drawn_shapes(graph, name):
    """Yield sizes of the symbols: all 1, then drawn ones."""
    draw = random.Random(name)
    symbols = {dim for value in graph.input_values() for dim in value.shape if type(dim) is str}
    yield dict.fromkeys(symbols, 1)
    for _ in range(SHAPES):
        yield {symbol: draw.randint(1, MOST[symbol]) for symbol in sorted(symbols)}


def bound(graph, sizes):
    """The graph of one shape."""
    shapes = {v.name: [sizes.get(dim, dim) for dim in v.shape] for v in graph.input_values()}
    return bind_shapes(graph, shapes)


def fed(graph, rng):
    feeds = {}
    for value in graph.input_values():
        data = rng.standard_normal(value.type.dims) * (9 if value.dtype != "float32" else 1)
        feeds[value.id] = data.astype(value.dtype)
    return feeds


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_one_compile_serves_every_shape(cpus, name, isa):
    case, graph = made(name)
    device = cpus[isa, 1]
    assert isinstance(device, PolymorphicDevice)
    reasons = [device.polymorphic_reason(graph, node) for node in graph.nodes]
    assert not any(reasons), reasons
    compiled = [cpus[isa, threads].compile_polymorphic([graph])[0] for threads in (1, 2)]
    for sizes in drawn_shapes(graph, name):
        one = bound(graph, sizes)
        feeds = fed(one, case.rng)
        want = list(interpret(one, feeds).values())
        special, _, _ = run(device, one, feeds)
        for threads, every in zip((1, 2), compiled, strict=True):
            got, kernels, _ = run(cpus[isa, threads], one, feeds, executable=every.at(one))
            assert all("sized" in kernel or kernel == "alias" for kernel in kernels.values())
            for g, w, s in zip(got, want, special, strict=True):
                assert_close(g, w, 1e-5, f"{isa} {sizes} {kernels}")
                assert g.tobytes() == s.tobytes(), f"{name} {sizes}: not the bits of its own kernel"


def test_a_shape_that_breaks_an_assumption_is_refused(cpus):
    builder = GraphBuilder("unequal")
    x = builder.input("x", TensorType(("b", "s"), "float32"))
    graph = builder.finish(builder.add("relu", x))
    every = cpus[ISAS[0], 1].compile_polymorphic([graph])[0]
    with pytest.raises(CompileError, match="empty"):
        every.at(bind_shapes(graph, {"x": (0, 3)}))
