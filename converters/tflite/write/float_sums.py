"""Products of integers whose result is float32, for a format that has none.

    op(x, w, float bias) -> op(dequantize(x), dequantize(w), bias)

The sums are then those of floats, which agree but for their rounding.
"""

from __future__ import annotations

from trireme.ir.graph import Graph, Node
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import rewritten, rules_by_op


def without_float_sums(graph: Graph) -> Graph:
    """Return the graph with the inputs of such products as floats."""
    return rewritten(graph, rules_by_op((("conv", "fully_connected"), _dequantised)))


def _dequantised(g: GraphRewriter, root: Node) -> tuple[int] | None:
    x, w = root.used[:2]
    y = g.type(root.outputs[0])
    if g.type(x).quant is None or y.quant is not None or y.dtype != "float32":
        return None
    floats = [g.add("dequantize", [value], {}, [root]) for value in (x, w)]
    return (g.add(root.op, [*floats, *root.inputs[2:]], root.attrs, [root]),)
