"""Graphs that are compiled once for every shape, and the shapes that they are run at."""

import random
import zlib

import numpy as np
from cpu_run import assert_close, run

from trireme.devices.cpu.compile.program import REFERENCE
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.runtime.dynamic.closed import ClosedGraph

SHAPES = 4
"""Drawn shapes of each case, beside that of ones."""
MOST = {"b": 3, "s": 70, "t": 90, "h": 40, "w": 47}
"""The largest drawn size of each symbol."""


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


def drawn_shapes(graph, name):
    """Yield sizes of the symbols: all 1, then drawn ones."""
    draw = random.Random(name)
    symbols = {dim for value in graph.input_values() for dim in value.shape if type(dim) is str}
    yield dict.fromkeys(symbols, 1)
    for _ in range(SHAPES):
        yield {symbol: draw.randint(1, MOST[symbol]) for symbol in sorted(symbols)}


def bound(graph, sizes):
    """The graph of one shape."""
    shapes = [[sizes.get(dim, dim) for dim in v.shape] for v in graph.input_values()]
    return ClosedGraph(graph).at(shapes)


def fed(graph, rng):
    feeds = {}
    for value in graph.input_values():
        data = rng.standard_normal(value.type.dims) * (9 if value.dtype != "float32" else 1)
        data = np.abs(data).clip(max=29) if value.name == "i" else data  # indices
        if value.name[0] == "o":  # indices that every axis has
            data = -(data > 0).astype(np.int64)
        if value.name.startswith("len"):  # of sequences of one step or more
            data = data > 0
        feeds[value.id] = data.astype(value.dtype)
    return feeds


def check_every_shape(cpus, special, case, graph, isa):
    """Compare one compile for every shape with the references, and with the bits of `special`.

    special: the device that compiles each shape by itself
    """
    compiled = [cpus[isa, threads].compile_polymorphic([graph])[0] for threads in (1, 2)]
    for sizes in drawn_shapes(graph, graph.name):
        one = bound(graph, sizes)
        feeds = fed(one, case.rng)
        want = list(interpret(one, feeds).values())
        own, _, _ = run(special, one, feeds)
        for threads, every in zip((1, 2), compiled, strict=True):
            got, kernels, _ = run(cpus[isa, threads], one, feeds, executable=every.at(one))
            for kernel in kernels.values():
                assert "sized" in kernel or kernel in ("alias", "copy", REFERENCE), kernel
            for g, w, s in zip(got, want, own, strict=True):
                assert_close(g, w, 1e-5, f"{isa} {sizes} {kernels}")
                assert g.tobytes() == s.tobytes(), f"{graph.name} {sizes}: not its own bits"
