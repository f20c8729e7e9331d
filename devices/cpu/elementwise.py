"""Elementwise kernels: one op, or a chain fused into one pass over memory, with broadcasting.

An expression is a list of calls in order; each reads operands (arrays from memory) or results of
earlier calls, and the last result is stored. Broadcasting is a matter of strides: dimensions that
all operands walk alike are merged, the innermost is done in vectors, the others give rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trireme.devices.cpu.codegen.ir import Function, Index, Value, vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.expressions import ACTIVATIONS, COSTS, EXPRESSIONS, INSIDE
from trireme.devices.cpu.kernels import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    begin,
    deal,
    finish,
    float_reason,
)
from trireme.devices.cpu.recipes import Code
from trireme.graph import Graph, Node


@dataclass(frozen=True)
class Term:
    """One call of an expression; arguments below zero are operands (~0, ~1, ...)."""

    op: str
    attrs: Mapping[str, Any]
    arguments: tuple[int, ...]


def term_attrs(node: Node) -> Mapping[str, Any]:
    """Return a node's attributes, with what the presence of its inputs says."""
    if node.op != "clip":
        return node.attrs
    given = [i is not None for i in node.inputs] + [False, False]
    return {**node.attrs, "_has_low": given[1], "_has_high": given[2]}


@dataclass(frozen=True)
class Walk:
    """How an expression walks its arrays: merged dimensions, and each operand's strides in them."""

    dims: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def plan_walk(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> Walk:
    """Merge the dimensions of an output that all dense, broadcast operands walk alike."""
    columns = [_dense_strides(operand, shape) for operand in (*operands, shape)]
    dims: list[int] = []
    strides: list[list[int]] = [[] for _ in columns]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if dims and all(s[-1] == c[axis] * size for s, c in zip(strides, columns, strict=True)):
            dims[-1] *= size
            for s, c in zip(strides, columns, strict=True):
                s[-1] = c[axis]
            continue
        dims.append(size)
        for s, c in zip(strides, columns, strict=True):
            s.append(c[axis])
    if not dims:
        dims, strides = [1], [[0 if math.prod(o) == 1 else 1] for o in (*operands, shape)]
        strides[-1] = [1]
    return Walk(tuple(dims), tuple(tuple(s) for s in strides))


def _dense_strides(operand: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Strides of a dense operand along the output's axes, 0 where it is broadcast."""
    padded = [1] * (len(shape) - len(operand)) + list(operand)
    strides, step = [0] * len(shape), 1
    for axis in reversed(range(len(shape))):
        strides[axis] = step if padded[axis] != 1 else 0
        step *= padded[axis]
    return strides


def expression_kernel(
    isa: Isa, name: str, terms: Sequence[Term], walk: Walk
) -> tuple[Code, int, float]:
    """Return the kernel of an expression over a walk, its number of chunks and its seconds.

    Operands: the arrays read, then the array written
    """
    fn, pointers, chunk, _ = begin(name, isa, len(walk.strides))
    inner = walk.dims[-1]
    rows = math.prod(walk.dims[:-1])
    work = sum(COSTS.get(term.op, 2) for term in terms) + 2 * len(walk.strides)
    seconds = work * rows * -(-inner // isa.lanes) / 7e9
    if len(walk.dims) == 1:
        size, chunks = deal(-(-inner // isa.lanes), seconds)
        _flat(fn, pointers, chunk, terms, walk, (size * isa.lanes, chunks))
        return finish(fn), chunks, seconds
    size, chunks = deal(rows, seconds)
    first = chunk * size
    for row in fn.range(first, fn.minimum(first + size, rows)):
        bases = [fn.at(p, row_offset(fn, row, walk, k)) for k, p in enumerate(pointers)]
        _span(fn, bases, terms, walk, inner)
    return finish(fn), chunks, seconds


def row_offset(fn: Function, row: Index, walk: Walk, operand: int) -> Index:
    """The element offset at which an operand's part of a row begins."""
    offset: Index = 0
    rest = row
    for axis in reversed(range(len(walk.dims) - 1)):
        index = fn.integer("urem", rest, walk.dims[axis]) if axis else rest
        rest = fn.integer("udiv", rest, walk.dims[axis]) if axis else 0
        stride = walk.strides[operand][axis]
        if stride:
            offset = index * stride + offset
    return offset


def _flat(
    fn: Function, pointers: Sequence[Value], chunk: Value, terms: Sequence[Term], walk: Walk,
    cut: tuple[int, int],
) -> None:  # fmt: skip
    """Emit a walk of one dimension, cut into chunks of whole vectors; the last has the tail."""
    size, chunks = cut
    inner, lanes = walk.dims[-1], fn.isa.lanes
    first = chunk * size if chunks > 1 else 0
    whole = inner // lanes * lanes
    bases = pointers if chunks == 1 else [
        fn.at(p, chunk * (size * walk.strides[k][-1])) for k, p in enumerate(pointers)
    ]  # fmt: skip
    high: Index = whole if chunks == 1 else fn.minimum(size, whole - first)
    for i in fn.range(0, high, lanes):
        _vector(fn, bases, terms, walk, i, lanes)
    if whole < inner:
        if chunks == 1:
            _vector(fn, bases, terms, walk, whole, inner - whole)
        else:
            with fn.when(fn.compare("eq", chunk, chunks - 1)):
                _vector(fn, pointers, terms, walk, whole, inner - whole)


def _span(
    fn: Function, bases: Sequence[Value], terms: Sequence[Term], walk: Walk, count: int
) -> None:
    lanes = fn.isa.lanes
    whole = count // lanes * lanes
    for i in fn.range(0, whole, lanes):
        _vector(fn, bases, terms, walk, i, lanes)
    if whole < count:
        _vector(fn, bases, terms, walk, whole, count - whole)


def _vector(
    fn: Function, bases: Sequence[Value], terms: Sequence[Term], walk: Walk, at: Index, count: int
) -> None:
    """Emit the expression for `count` elements, at most one vector, from element `at`."""
    lanes = fn.isa.lanes
    type = vector(lanes, "float")
    operands = []
    for base, strides in zip(bases[:-1], walk.strides, strict=False):
        if strides[-1]:
            operands.append(fn.load_some(type, fn.at(base, at), count))
        else:
            operands.append(fn.splat(fn.load("float", base), lanes))
    results: list[Value] = []
    for term in terms:
        arguments = [operands[~a] if a < 0 else results[a] for a in term.arguments]
        emit = EXPRESSIONS.get(term.op) or INSIDE[term.op]
        results.append(emit(fn, term.attrs, *arguments))
    fn.store_some(results[-1], fn.at(bases[-1], at), count)


def expression_step(
    context: Context, name: str, terms: Sequence[Term], inputs: Sequence[int], output: int,
    nodes: tuple[int, ...],
) -> Step:  # fmt: skip
    """Return the step that computes an expression of values of the graph."""
    type = context.type(output)
    walk = plan_walk(type.dims, [context.type(i).dims for i in inputs])
    code, chunks, seconds = context.kernel(expression_kernel, name, tuple(terms), walk)
    reads: tuple[Operand, ...] = tuple(context.operand(i) for i in inputs)
    return Step(code, reads, (output,), chunks, seconds=seconds, nodes=nodes)


def activation_step(context: Context, activation: str, value: int, node: int) -> Step:
    """Return the step that applies an activation to a value where it lies."""
    terms = [Term("_activation", {"activation": activation}, (-1,))]
    return expression_step(context, f"{activation}_f32", terms, (value,), value, (node,))


def node_term(node: Node) -> Term:
    """Return a node alone as a term over its inputs."""
    return Term(node.op, term_attrs(node), tuple(~k for k in range(len(node.used))))


def _lower(context: Context, node: Node) -> Sequence[Step]:
    terms = [node_term(node)]
    name = f"{node.op}_f32"
    return [expression_step(context, name, terms, node.used, node.outputs[0], (node.id,))]


def _reason(graph: Graph, node: Node) -> str | None:
    activation = str(node.attrs.get("activation") or "")
    if activation not in ACTIVATIONS:
        return f"{node.op} has no native kernel with activation {activation}"
    return float_reason(graph, node)


TABLE.add(EXPRESSIONS, Rule(_reason, _lower), ["float32"])
