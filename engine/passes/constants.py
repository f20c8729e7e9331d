"""constant_folding: compute known values once, on the references, before any run.

A node of constant inputs becomes constants, up to a limit on the model's size. The shape and the
size of a value become constants as far as its type gives them. dequantize_linear of a constant that
a quantised type can hold is left to quantize_folding.
"""

from __future__ import annotations

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import evaluate
from trireme.ir.op import get_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.passes.quantize_folding import quant_of_node
from trireme.support.dtypes import INTS, numpy_dtype
from trireme.support.errors import TriremeError

FOLD_LIMIT_BYTES = 16 << 20
"""The most bytes that folding one node may add to the constants it replaces."""
MOST_TIMES = 5
"""Constants may grow to this many times their bytes, plus MOST_MORE_BYTES."""
MOST_MORE_BYTES = 256 << 20
"""Bytes that are always allowed. Without a limit, 45 nodes that each double fill the memory."""


def is_repeatable(op: str) -> bool:
    """Whether a node may be computed once, at load: it depends on its inputs alone.

    A copy may not, because its place is its purpose.
    """
    return op != "copy" and not get_op(op).random


def constant_bytes(graph: Graph) -> int:
    """Return the bytes of a graph's constants."""
    return sum(value.data.nbytes for value in graph.values.values() if value.data is not None)


def most_bytes(graph: Graph) -> int:
    """Return the most bytes of constants after any number of foldings."""
    return MOST_TIMES * constant_bytes(graph) + MOST_MORE_BYTES


def constant_folding(
    graph: Graph, limit_bytes: int = FOLD_LIMIT_BYTES, total_bytes: int | None = None
) -> Rewritten:
    """Compute nodes of constant inputs; shapes and sizes that types tell become constants."""
    room = (most_bytes(graph) if total_bytes is None else total_bytes) - constant_bytes(graph)

    def evaluated(g: GraphRewriter, node: Node) -> tuple[int, ...] | None:
        left = g.memo.get("room", room)
        made = _evaluated(g, node, limit_bytes, left) if left > 0 else None
        if made is not None:
            g.memo["room"] = left - sum(g.type(value).nbytes for value in made)
        return made

    def constant_inputs(g: GraphRewriter, node: Node) -> tuple[int, ...] | None:
        return evaluated(g, node)

    def blocks_or_floats(g: GraphRewriter, node: Node) -> tuple[int, ...] | None:
        return None if quant_of_node(g, node) else evaluated(g, node)

    ops = {op for op in {n.op for n in graph.nodes} if get_op(op).bounded and is_repeatable(op)}
    ops -= {"dequantize_linear"}
    rules = rules_by_op(
        (["shape", "size"], static_shape),
        (["gather", "slice"], part_of_shape),
        (sorted(ops), no_elements),
        (sorted(ops), constant_inputs),
        (["dequantize_linear"], blocks_or_floats),
    )
    return apply(graph, rules)


def _evaluated(
    g: GraphRewriter, node: Node, limit_bytes: int, room_bytes: int
) -> tuple[int, ...] | None:
    """Return the results of a node as constants; None where they need too much memory.

    A cast may double its constant, however large that is: weights are stored as float16.
    """
    arrays = [g.data(i) for i in node.inputs]
    if any(i is not None and a is None for i, a in zip(node.inputs, arrays, strict=True)):
        return None
    if get_op(node.op).has_body:
        return None
    types = [g.type(i) for i in node.outputs]
    before = sum(g.type(i).nbytes for i in dict.fromkeys(node.used))
    more = max(limit_bytes, before) if node.op == "cast" else limit_bytes
    budget = before + min(more, room_bytes)
    if any(g.is_output(i) for i in node.outputs):
        return None
    if all(type.is_static for type in types) and sum(type.nbytes for type in types) > budget:
        return None
    try:
        made = evaluate(Graph("folded", (), (), (), g.values), node, arrays)
    except TriremeError:  # the node raises the same error, with more context, when it runs
        return None
    if sum(array.nbytes for array in made) > budget:
        return None
    return tuple(
        g.constant(array, quant=type.quant) for array, type in zip(made, types, strict=True)
    )


def no_elements(g: GraphRewriter, node: Node) -> tuple[int, ...] | None:
    """A node whose results have no elements -> empty constants: few devices compile such nodes.

    Integers that are fed may be wrong indices, so a node that reads such beside its data stays.
    """
    op, types = get_op(node.op), [g.type(value) for value in node.outputs]
    if op.has_body or any(map(g.is_output, node.outputs)):
        return None
    fed = [value for value in node.used[1:] if g.data(value) is None]
    if not op.elementwise and any(g.type(value).dtype in INTS for value in fed):
        return None
    if not all(type.is_static and 0 in type.dims for type in types):
        return None
    return tuple(
        g.constant(np.empty(type.dims, numpy_dtype(type.dtype)), quant=type.quant) for type in types
    )


def static_shape(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """Replace the shape or the size of a static type by a constant."""
    type = g.type(node.used[0])
    if node.op == "size":
        return (g.constant(np.asarray(type.elements, np.int64)),) if type.is_static else None
    dims = type.shape[_span(node, len(type.shape))]
    if not all(isinstance(dim, int) for dim in dims):
        return None
    return (g.constant(np.asarray(dims, np.int64)),)


def _span(node: Node, rank: int) -> slice:
    start, end = node.attrs.get("start") or 0, node.attrs.get("end")
    return slice(*slice(start, end).indices(rank)[:2])


def part_of_shape(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """Replace chosen dimensions of a partly known shape, if the chosen ones are known.

    The node is evaluated on positions instead of dimensions. The result is the positions of the
    chosen dimensions, in any order.
    """
    shape = g.producer(node.used[0])
    rest = [g.data(i) for i in node.inputs[1:]]
    if shape is None or shape.op != "shape":
        return None
    if any(i is not None and a is None for i, a in zip(node.inputs[1:], rest, strict=True)):
        return None
    type = g.type(shape.used[0])
    dims = type.shape[_span(shape, len(type.shape))]
    try:
        chosen = get_op(node.op).reference(np.arange(len(dims)), *rest, **node.attrs)
    except Exception:  # an index out of range: the node itself reports it
        return None
    found = [dims[int(position)] for position in np.ravel(chosen)]
    if not all(isinstance(dim, int) for dim in found):
        return None
    return (g.constant(np.asarray(found, np.int64).reshape(np.shape(chosen))),)
