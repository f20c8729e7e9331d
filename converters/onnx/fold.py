"""Fold known values during conversion: small constants, and shape arithmetic on open dimensions.

Only small tensors are evaluated here, so that shapes, axes and pads become constants before a rule
reads them. The constant-folding pass does the rest. Evaluation uses the op's own reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import UNKNOWN, Dim, Value
from trireme.ir.interpreter import interpret
from trireme.ir.op import call_of, get_op
from trireme.support.dtypes import INTS, Array
from trireme.support.errors import TriremeError

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
    if value.data is not None and value.dtype in INTS and value.data.size <= MOST_ELEMENTS:
        return value.data.astype(object)
    if value.id in known and all(isinstance(dim, int) for dim in value.shape):
        return np.array(known[value.id], object).reshape(value.type.dims)
    return None


def fold_dims(
    values: Sequence[Value | None], op: str, attrs: Mapping[str, Any], known: Mapping[int, Dims]
) -> Array | None:
    """Return the elements of a node on shapes, some of them symbols; None for any other node.

    Ops that move elements also move symbols. Arithmetic is folded only if it keeps a symbol
    unchanged.
    """
    if not any(value is not None and value.id in known for value in values):
        return None
    arrays = [known_dims(value, known) for value in values]
    first = arrays[0]
    if first is None or any(a is None and v for a, v in zip(arrays, values, strict=True)):
        return None
    if op in ("cast", "identity"):
        return first if attrs.get("to", "int64") in INTS else None
    try:
        if op in _CALLS:
            second = arrays[1]
            return None if second is None else np.asarray(_CALLS[op](first, second), object)
        if op in _MOVES:
            plain = [
                a if a is None or position in _MOVES[op] else a.astype(np.int64)
                for position, a in enumerate(arrays)
            ]
            bound = get_op(op).bind(attrs)
            return np.asarray(get_op(op).reference(*plain, **bound), object)
    except (TriremeError, ValueError, TypeError, IndexError):
        return None
    return None


def _mul(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return a if b == 1 else b if a == 1 else UNKNOWN


def _add(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return a if b == 0 else b if a == 0 else UNKNOWN


def _div(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int) and b:
        return int(a / b) if abs(a) < 1 << 52 else a // b
    return a if b == 1 else UNKNOWN


def _sub(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return a if b == 0 else UNKNOWN


_ARITHMETIC = {"mul": _mul, "add": _add, "div": _div, "sub": _sub}
_CALLS = {name: np.frompyfunc(function, 2, 1) for name, function in _ARITHMETIC.items()}
_MOVES: dict[str, tuple[int, ...]] = {
    "gather": (0,),
    "slice": (0,),
    "squeeze": (0,),
    "unsqueeze": (0,),
    "reshape": (0,),
    "concat": tuple(range(64)),
}
"""Ops that move elements, with the positions of the inputs that hold the dimensions."""


def as_target(dims: Array, shape: Dims | None) -> Array | None:
    """Return the constant shape input of a reshape to these dimensions; None when there is none.

    A symbol at the same place in the input is copied (0); one other dimension is inferred (-1).
    """
    target: list[int] = []
    for axis, dim in enumerate(dims.reshape(-1)):
        if isinstance(dim, str):
            same = shape is not None and axis < len(shape) and dim == shape[axis] != UNKNOWN
            target.append(0 if same else -1)
        else:
            target.append(int(dim))
    if target.count(-1) > 1 or (0 in target and any(d == 0 for d in dims.reshape(-1))):
        return None
    return np.array(target, np.int64)
