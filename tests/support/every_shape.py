"""Graphs that are compiled once for every shape, and the shapes that they are run at."""

import random
import zlib

import numpy as np
from cpu_run import assert_close, run
from resized import check_words, resizable, run_tables

from trireme.devices.cpu.compile.program import REFERENCE
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.runtime.shapes.closed import ClosedGraph, why_not_closed
from trireme.support.errors import TriremeError

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
    if not why_not_closed(graph):
        check_one_table(cpus[isa, 2], case, graph, list(drawn_shapes(graph, graph.name)))


def check_without_elements(cpus, case, graph, isa):
    """Compare one compile for every shape with the references where a symbol is 0.

    A step may leave such a shape to a compile of its own.
    """
    (compiled,) = cpus[isa, 1].compile_polymorphic([graph])
    names = sorted({d for v in graph.input_values() for d in v.shape if type(d) is str})
    for empty in names:
        try:
            one = bound(graph, {name: 0 if name == empty else 3 for name in names})
            feeds = fed(one, case.rng)
            with np.errstate(all="ignore"):
                want = list(interpret(one, feeds).values())
            executable = compiled.at(one)
        except TriremeError:
            continue
        got, _, _ = run(cpus[isa, 1], one, feeds, executable=executable)
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, 1e-5, f"{graph.name}: {empty} is 0")


def check_one_table(device, case, graph, shapes):
    """See that shapes in any order have the words, chunks and bits of their own executables.

    shapes: sizes of the symbols by name
    """
    every, call, contents = resizable(device, graph)
    if call is None:
        return
    tables = {}
    call.resizer.recordings = 1000  # all at once
    for turn in random.Random(graph.name).choices(range(len(shapes)), k=3 * len(shapes)):
        one = bound(graph, shapes[turn])
        if turn not in tables:
            tables[turn] = call.tables(tuple(shapes[turn][symbol] for symbol in contents.names))
            check_words(every, call.resizer, tables[turn], one)
        feeds = fed(one, case.rng)
        wanted, _, _ = run(device, one, feeds, executable=every.at(one))
        found = run_tables(device, call, tables[turn], one, feeds)
        for array, want in zip(found, wanted, strict=True):
            assert array.tobytes() == want.tobytes(), f"{graph.name} {shapes[turn]}"
    draw, groups = random.Random(f"{graph.name} again"), call.resizer._groups
    for _ in range(12):
        sizes = {symbol: draw.randint(1, MOST[symbol]) for symbol in contents.names}
        made = call.tables(tuple(sizes[symbol] for symbol in contents.names))
        check_words(every, call.resizer, made, bound(graph, sizes))
    assert all(group.codes for group in groups if group.is_recorded), "nothing was recorded"
