"""Attention for every shape: batch, queries and keys vary, heads and their sizes may not.

The order of sums is that of the kernel of one shape, so results have its bits.
"""

from __future__ import annotations

from dataclasses import replace

from trireme.devices.cpu.kernels.f32.attention import REST_ROWS
from trireme.devices.cpu.kernels.f32.attention_shape import (
    AttentionShape,
    attention_work,
    block_vectors,
    is_by_row,
    local_bytes,
    row_bytes,
    row_work,
    walks_rows,
)
from trireme.devices.cpu.kernels.lowering import Context
from trireme.devices.cpu.kernels.polymorphic.attention import (
    sized_attention_kernel,
    sized_row_attention_kernel,
)
from trireme.devices.cpu.kernels.polymorphic.plans import quick_plan
from trireme.devices.cpu.kernels.polymorphic.sample import deal_evenly, generalised, varies
from trireme.devices.cpu.kernels.polymorphic.step import PolymorphicStep, Sized
from trireme.devices.cpu.patterns.attention import (
    Attention,
    find_attention,
    is_mask_by_query,
    mask_walk,
)
from trireme.ir.graph import Graph
from trireme.support.errors import CompileError

_VARIANTS = (1, 2)
"""Vectors of queries in a block. The last variant is that of few queries, each by itself."""


def find_polymorphic_attention(graph: Graph) -> list[Attention]:
    """Return the attentions of a sample that one kernel serves for every shape."""
    return [one for one in find_attention(graph) if _is_served(graph, one)]


def _is_served(graph: Graph, one: Attention) -> bool:
    if varies(one.walk.shape.depth) or varies(one.walk.shape.width):
        return False
    return one.mask is None or not graph.values[one.mask].is_constant


def attention_step(context: Context, one: Attention) -> PolymorphicStep:
    """Return the step of an attention for every shape."""
    isa = context.isa
    by_query = one.mask is not None and is_mask_by_query(context.graph, one.mask)

    def shape_of(graph: Graph) -> AttentionShape:
        walk = one.parts.walk(graph)
        if walk is None:
            raise CompileError(f"cpu: {one.parts.first.label}: no kernel for this shape")
        if one.mask is None:
            return walk.shape
        mask = mask_walk(graph, one.mask, walk, by_query)
        return replace(walk.shape, mask=mask, mask_by_query=by_query)

    sample = shape_of(context.graph)
    known, count, words = generalised(sample, one.parts.first.label)
    values = (value for node in one.nodes for value in (*node.used, *node.outputs))
    plan = quick_plan(context.graph, values, sample, shape_of)
    codes = [context.kernel(sized_attention_kernel, known, vectors, count) for vectors in _VARIANTS]
    by_rows = walks_rows(known)
    if by_rows:
        codes.append(context.kernel(sized_row_attention_kernel, known, count))

    def size(graph: Graph) -> Sized:
        shape = plan(graph)
        if 0 in (shape.queries, shape.keys, *shape.batch):
            shape = shape_of(graph)
        if by_rows and is_by_row(shape):
            items, seconds = row_work(isa, shape)
            part, chunks = deal_evenly(items, seconds)
            room = row_bytes(isa, shape.keys)
            return Sized((*words(shape), part, items), chunks, seconds, room, variant=2)
        vectors = block_vectors(isa, shape.queries)
        items, seconds = attention_work(isa, shape, vectors)
        part, chunks = deal_evenly(items, seconds)
        room = local_bytes(
            isa, replace(shape, keys=shape.keys + max(REST_ROWS, isa.lanes)), vectors
        )
        return Sized((*words(shape), part, items), chunks, seconds, room, variant=vectors - 1)

    places = [one.q, one.k, one.v, *([] if one.mask is None else [one.mask])]
    reads = tuple(context.operand(i) for i in places)
    nodes = tuple(node.id for node in one.nodes)
    return PolymorphicStep(tuple(codes), reads, (one.output,), size, nodes, "attention_f32")
