"""quantize_folding: ONNX's Q/DQ nodes become quantised types, and the ops between them integer ops.

    dequantize_linear(w)                          -> dequantize of a constant of quantised type
    dequantize_linear(quantize_linear(x))         -> dequantize(quantize(x))
    quantize(op(dequantize(x), dequantize(w)))    -> op on quantised types

What is left are quantize and dequantize nodes where floats begin and end; the graph's own inputs
and outputs keep their types. The types round halves to even, as QuantizeLinear does. Arithmetic is
that of trireme.ops.integer: products and sums have a fixed-point multiplier, which is exact where
the scales are powers of two. With other scales ONNX Runtime's float products and these may fall on
different sides of a half; then an output differs by one unit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trireme.ir.graph import Graph, Node, Quant, Rounding
from trireme.ir.interpreter import evaluate
from trireme.ir.op import get_op
from trireme.ir.rewriter import GraphRewriter, Rule
from trireme.ir.rules import Rewritten, Roots, apply, rules_by_op
from trireme.passes.integer_ops import EIGHT_BIT, has_type, integers_of, on_integers
from trireme.support.dtypes import Array


def quantize_folding(graph: Graph) -> Rewritten:
    """Fold quantize_linear and dequantize_linear into quantised types and integer ops."""
    return apply(graph, rules_by_op(*QUANTIZE))


def quant_of_node(g: GraphRewriter, node: Node) -> tuple[Quant, str] | None:
    """Return the quantisation and the dtype of a Q or DQ node.

    None where a quantised type cannot express it: parameters that are not constant, blocks, floats.
    """
    scale, zero = g.data(node.inputs[1]), None
    stored = g.type(node.used[0] if node.op == "dequantize_linear" else node.outputs[0]).dtype
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        zero = g.data(node.inputs[2])
        if zero is None:
            return None
    if scale is None or scale.ndim > 1 or scale.dtype != np.float32 or node.attrs.get("block_size"):
        return None
    if not np.all(np.isfinite(scale) & (scale > 0)) or stored not in (*EIGHT_BIT, "int32"):
        return None
    zeros = np.zeros(scale.shape, np.int64) if zero is None else zero.astype(np.int64)
    if zeros.size != scale.size:
        return None
    axis: int | None = None
    if scale.size > 1:
        axis = int(node.attrs["axis"]) % len(g.type(node.used[0]).shape)
    scales, points = tuple(scale.ravel().tolist()), tuple(zeros.ravel().tolist())
    return Quant(scales, points, axis, Rounding.HALF_EVEN), stored


def constant_of_type(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """dequantize_linear(constant) -> dequantize of a constant with that quantisation."""
    data, found = g.data(root.used[0]), quant_of_node(g, root)
    if data is None or found is None:
        return None
    typed = g.constant(data, g.values[root.used[0]].name, found[0])
    return (g.add("dequantize", [typed], {}, [root]),)


def pair_of_types(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """dequantize_linear(quantize_linear(x)) -> dequantize(quantize(x)), both by a type."""
    first = g.made_by(root.used[0], root, "quantize_linear")
    if first is None:
        return None
    found, other = quant_of_node(g, root), quant_of_node(g, first)
    if found is None or found != other or found[1] not in EIGHT_BIT:
        return None
    quant, stored = found
    typed = _quantized_once(g, root, first, quant, stored)
    return None if typed is None else (g.add("dequantize", [typed], {}, [root]),)


def _quantized_once(
    g: GraphRewriter, root: Node, first: Node, quant: Quant, stored: str
) -> int | None:
    """Return the result of the quantize_linear `first`, by a type; all readers share it."""
    real = first.used[0]
    if g.data(real) is not None:
        return g.constant(_run(g, first), g.values[real].name, quant)
    known = integers_of(g, real, root)
    if known is not None and has_type(g, known, quant, stored):
        return known
    if quant.axis is not None:
        return None
    key = ("quantized", real, quant, stored)
    made: int | None = g.memo.get(key)
    if made is None or g.producer(made) is None:
        made = g.memo[key] = g.add("quantize", [real], {"dtype": stored}, [first], quant)
    return made


def _run(g: GraphRewriter, node: Node) -> Array:
    arrays = [g.data(i) for i in node.inputs]
    return evaluate(Graph("", (), (), (), g.values), node, arrays)[0]


def integers_from_outside(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """dequantize_linear(x), x not quantised by type -> the same, through a quantised type.

    For example, x is an input of the graph, and keeps its type. quantize then returns exactly its
    integers. Nodes that rearrange x first rearrange the result instead.
    """
    found = quant_of_node(g, root)
    if found is None or found[0].axis is not None or found[1] not in EIGHT_BIT:
        return None
    moves = _moves_before(g, root)
    x = moves[-1].used[0] if moves else root.used[0]
    if g.producer(x) is not None or g.data(x) is not None:
        return None
    readers = g.graph.users(root.outputs[0])
    if not readers or all(reader.op in ("quantize", "quantize_linear") for reader in readers):
        return None
    real = g.add("dequantize_linear", [x, *root.inputs[1:]], root.attrs, [root])
    typed = g.add("quantize", [real], {"dtype": found[1]}, [root], found[0])
    made = g.add("dequantize", [typed], {}, [root])
    for node in reversed(moves):
        made = g.add(node.op, [made, *node.inputs[1:]], node.attrs, [node])
    return (made,)


def _moves_before(g: GraphRewriter, root: Node) -> list[Node]:
    """Return the nodes that rearrange the input of the root for it alone, the last one first."""
    moves: list[Node] = []
    while (before := g.producer(root.used[0])) is not None and get_op(before.op).rearranges:
        if g.only_for(root.used[0], root, before.op) is None:
            break
        moves.append(before)
        root = before
    return moves


def picked_integers(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """dequantize_linear(move(constant)) -> (float(move) - zero) * scale, one scale for all.

    For example, an embedding table of integers: the rows that are gathered become floats.
    """
    found, node = quant_of_node(g, root), g.producer(root.used[0])
    if found is None or found[0].axis is not None or found[1] not in EIGHT_BIT:
        return None
    if node is None or not get_op(node.op).moves or g.data(node.used[0]) is None:
        return None
    (scale,), (zero,) = found[0].scales, found[0].zero_points
    real = g.add("cast", [root.used[0]], {"to": "float32"}, [root])
    if zero:
        real = g.add("add", [real, g.constant(np.float32(-zero), "zero")], {}, [root])
    return (g.add("mul", [real, g.constant(np.float32(scale), "scale")], {}, [root]),)


def move_before(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """move(dequantize(x)) -> dequantize(move(x)), one scale for all of x."""
    before = g.made_by(root.used[0], root, "dequantize")
    if before is None or len(root.outputs) != 1 or g.is_quantized(root):
        return None
    quant = g.type(before.used[0]).quant
    if quant is None:
        return None
    axis = _moved_axis(root, quant, len(g.type(root.used[0]).shape))
    if quant.axis is not None and axis is None:
        return None
    quant = replace(quant, axis=axis)
    x = before.used[0]
    moved = g.add(root.op, [x, *root.inputs[1:]], root.attrs, [root], quant)
    node = g.producer(moved)
    if g.data(x) is not None and node and all(g.data(i) is not None for i in node.used):
        moved = g.constant(np.ascontiguousarray(_run(g, node)), g.values[x].name, quant)
    return (g.add("dequantize", [moved], {}, [before]),)


def _moved_axis(root: Node, quant: Quant, rank: int) -> int | None:
    """Return the axis of the scales after a transpose, None for other moves."""
    if quant.axis is None or root.op != "transpose":
        return None
    perm = root.attrs["perm"] or tuple(range(rank))[::-1]
    return tuple(perm).index(quant.axis)


def quantize_of_dequantize(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """quantize(dequantize(x)) -> x where the types agree, else one quantize."""
    before = g.made_by(root.used[0], root, "dequantize")
    if before is None:
        return None
    x, quant = before.used[0], g.type(root.outputs[0]).quant
    if g.type(x) == g.type(root.outputs[0]):
        return (x,)
    inner = g.type(x).quant
    if inner is None or inner.axis is not None or quant is None or quant.axis is not None:
        return None
    if g.type(x).dtype not in EIGHT_BIT or g.data(x) is not None:
        return None
    return (g.add("quantize", [x], root.attrs, [before, root], quant),)


def integer_op(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """quantize(op(dequantize(x), ...)) -> op on quantised types."""
    quant, stored = g.type(root.outputs[0]).quant, g.type(root.outputs[0]).dtype
    if quant is None or quant.axis is not None or stored not in EIGHT_BIT:
        return None
    return _one(on_integers(g, root, root.used[0], quant, stored, [root]))


def integer_output(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """quantize_linear(op(dequantize(x), ...)) that leaves the graph -> the same around integers."""
    found = quant_of_node(g, root)
    if found is None or found[0].axis is not None or found[1] not in EIGHT_BIT:
        return None
    typed = on_integers(g, root, root.used[0], *found, [])
    if typed is None:
        return None
    real = g.add("dequantize", [typed], {}, [root])
    return (g.add("quantize_linear", [real, *root.inputs[1:]], root.attrs, [root]),)


def _one(value: int | None) -> tuple[int] | None:
    return None if value is None else (value,)


QUANTIZE: tuple[tuple[Roots, Rule], ...] = (
    (["dequantize_linear"], constant_of_type),
    (["dequantize_linear"], pair_of_types),
    (["dequantize_linear"], integers_from_outside),
    (["dequantize_linear"], picked_integers),
    (lambda op: op.rearranges, move_before),
    (["quantize"], quantize_of_dequantize),
    (["quantize"], integer_op),
    (["quantize_linear"], integer_output),
)
