"""batch_norm: batch normalisation at inference is one multiply-add a channel, folded into
weights.
"""

from __future__ import annotations

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.passes.linear import LINEAR, as_linear, channel_axis
from trireme.support.dtypes import FLOATS, numpy_dtype


def batch_norm(graph: Graph) -> Rewritten:
    """Fold batch_normalization into the linear node before it, else make mul and add of it.

    The remaining mul and add can still go into a linear node after them: see canonicalise.
    Source: Ioffe and Szegedy, Batch Normalization: y = scale (x - mean) / sqrt(var + eps) + bias
    """
    return apply(graph, rules_by_op((["batch_normalization"], batch_norm_at_rest)))


def batch_norm_at_rest(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """batch_normalization(x, constants) -> a linear node's weights, or x * a + b."""
    arrays = [g.data(i) for i in root.inputs[1:5]]
    type = g.type(root.used[0])
    if len(root.outputs) > 1 or root.attrs.get("training_mode") or type.dtype not in FLOATS:
        return None
    if len(arrays) < 4 or any(a is None for a in arrays):
        return None
    scale, bias, mean, var = (np.asarray(a, np.float64) for a in arrays)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(var + root.attrs["epsilon"])
    offset = bias - mean * factor
    if not (np.all(np.isfinite(factor)) and np.all(np.isfinite(offset))):
        return None
    before = g.only_for(root.used[0], root, *LINEAR)
    linear = as_linear(g, before)
    rank = len(type.shape)
    axis = channel_axis(root, rank)
    if before and linear and linear.residual is None and axis == channel_axis(before, rank):
        folded = linear.scaled(factor).shifted(offset).added_to(g, [before, root])
        if folded is not None:
            return (folded,)
    shape = [-1, *[1] * (rank - 1 - axis)]
    constants = [
        g.constant(a.astype(numpy_dtype(type.dtype)).reshape(shape)) for a in (factor, offset)
    ]
    product = g.add("mul", [root.used[0], constants[0]], {}, [root])
    return (g.add("add", [product, constants[1]], {}, [root]),)
