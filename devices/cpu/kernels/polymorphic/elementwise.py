"""Elementwise kernels for every shape: one op, or a chain fused into one pass over memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from trireme.devices.cpu.codegen.ir import Index
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.scalars import SCALARS
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.expressions import EXPRESSIONS, emitter
from trireme.devices.cpu.kernels.f32.elementwise import (
    ElementWalk,
    ExpressionLoop,
    Term,
    dense_strides,
    emit_span,
    expression_lanes,
    expression_name,
    expression_reason,
    merged_axes,
    partial_terms,
    row_offset,
    vector_s,
)
from trireme.devices.cpu.kernels.lowering import Context, Operand, finish
from trireme.devices.cpu.kernels.polymorphic.plans import quick_plan
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
from trireme.support.errors import CompileError


def sized_expression_kernel(
    isa: Isa, name: str, terms: Sequence[Term], walk: ElementWalk, dtypes: Sequence[str], words: int
) -> Code:
    """Return the same kernel for every shape.

    walk: has Words where sizes and strides vary; the last word is the vectors of a chunk where the
        walk has one dimension, else the rows of a chunk
    """
    fn, pointers, chunk, _ = begin_sized(name, isa, len(walk.strides), words)
    size = fn.words[-1]
    loop = ExpressionLoop(terms, fn.known(walk), dtypes, expression_lanes(isa, terms, dtypes))
    inner = loop.walk.dims[-1]
    if len(walk.dims) == 1:
        first = chunk * size * loop.lanes
        steps = [strides[-1] for strides in walk.strides]
        bases = loop.at(fn, pointers, [first if step else 0 for step in steps])
        emit_span(fn, bases, loop, fn.minimum(size * loop.lanes, fn.as_value("i64", inner) - first))
        return finish(fn)
    rows: Index = 1
    for dim in loop.walk.dims[:-1]:
        rows = dim * rows
    first = chunk * size
    for row in fn.range(first, fn.minimum(first + size, rows)):
        bases = loop.at(
            fn, pointers, [row_offset(fn, row, loop.walk, k) for k in range(len(pointers))]
        )
        emit_span(fn, bases, loop, inner)
    return finish(fn)


def expression_step(
    context: Context,
    name: str,
    terms: Sequence[Term],
    inputs: Sequence[int],
    output: int,
    nodes: tuple[int, ...],
) -> PolymorphicStep:
    """Return the step that computes an expression of values of a graph, for every shape."""
    isa, graph = context.isa, context.graph
    runs = merged_axes(dims_of(graph, output), [dims_of(graph, i) for i in inputs])
    plain = [dense_strides(dims_of(graph, i), dims_of(graph, output)) for i in (*inputs, output)]
    steps = [[bool(strides[run[-1]]) for run in runs] for strides in plain]

    def walk_of(graph: Graph) -> ElementWalk:
        shape = dims_of(graph, output)
        dims = tuple(math.prod([shape[axis] for axis in run]) for run in runs) or (1,)
        strides = []
        for value, moves in zip((*inputs, output), steps, strict=True):
            own = dims_of(graph, value)
            behind = len(own) - len(shape)
            strides.append(
                tuple(
                    _stride(own, shape, run, behind) if moved else 0
                    for run, moved in zip(runs, moves, strict=True)
                )
                or (int(value == output),)
            )
        return ElementWalk(dims, tuple(strides))

    dtypes = tuple(context.type(i).dtype for i in (*inputs, output))
    sample = walk_of(graph)
    known, count, words = generalised(sample, name)
    plan: Callable[[Graph], ElementWalk] = walk_of
    if _is_as_large(graph, inputs, output):
        plan = quick_plan(graph, (output, *inputs), sample, walk_of)
    arguments = (expression_name(name, terms), tuple(terms), known, dtypes, count + 1)
    code = context.kernel(sized_expression_kernel, *arguments)
    lanes = expression_lanes(isa, terms, dtypes)
    each_s = vector_s(isa, ExpressionLoop(terms, known, dtypes, lanes))

    def size(graph: Graph) -> Sized:
        walk = plan(graph)
        vectors, rows = -(-walk.dims[-1] // lanes), math.prod(walk.dims[:-1])
        seconds = vectors * rows * each_s
        part, chunks = deal_evenly(vectors if len(walk.dims) == 1 else rows, seconds)
        return Sized((*words(walk), part), chunks, seconds)

    reads: tuple[Operand, ...] = tuple(context.operand(i) for i in inputs)
    return PolymorphicStep((code,), reads, (output,), size, nodes)


def _is_as_large(graph: Graph, inputs: Sequence[int], output: int) -> bool:
    """Whether the axes of the inputs are as long as those of the output, or 1, in every shape."""
    whole = dims_of(graph, output)[::-1]
    return all(
        size in (1, most)
        for value in inputs
        for size, most in zip(dims_of(graph, value)[::-1], whole, strict=False)
    )


def _stride(own: Sequence[int], shape: Sequence[int], run: Sequence[int], behind: int) -> int:
    """Return the stride of an operand along a run of the output's axes.

    Errors: CompileError, if the operand is broadcast there
    """
    if any(own[axis + behind] == 1 != shape[axis] for axis in run):
        raise CompileError(
            f"sizes {list(own)} are broadcast to {list(shape)}; the kernel is made for equal sizes",
            fix="compile this shape by itself",
        )
    return math.prod(own[run[-1] + behind + 1 :])


def activation_step(context: Context, activation: str, value: int, node: int) -> PolymorphicStep:
    """Return the step that applies an activation to a value where it lies."""
    terms = [Term("_activation", {"activation": activation}, (-1,))]
    return expression_step(context, activation, terms, (value,), value, (node,))


def _lower(context: Context, node: Node) -> Sequence[PolymorphicStep]:
    return [
        expression_step(context, node.op, [term], inputs, node.outputs[0], (node.id,))
        for term, inputs in partial_terms(context.graph, node)
    ]


for _op in EXPRESSIONS:
    _forms = [dtype for dtype in SCALARS if emitter(_op, dtype)]
    POLYMORPHIC.add(_op, PolymorphicRule(expression_reason, _lower), _forms)
