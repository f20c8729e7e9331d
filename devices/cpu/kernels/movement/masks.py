"""one_hot and trilu: choices by a comparison of places, as expressions over constants of places."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.codegen.scalars import SCALARS
from trireme.devices.cpu.kernels.f32.elementwise import Term, expression_kernel, plan_walk
from trireme.devices.cpu.kernels.lowering import TABLE, At, Context, Operand, Rule, Step
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import INTS, itemsize, numpy_dtype

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
    code, chunks, seconds = context.kernel(expression_kernel, name, tuple(terms), walk, dtypes)
    reads = tuple(operand for operand, _, _ in operands)
    return Step(code, reads, node.outputs, chunks, seconds=seconds, nodes=(node.id,))


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


def _lower_trilu(context: Context, node: Node) -> list[Step]:
    """y = x where the column less the row is at least (or at most) k, else 0."""
    x, diagonal = context.type(node.used[0]), diagonal_of(context.graph, node)
    rows, columns = x.dims[-2:]
    apart = np.arange(columns) - np.arange(rows)[:, None]
    mask = apart >= diagonal if node.attrs["upper"] else apart <= diagonal
    terms = [Term("where", {}, (~0, ~1, ~2), x.dtype, x.dtype)]
    operands: list[tuple[Operand, str, Sequence[int]]] = [
        (mask, "bool", (rows, columns)),
        (context.operand(node.used[0]), x.dtype, x.dims),
        (np.zeros(1, numpy_dtype(x.dtype)), x.dtype, ()),
    ]
    return [_step(context, node, terms, x.dims, operands)]


def diagonal_of(graph: Graph, node: Node) -> int:
    """Return by how much the columns of a trilu's diagonal exceed its rows."""
    k = graph.values[node.used[1]].data if len(node.used) > 1 else None
    return 0 if k is None else int(k.reshape(()))


def trilu_reason(graph: Graph, node: Node) -> str | None:
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
TABLE.add("trilu", Rule(trilu_reason, _lower_trilu), SCALARS)
