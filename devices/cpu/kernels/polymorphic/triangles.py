"""trilu for every shape: each row is a copy and zeros, whose lengths follow from its number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trireme.devices.cpu.codegen.index import minus, times
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.scalars import SCALARS
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import Copy, copy_row
from trireme.devices.cpu.kernels.lowering import Context, finish
from trireme.devices.cpu.kernels.movement.masks import diagonal_of, trilu_reason
from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly, generalised
from trireme.devices.cpu.kernels.polymorphic.step import (
    POLYMORPHIC,
    PolymorphicRule,
    PolymorphicStep,
    Sized,
    begin_sized,
    dims_of,
)
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import itemsize, numpy_dtype


@dataclass(frozen=True)
class Triangle:
    """The part of matrices that is kept: on and above (or below) a diagonal."""

    rows: int
    columns: int
    item: int
    diagonal: int
    upper: bool


def sized_trilu_kernel(isa: Isa, triangle: Triangle, words: int) -> Code:
    """Return the kernel; the last words are a chunk's rows, and all. Operands: x, a zero, y."""
    fn, (x, zero, y), chunk, _ = begin_sized(f"trilu_b{8 * triangle.item}", isa, 3, words + 2)
    size, rows = fn.words[words:]
    known, element = fn.known(triangle), f"i{8 * triangle.item}"
    moved, cleared = (Copy((1,), (step,), (1,), known.item) for step in (1, 0))
    first = chunk * size
    for row in fn.range(first, fn.minimum(first + size, rows)):
        number = fn.as_value("i64", fn.integer("urem", row, known.rows))
        edge = number + (known.diagonal + (not known.upper))
        edge = fn.as_value("i64", fn.minimum(fn.maximum(edge, 0), known.columns))
        base = times(fn, row, known.columns)
        at, to = fn.at(x, base, element), fn.at(y, base, element)
        for is_before in (True, False):
            count = edge if is_before else fn.as_value("i64", minus(fn, known.columns, edge))
            target = to if is_before else fn.at(to, edge, element)
            if is_before == known.upper:
                copy_row(fn, cleared, zero, target, element, count)
            else:
                source = at if is_before else fn.at(at, edge, element)
                copy_row(fn, moved, source, target, element, count)
    return finish(fn)


def _triangle(graph: Graph, node: Node) -> Triangle:
    x = graph.type(node.used[0])
    rows, columns = x.dims[-2:]
    upper = bool(node.attrs["upper"])
    return Triangle(rows, columns, itemsize(x.dtype), diagonal_of(graph, node), upper)


def _lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    known, count, words = generalised(_triangle(context.graph, node), node.label)
    code = context.kernel(sized_trilu_kernel, known, count)

    def size(graph: Graph) -> Sized:
        dims, triangle = dims_of(graph, node.outputs[0]), _triangle(graph, node)
        rows = math.prod(dims[:-1])
        seconds = rows * (2e-9 + dims[-1] * triangle.item / 2e10)
        part, chunks = deal_evenly(rows, seconds)
        return Sized((*words(triangle), part, rows), chunks, seconds)

    zero = np.zeros(1, numpy_dtype(context.type(node.used[0]).dtype))
    reads = (context.operand(node.used[0]), zero)
    return [PolymorphicStep((code,), reads, node.outputs, size, (node.id,))]


POLYMORPHIC.add("trilu", PolymorphicRule(trilu_reason, _lower), SCALARS)
