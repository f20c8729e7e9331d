"""Elementwise kernels: one op, or a chain fused into one pass over memory, with broadcasting.

An expression is a list of calls in order. Each reads operands (arrays from memory) or results of
earlier calls. The last result is stored. Broadcasting is a matter of strides: dimensions that all
operands walk alike are merged, the innermost is done in vectors, the others give rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from trireme.backend.kernel_table import STORED_8
from trireme.devices.cpu.codegen.index import minus, times
from trireme.devices.cpu.codegen.ir import Function, Index, Value
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.scalars import SCALARS, load, rounded, store
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.expressions import (
    ACTIVATIONS,
    EXPRESSIONS,
    KNOWN_POWERS,
    emitter,
    expression_cost,
)
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Rule,
    Step,
    dims_of,
    finish,
    in_every_shape,
)
from trireme.devices.cpu.kernels.spans import SpanCut, SpanWork, Wiring, begin_span, span_step
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.support.dtypes import FLOATS, INTS
from trireme.support.errors import CompileError, InternalError
from trireme.support.records import dataclass

MOST_INPUTS = 8
"""Arrays that one kernel reads; more would run out of address registers."""


@dataclass(frozen=True)
class Term:
    """One call of an expression; arguments below zero are operands (~0, ~1, ...).

    dtype: of what it is computed in, its first argument's (of a choice, what is chosen from)
    makes: the dtype of the result
    """

    op: str
    attrs: Mapping[str, Any]
    arguments: tuple[int, ...]
    dtype: str = "float32"
    makes: str = "float32"


def node_term(graph: Graph, node: Node, places: Mapping[int, int]) -> Term:
    """Return an elementwise node as a term; `places` says which argument each value is."""
    dtype, makes = computed_in(graph, node), graph.type(node.outputs[0]).dtype
    arguments = tuple(places[value] for value in term_inputs(graph, node))
    if node.op == "cast":
        return Term("cast", {"from": dtype, "to": makes}, arguments, dtype, makes)
    if node.op == "pow":
        known = known_power(graph, node)
        if known is not None:
            return Term("_power", {"exponent": known}, arguments, dtype, makes)
        attrs = {"exponent": graph.type(node.used[1]).dtype}
        return Term("pow", attrs, arguments, dtype, makes)
    return Term(node.op, term_attrs(node), arguments, dtype, makes)


def computed_in(graph: Graph, node: Node) -> str:
    """Return the dtype that decides how an elementwise node is computed."""
    return graph.type(node.used[get_op(node.op).main_input]).dtype


def known_power(graph: Graph, node: Node) -> float | None:
    """Return the constant exponent of a pow of floats, if it is one of a few."""
    data = graph.values[node.used[1]].data
    if data is None or data.size != 1 or graph.type(node.used[0]).dtype not in FLOATS:
        return None
    exponent = float(data.reshape(()))
    return exponent if exponent in KNOWN_POWERS else None


def term_inputs(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return the values that a node's term reads: not an exponent that is in the code."""
    if node.op == "pow" and known_power(graph, node) is not None:
        return node.used[:1]
    return node.used


def term_attrs(node: Node) -> Mapping[str, Any]:
    """Return a node's attributes, with what the presence of its inputs says."""
    if node.op != "clip":
        return node.attrs
    given = [i is not None for i in node.inputs] + [False, False]
    return {**node.attrs, "has_low": given[1], "has_high": given[2]}


