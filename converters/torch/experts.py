"""Products of rows that are sorted by expert with the weights of their experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from trireme.converters.torch.use import NumberRef, Use


def grouped_product(use: Use) -> int:
    """Rows up to the first offset by the first expert's weight, and so on; rows behind are zeros.

    Few rows gather their weights: no expert has more than one or two of them then. Many rows are
    sliced, so that each is multiplied once.
    Shapes: input [S,K], weight [E,K,N], offs [E] -> y [S,N]
    """
    experts, rows = use.shape_of("weight")[0], use.shape_of("input")[0]
    if not all(isinstance(dim, int) for dim in use.shape_of("weight")):
        raise use.error("the weights of experts have an open shape")
    offsets = use.cast(use["offs"], "int64")
    if isinstance(rows, int) and rows <= experts:
        return _by_row(use, offsets, rows, experts)
    return _by_expert(use, offsets, experts)


def _by_row(use: Use, offsets: int, rows: int, experts: int) -> int:
    """Multiply each row with a weight that is gathered for it."""
    places = use.constant(np.arange(rows)[:, None], "int64")
    ended = use.cast(use.add("less_or_equal", offsets, places), "int64")
    expert = use.add("reduce_sum", ended, use.ints(1), keepdims=0)
    last = use.constant(experts - 1, "int64")
    weight = use.add("gather", use["weight"], use.add("min", expert, last), axis=0)
    made = use.add("matmul", use.add("unsqueeze", use["input"], use.ints(1)), weight)
    made = use.add("squeeze", made, use.ints(1))
    is_behind = use.add("unsqueeze", use.add("greater", expert, last), use.ints(1))
    return use.add("where", is_behind, use.constant(0, use.dtype), made)


def _by_expert(use: Use, offsets: int, experts: int) -> int:
    """Multiply the slice of each expert's rows with its weight."""
    x, axis, zero = use["input"], use.ints(0), use.ints(0)
    each = [use.add("slice", offsets, use.ints(k), use.ints(k + 1), axis) for k in range(experts)]
    parts = []
    for expert, (start, end) in enumerate(zip([zero, *each], each, strict=False)):
        place = use.constant(expert, "int64")
        weight = use.add("gather", use["weight"], place, axis=0)
        parts.append(use.add("matmul", use.add("slice", x, start, end, axis), weight))
    shape = use.add("shape", x, start=0, end=1)
    width = use.shape_of("weight")[2]
    behind = use.vector([NumberRef(use.add("sub", shape, each[-1])), width])
    parts.append(use.add("expand", use.constant(0, use.dtype), behind))
    rows = use.shape_of("input")[0]
    size = use.ints(rows, width) if isinstance(rows, int) else use.vector([NumberRef(shape), width])
    return use.add("reshape", use.add("concat", *parts, axis=0), size)


EXPERTS: dict[str, Any] = {"transformers.grouped_mm_fallback.default": grouped_product}
"""By op and overload: it is an op of a library, not of ATen."""
