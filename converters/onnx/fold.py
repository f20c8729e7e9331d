"""Fold known values during conversion: small constants, and shape arithmetic on open dimensions.

Only small tensors are evaluated here, so that shapes, axes and pads become constants before a rule
reads them. The constant-folding pass does the rest. Evaluation uses the op's own reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.contents import FOLLOWED, followed
from trireme.ir.graph import Dim, Value
from trireme.ir.interpreter import interpret
from trireme.ir.op import call_of, get_op
from trireme.support.dtypes import Array

MOST_ELEMENTS = 1 << 16
"""The most elements of a tensor that folding makes or reads."""
MOST_FLOPS = 1 << 22
_KEPT = ("dequantize", "dequantize_linear")
"""Ops that are not folded: a pass makes types of them."""

Dims = tuple[Dim, ...]


def fold(
    values: Sequence[Value | None], op: str, attrs: Mapping[str, Any], outputs: int
) -> list[Array] | None:
    """Return the outputs of a node whose inputs are small constants; None when it must run."""
    definition = get_op(op)
    present = [value for value in values if value is not None]
    is_told = not (definition.effect or definition.random) and definition.bounded
    if not is_told or definition.has_body or op in _KEPT or not present:
        return None
    if not all(v.data is not None and v.data.size <= MOST_ELEMENTS for v in present):
        return None
    builder = GraphBuilder("fold")
    inputs = [None if v is None or v.data is None else builder.constant("", v.data) for v in values]
    made = builder.add_node(op, inputs, attrs, outputs=outputs)
    for value in made:
        type = builder.type(value)
        if not type.is_static or type.elements > MOST_ELEMENTS:
            return None
    graph = builder.finish(*made)
    if definition.flops(call_of(graph, graph.nodes[0])) > MOST_FLOPS:
        return None
    results = interpret(graph, {})
    return [results[value] for value in made]


def known_dims(value: Value | None, known: Mapping[int, Dims]) -> Array | None:
    """Return the elements of a value, numbers or symbols, as an array of objects, if known."""
    if value is None:
        return None
    if value.data is not None and value.dtype in FOLLOWED and value.data.size <= MOST_ELEMENTS:
        return value.data.astype(object)
    if value.id in known and all(isinstance(dim, int) for dim in value.shape):
        return np.array(known[value.id], object).reshape(value.type.dims)
    return None


def fold_dims(
    values: Sequence[Value | None], op: str, attrs: Mapping[str, Any], known: Mapping[int, Dims]
) -> Array | None:
    """Return the elements of a node on shapes, some of them symbols; None for any other node.

    Ops that move elements also move symbols, and arithmetic makes expressions of them.
    """
    if not any(value is not None and value.id in known for value in values):
        return None
    arrays = [known_dims(value, known) for value in values]
    if any(array is None and value for array, value in zip(arrays, values, strict=True)):
        return None
    return followed(op, arrays, attrs, {})
