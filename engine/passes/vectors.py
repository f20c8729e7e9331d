"""Products with a vector as products of matrices, for which devices have kernels."""

from __future__ import annotations

import numpy as np

from trireme.ir.graph import Node
from trireme.ir.rewriter import GraphRewriter


def matmul_of_vector(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """matmul(x [k], w [k,n]) -> reshape(matmul(reshape(x, [1,k]), w), [n]); so on the right too."""
    a, b = root.used
    rows, columns = g.type(a).shape, g.type(b).shape
    types = [g.type(value) for value in (a, b, *root.outputs)]
    if min(len(rows), len(columns)) != 1 or not all(type.is_static for type in types):
        return None
    if g.is_quantized(root):
        return None

    def shaped(value: int, shape: tuple[object, ...]) -> int:
        sizes = g.constant(np.array(shape, np.int64))
        return g.add("reshape", [value, sizes], {"allowzero": 1}, [root])

    left = shaped(a, (1, *rows)) if len(rows) == 1 else a
    right = shaped(b, (*columns, 1)) if len(columns) == 1 else b
    made = g.add("matmul", [left, right], {}, [root])
    return (shaped(made, types[-1].shape),)
