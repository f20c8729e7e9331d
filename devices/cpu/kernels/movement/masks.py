"""one_hot, an expression that compares places; trilu, copies and zeros row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from trireme.devices.cpu.codegen.index import minus, times
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.scalars import SCALARS
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.copies import Copy, copy_row
from trireme.devices.cpu.kernels.f32.elementwise import (
    Term,
    expression_kernel,
    expression_work,
    plan_walk,
)
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    At,
    Context,
    Operand,
    Rule,
    Step,
    finish,
    in_every_shape,
)
from trireme.devices.cpu.kernels.spans import SpanCut, SpanWork, Wiring, begin_span, span_step
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import INTS, itemsize, numpy_dtype
from trireme.support.records import dataclass

_INDICES = tuple(dtype for dtype in SCALARS if dtype in INTS - {"uint64"})
"""The dtypes of one_hot, which compares int64: the greatest uint64 would be -1, the last place."""


def _step(
    context: Context,
    node: Node,
    terms: Sequence[Term],
    shape: Sequence[int],
    operands: Sequence[tuple[Operand, str, Sequence[int]]],
) -> Step:
    """Return the step of an expression; operands are given with their dtypes and shapes."""
    made = context.type(node.outputs[0]).dtype
    walk = plan_walk(shape, [dims for _, _, dims in operands])
    dtypes = (*(dtype for _, dtype, _ in operands), made)
    name = f"{node.op}_{SCALARS[made].short}"
    wiring = Wiring([operand for operand, _, _ in operands], node.outputs, (node.id,))
    work = partial(expression_work, context.isa, tuple(terms), dtypes)
    return span_step(
        context, wiring, lambda _: walk, work, expression_kernel, name, tuple(terms), dtypes
    )


def _lower_one_hot(context: Context, node: Node) -> list[Step]:
    """y [outer, depth, inner] = values[1] where an index is its place, or its place - depth."""
    indices, y = context.type(node.used[0]), context.type(node.outputs[0])
    axis = node.attrs["axis"] % len(y.dims)
    outer, depth, inner = math.prod(y.dims[:axis]), y.dims[axis], math.prod(y.dims[axis + 1 :])
    places = np.arange(depth, dtype=np.int64).reshape(depth, 1)
    data = context.graph.values[node.used[2]].data
    kept: list[Operand]
    if data is None:
        kept = [At(node.used[2], itemsize(y.dtype) * k) for k in (0, 1)]
    else:
        kept = [data.reshape(-1)[k : k + 1] for k in (0, 1)]
    x = context.operand(node.used[0])
    terms = [
        Term("cast", {"from": indices.dtype, "to": "int64"}, (~0,), indices.dtype, "int64"),
        Term("equal", {}, (0, ~1), "int64", "bool"),
        Term("equal", {}, (0, ~2), "int64", "bool"),
        Term("or", {}, (1, 2), "bool", "bool"),
        Term("where", {}, (3, ~4, ~3), y.dtype, y.dtype),
    ]
    operands: list[tuple[Operand, str, Sequence[int]]] = [
        (x, indices.dtype, (outer, 1, inner)),
        (places, "int64", (depth, 1)),
        (places - depth, "int64", (depth, 1)),
        (kept[0], y.dtype, ()),
        (kept[1], y.dtype, ()),
    ]
    return [_step(context, node, terms, (outer, depth, inner), operands)]


def _one_hot_reason(graph: Graph, node: Node) -> str | None:
    indices = graph.type(node.used[0])
    if indices.dtype not in _INDICES:
        return f"one_hot has no native kernel for indices of {indices.dtype}"
    return _made_reason(graph, node) or (None if indices.elements else _empty(node))


@dataclass(frozen=True)
class _Triangle:
    """The part of matrices that is kept: on and above (or below) a diagonal.

    matrices: how many there are
    """

    matrices: int
    rows: int
    columns: int
    item: int
    diagonal: int
    upper: bool


def _triangle_of(graph: Graph, node: Node) -> _Triangle:
    x = graph.type(node.used[0])
    *outer, rows, columns = x.dims
    item, upper = itemsize(x.dtype), bool(node.attrs["upper"])
    return _Triangle(math.prod(outer), rows, columns, item, _diagonal_of(graph, node), upper)


def _trilu_work(triangle: _Triangle) -> SpanWork:
    """Return the rows of all matrices, and their seconds."""
    rows = triangle.matrices * triangle.rows
    return SpanWork(rows, rows * (2e-9 + triangle.columns * triangle.item / 2e10))


def trilu_kernel(isa: Isa, triangle: _Triangle, cut: SpanCut) -> Code:
    """Return the kernel: a row is a copy and zeros, whose lengths follow from its number.

    Operands: x, a zero, y
    """
    fn, (x, zero, y), _, _, span = begin_span(f"trilu_b{8 * triangle.item}", isa, 3, cut)
    known, element = fn.known(triangle), f"i{8 * triangle.item}"
    moved, cleared = (Copy((1,), (step,), (1,), known.item) for step in (1, 0))
    for row in fn.range(*span):
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


def _lower_trilu(context: Context, node: Node) -> list[Step]:
    zero = np.zeros(1, numpy_dtype(context.type(node.used[0]).dtype))
    wiring = Wiring((context.operand(node.used[0]), zero), node.outputs, (node.id,))
    plan_of = partial(_triangle_of, node=node)
    return [span_step(context, wiring, plan_of, _trilu_work, trilu_kernel)]


def _diagonal_of(graph: Graph, node: Node) -> int:
    """Return by how much the columns of a trilu's diagonal exceed its rows."""
    k = graph.values[node.used[1]].data if len(node.used) > 1 else None
    return 0 if k is None else int(k.reshape(()))


def _trilu_reason(graph: Graph, node: Node) -> str | None:
    """Say why a trilu has no native kernel, None when it has."""
    if len(node.used) > 1 and not graph.values[node.used[1]].is_constant:
        return "trilu has native kernels for a constant diagonal only"
    return _made_reason(graph, node)


def _made_reason(graph: Graph, node: Node) -> str | None:
    y = graph.type(node.outputs[0])
    if y.dtype not in SCALARS:
        return f"{node.op} has no native kernel for {y.dtype}"
    return None if y.elements else _empty(node)


def _empty(node: Node) -> str:
    return f"{node.op} has no native kernel for empty tensors"


TABLE.add("one_hot", Rule(_one_hot_reason, _lower_one_hot), _INDICES)
TABLE.add("trilu", Rule(_trilu_reason, _lower_trilu, in_every_shape), SCALARS)