@dataclass(frozen=True)
class ElementWalk:
    """The walk over an expression's arrays: merged dimensions, strides of operands in them."""

    dims: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def plan_walk(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> ElementWalk:
    """Merge the dimensions of an output that all dense, broadcast operands walk alike."""
    columns = [_dense_strides(operand, shape) for operand in (*operands, shape)]
    axes = _merged_axes(shape, operands)
    if not axes:
        strides = [(0 if math.prod(o) == 1 else 1,) for o in operands]
        return ElementWalk((1,), (*strides, (1,)))
    dims = tuple(math.prod(shape[axis] for axis in run) for run in axes)
    return ElementWalk(dims, tuple(tuple(c[run[-1]] for run in axes) for c in columns))


def _merged_axes(
    shape: Sequence[int], operands: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Return runs of axes that all operands walk as one; axes of size 1 are left out."""
    columns = [_dense_strides(operand, shape) for operand in (*operands, shape)]
    runs: list[tuple[int, ...]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if runs and all(c[runs[-1][-1]] == c[axis] * size for c in columns):
            runs[-1] = (*runs[-1], axis)
        else:
            runs.append((axis,))
    return tuple(runs)


def _dense_strides(operand: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Strides of a dense operand along the output's axes, 0 where it is broadcast."""
    padded = [1] * (len(shape) - len(operand)) + list(operand)
    strides, step = [0] * len(shape), 1
    for axis in reversed(range(len(shape))):
        strides[axis] = step if padded[axis] != 1 else 0
        step *= padded[axis]
    return strides


@dataclass(frozen=True)
class ExpressionLoop:
    """What every vector of an expression's kernel is made of: terms, a walk, dtypes, lanes."""

    terms: Sequence[Term]
    walk: ElementWalk
    dtypes: Sequence[str]
    lanes: int

    def at(self, fn: Function, pointers: Sequence[Value], offsets: Sequence[Index]) -> list[Value]:
        """Return the addresses of elements of the operands."""
        return [
            fn.at(pointer, offset, SCALARS[dtype].memory)
            for pointer, offset, dtype in zip(pointers, offsets, self.dtypes, strict=True)
        ]


def expression_kernel(
    isa: Isa,
    walk: ElementWalk,
    cut: SpanCut,
    name: str,
    terms: Sequence[Term],
    dtypes: Sequence[str],
) -> Code:
    """Return the kernel of an expression over a walk, cut into vectors where it has one dimension.

    Operands: the arrays read, then the array written; dtypes: theirs
    """
    fn, pointers, chunk, _, span = begin_span(name, isa, len(walk.strides), cut)
    loop = ExpressionLoop(terms, fn.known(walk), dtypes, _expression_lanes(isa, terms, dtypes))
    inner = loop.walk.dims[-1]
    if len(walk.dims) == 1 and not cut.words:
        _flat(fn, pointers, chunk, loop, (cut.size * loop.lanes, -(-cut.units // cut.size)))
    elif len(walk.dims) == 1:
        first, size = times(fn, span[0], loop.lanes), times(fn, fn.known(cut).size, loop.lanes)
        steps = [strides[-1] for strides in loop.walk.strides]
        bases = loop.at(fn, pointers, [first if step else 0 for step in steps])
        _emit_span(fn, bases, loop, fn.minimum(size, minus(fn, inner, first)))
    else:
        for row in fn.range(*span):
            bases = loop.at(
                fn, pointers, [row_offset(fn, row, loop.walk, k) for k in range(len(pointers))]
            )
            _emit_span(fn, bases, loop, inner)
    return finish(fn)


def expression_work(
    isa: Isa, terms: Sequence[Term], dtypes: Sequence[str], walk: ElementWalk
) -> SpanWork:
    """Return the vectors of a walk of one dimension, else its rows, and the seconds of all."""
    loop = ExpressionLoop(terms, walk, dtypes, _expression_lanes(isa, terms, dtypes))
    vectors, rows = -(-walk.dims[-1] // loop.lanes), math.prod(walk.dims[:-1])
    seconds = _vector_s(isa, loop) * rows * vectors
    return SpanWork(vectors if len(walk.dims) == 1 else rows, seconds)


def _vector_s(isa: Isa, loop: ExpressionLoop) -> float:
    """Return about how many seconds a vector of all lanes takes, by its instructions."""

    def registers(dtype: str) -> float:
        return max(8 * SCALARS[dtype].nbytes * loop.lanes / isa.vector_bits, 1)

    work = sum(expression_cost(t.op, t.dtype, loop.lanes) * registers(t.dtype) for t in loop.terms)
    return (work + sum(2 * registers(dtype) for dtype in loop.dtypes)) / 7e9


def row_offset(fn: Function, row: Index, walk: ElementWalk, operand: int) -> Index:
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
    fn: Function,
    pointers: Sequence[Value],
    chunk: Value,
    loop: ExpressionLoop,
    cut: tuple[int, int],
) -> None:
    """Emit a walk of one dimension, cut into chunks of whole vectors; the last has the tail."""
    size, chunks = cut
    inner, lanes = loop.walk.dims[-1], loop.lanes
    first = chunk * size if chunks > 1 else 0
    whole = inner // lanes * lanes
    steps = [strides[-1] for strides in loop.walk.strides]
    bases = pointers
    if chunks > 1:
        bases = loop.at(fn, pointers, [chunk * (size * step) for step in steps])
    high: Index = whole if chunks == 1 else fn.minimum(size, whole - first)
    for i in fn.range(0, high, lanes):
        _vector(fn, bases, loop, i, lanes)
    if whole < inner:
        if chunks == 1:
            _vector(fn, bases, loop, whole, inner - whole)
        else:
            with fn.when(fn.compare("eq", chunk, chunks - 1)):
                _vector(fn, pointers, loop, whole, inner - whole)


def _expression_lanes(isa: Isa, terms: Sequence[Term], dtypes: Sequence[str]) -> int:
    """Return the elements of a vector: registers of the widest type, of at most 4 bytes."""
    widths = [SCALARS[dtype].nbytes for dtype in (*dtypes, *(t.dtype for t in terms))]
    return isa.vector_bits // (8 * min(max(widths), 4))


def _emit_span(fn: Function, bases: Sequence[Value], loop: ExpressionLoop, count: Index) -> None:
    """Emit the expression for `count` elements that follow each other."""
    whole = count - fn.integer("urem", count, loop.lanes)
    for i in fn.range(0, whole, loop.lanes):
        _vector(fn, bases, loop, i, loop.lanes)
    if isinstance(count, Value):
        rest = fn.as_value("i64", count - whole)
        with fn.when(fn.compare("ne", rest, 0)):
            _vector(fn, bases, loop, whole, rest)
    elif isinstance(whole, int) and whole < count:
        _vector(fn, bases, loop, whole, count - whole)


def _vector(
    fn: Function, bases: Sequence[Value], loop: ExpressionLoop, at: Index, count: Index
) -> None:
    """Emit the expression for `count` elements, at most one vector, from element `at`."""
    steps = [strides[-1] for strides in loop.walk.strides]
    places = loop.at(fn, bases, [at if step else 0 for step in steps])
    operands = []
    for place, step, dtype in zip(places[:-1], steps, loop.dtypes, strict=False):
        if step:
            operands.append(load(fn, dtype, place, loop.lanes, count))
        else:
            operands.append(fn.splat(load(fn, dtype, place, 1), loop.lanes))
    results: list[Value] = []
    for term in loop.terms:
        arguments = [operands[~a] if a < 0 else results[a] for a in term.arguments]
        emit = emitter(term.op, term.dtype)
        if emit is None:
            raise InternalError(f"no expression of {term.op} on {term.dtype}")
        results.append(rounded(fn, term.makes, emit(fn, term.attrs, *arguments)))
    store(fn, loop.dtypes[-1], results[-1], places[-1], count)


def expression_step(
    context: Context,
    name: str,
    terms: Sequence[Term],
    inputs: Sequence[int],
    output: int,
    nodes: tuple[int, ...],
) -> Step:
    """Return the step that computes an expression of values of the graph."""
    graph = context.graph
    shape = dims_of(graph, output)
    runs = _merged_axes(shape, [dims_of(graph, i) for i in inputs])
    plain = [_dense_strides(dims_of(graph, i), shape) for i in (*inputs, output)]
    moves = [[bool(strides[run[-1]]) for run in runs] for strides in plain]

    def walk_of(graph: Graph) -> ElementWalk:
        shape = dims_of(graph, output)
        dims = tuple(math.prod([shape[axis] for axis in run]) for run in runs) or (1,)
        strides = [
            _strides(dims_of(graph, value), shape, runs, moved) or (int(value == output),)
            for value, moved in zip((*inputs, output), moves, strict=True)
        ]
        return ElementWalk(dims, tuple(strides))

    wiring = Wiring([context.operand(i) for i in inputs], (output,), nodes)
    dtypes, kept = tuple(context.type(i).dtype for i in (*inputs, output)), tuple(terms)
    work = partial(expression_work, context.isa, kept, dtypes)
    name = _expression_name(name, terms)
    return span_step(context, wiring, walk_of, work, expression_kernel, name, kept, dtypes)


def _strides(
    own: Sequence[int],
    shape: Sequence[int],
    runs: Sequence[Sequence[int]],
    moves: Sequence[bool],
) -> tuple[int, ...]:
    """Return the strides of an operand along runs of the output's axes.

    moves: whether it moves along each run, in every shape
    Errors: CompileError, if the operand is broadcast along a run in which it moves
    """
    behind = len(own) - len(shape)
    strides = []
    for run, moved in zip(runs, moves, strict=True):
        if moved and any(own[axis + behind] == 1 != shape[axis] for axis in run):
            raise CompileError(
                f"sizes {list(own)} are broadcast to {list(shape)}; the kernel is made for equal "
                "sizes",
                fix="compile this shape by itself",
            )
        strides.append(math.prod(own[run[-1] + behind + 1 :]) if moved else 0)
    return tuple(strides)


def _expression_name(name: str, terms: Sequence[Term]) -> str:
    """Return the name of an expression's kernel: with what it is computed in."""
    dtypes = dict.fromkeys(SCALARS[d].short for t in terms for d in (t.dtype, t.makes))
    return "_".join([name, *dtypes])


def activation_step(context: Context, activation: str, value: int, node: int) -> Step:
    """Return the step that applies an activation to a value where it lies."""
    terms = [Term("_activation", {"activation": activation}, (-1,))]
    return expression_step(context, activation, terms, (value,), value, (node,))


def _partial_terms(graph: Graph, node: Node) -> Iterator[tuple[Term, tuple[int, ...]]]:
    """Yield a term and its inputs for each step of a node.

    A sum, max or min of many operands takes several steps, of which later ones read the output.
    """
    left = node.inputs
    so_far: tuple[int, ...] = ()
    while left:
        room = MOST_INPUTS - len(so_far)
        part, left = replace(node, inputs=so_far + left[:room]), left[room:]
        inputs = tuple(dict.fromkeys(term_inputs(graph, part)))
        yield node_term(graph, part, {value: ~k for k, value in enumerate(inputs)}), inputs
        so_far = (node.outputs[0],)


def _lower(context: Context, node: Node) -> list[Step]:
    return [
        expression_step(context, node.op, [term], inputs, node.outputs[0], (node.id,))
        for term, inputs in _partial_terms(context.graph, node)
    ]


def _expression_reason(graph: Graph, node: Node) -> str | None:
    """Say why an elementwise node has no native kernel, None when it has."""
    activation = str(node.attrs.get("activation") or "")
    dtypes = [graph.type(value).dtype for value in (*node.used, *node.outputs)]
    if activation not in ACTIVATIONS or (activation and dtypes[0] != "float32"):
        return f"{node.op} has no native kernel with activation {activation} on {dtypes[0]}"
    foreign = next((dtype for dtype in dtypes if dtype not in SCALARS), None)
    if foreign is not None:
        return f"{node.op} has no native kernel for {foreign}"
    if not all(graph.type(value).elements for value in (*node.used, *node.outputs)):
        return f"{node.op} has no native kernel for empty tensors"
    return _pow_reason(graph, node) if node.op == "pow" else None


def _stored_reason(graph: Graph, node: Node) -> str | None:
    """Say why a choice between stored integers is not one of bytes."""
    types = [graph.type(value) for value in (*node.used[1:], *node.outputs)]
    if any(type.quant != types[0].quant for type in types):
        return f"{node.op} has no native kernel between different quantisations"
    return _expression_reason(graph, node)


def _pow_reason(graph: Graph, node: Node) -> str | None:
    """Say why a pow cannot be computed: of integers only with an exponent of their own dtype."""
    base, exponent = (graph.type(value).dtype for value in node.used)
    if base in INTS and base != exponent:
        return f"pow has no native kernel for {base} to the {exponent}"
    return None


for _op in EXPRESSIONS:
    TABLE.add(
        _op,
        Rule(_expression_reason, _lower, in_every_shape),
        [dtype for dtype in SCALARS if emitter(_op, dtype)],
    )
TABLE.add("where", Rule(_stored_reason, _lower), STORED_8)
