"""The rules of every graph, checked after each stage that makes one.

Each value has one producer, which comes before its readers. Each node's attributes, arity and types
agree with its op. Effects name earlier nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from trireme.ir.any_rank import has_late_rank, over_ranks
from trireme.ir.dims import is_expression, symbol_name
from trireme.ir.dtype_rules import check_dtypes
from trireme.ir.effects import state_types
from trireme.ir.graph import ANY_RANK, UNKNOWN, Graph, Node, Quant, TensorType, Value
from trireme.ir.op import OpDef, get_op
from trireme.support.dtypes import INTS, numpy_dtype
from trireme.support.errors import GraphError, InternalError, ShapeError, TriremeError
from trireme.support.limits import MOST_RANK

_MOST_BYTES = 2**63 - 1
"""The most bytes that numpy can count, without dimensions of 0."""


def infer_types(
    op: OpDef, inputs: Sequence[Value | None], attrs: Mapping[str, Any], outputs: int, where: str
) -> tuple[TensorType, ...]:
    """Return the types of the first `outputs` outputs, naming the node in any error.

    Errors: ShapeError or GraphError, with `where` and the inputs' types in front of the facts
    """
    least, most = op.arity
    if len(inputs) < least or (most is not None and len(inputs) > most):
        raise GraphError(f"{where}: {len(inputs)} inputs, expected ({op.inputs})")
    required = [name for name in op.inputs.split() if not name.endswith(("?", "*"))]
    for name, value in zip(required, inputs, strict=False):
        if value is None:
            raise GraphError(f"{where}: input {name} is missing")
    try:
        check_dtypes(op.input_names, op.dtypes, inputs)
        types = _inferred(op, inputs, attrs)
    except TriremeError as error:
        seen = "   ".join("-" if v is None else f"{v.name} {v.type}" for v in inputs)
        kind = ShapeError if isinstance(error, ShapeError) else GraphError
        facts = [seen, *error.facts]
        raise kind(f"{where}: {error.summary}", facts=facts, fix=error.fix) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Inference may fail on senseless attributes or ranks, which damaged files have.
        seen = "   ".join("-" if v is None else f"{v.name} {v.type}" for v in inputs)
        raise GraphError(
            f"{where}: no types follow from its inputs and attributes: {error!r}", facts=[seen]
        ) from error
    least, _ = op.out_arity
    if outputs < least:
        raise GraphError(f"{where}: {outputs} outputs, the op always makes ({op.outputs})")
    if len(types) < outputs:
        raise GraphError(f"{where}: {outputs} outputs asked for, the op makes {len(types)}")
    return tuple(types[:outputs])


def _inferred(
    op: OpDef, inputs: Sequence[Value | None], attrs: Mapping[str, Any]
) -> Sequence[TensorType]:
    if op.has_body or not has_late_rank(inputs):
        return op.infer(*inputs, **attrs)
    return over_ranks(partial(op.infer, **attrs), inputs)


def check(graph: Graph) -> Graph:
    """Return the graph if it keeps the rules; raise GraphError naming the node if not."""
    defined = set(graph.inputs)
    if len(defined) != len(graph.inputs):
        raise GraphError(f"graph {graph.name!r}: an input is listed twice")
    for value in graph.values.values():
        check_value(value)
        if value.is_constant:
            if value.id in defined:
                raise GraphError(f"%{value.id} '{value.name}' is both an input and a constant")
            defined.add(value.id)
    seen: set[int] = set()
    for node in graph.nodes:
        _check_node(graph, node, defined, seen)
    state_types(graph)
    for out in graph.outputs:
        if out not in defined:
            raise GraphError(f"graph {graph.name!r}: output %{out} is never made")
    return graph


def check_value(value: Value) -> None:
    """Raise GraphError when a value's data or quantisation contradicts its type."""
    where = f"%{value.id} '{value.name}'"
    _check_type(where, value.type)
    quant = value.type.quant
    data: object = value.data
    if value.type.has_rank and len(value.type.shape) > MOST_RANK:
        rank = len(value.type.shape)
        raise GraphError(f"{where} has {rank} dimensions, the limit is {MOST_RANK}")
    if data is not None and not isinstance(data, np.ndarray):
        raise GraphError(f"{where}: its data is a {type(data).__name__}, not an array")
    if value.data is not None:
        if value.data.shape != value.type.shape:
            raise GraphError(f"{where}: data has shape {value.data.shape}, type is {value.type}")
        if value.data.dtype != numpy_dtype(value.type.dtype):
            raise GraphError(f"{where}: data is {value.data.dtype}, type is {value.type}")
    if quant is not None:
        _check_quant(where, value.type, quant)


def _check_type(where: str, type: TensorType) -> None:
    if not isinstance(type, TensorType):
        raise GraphError(f"{where}: the type is {type!r}, expected a TensorType")
    if not isinstance(type.shape, tuple):
        raise GraphError(f"{where}: the shape is {type.shape!r}, expected a tuple of dimensions")
    for dim in () if type.shape == ANY_RANK else type.shape:
        if not isinstance(dim, str) and (not isinstance(dim, int) or dim < 0):
            raise GraphError(f"{where}: dimension {dim!r}, expected 0 or more, or a symbol")
        if isinstance(dim, str) and dim != UNKNOWN and not is_expression(dim):
            raise GraphError(
                f"{where}: dimension {dim!r}, expected a symbol",
                fix=f"a name of letters, digits and _, such as {symbol_name(dim)!r}",
            )
    extent = math.prod(dim for dim in type.shape if isinstance(dim, int) and dim)
    if extent * numpy_dtype(type.dtype).itemsize > _MOST_BYTES:
        raise GraphError(f"{where}: {type} is larger than any array, whatever dimension is 0")
    if type.quant is not None and not isinstance(type.quant, Quant):
        raise GraphError(f"{where}: the quantisation is {type.quant!r}, expected a Quant")


def _check_quant(where: str, type: TensorType, quant: Quant) -> None:
    if type.dtype not in INTS:
        raise GraphError(f"{where}: quantised values are integers, not {type}")
    if not quant.scales or len(quant.scales) != len(quant.zero_points):
        counts = f"{len(quant.scales)} scales and {len(quant.zero_points)} zero points"
        raise GraphError(f"{where}: {counts} in {type}")
    if not all(0 < scale < float("inf") for scale in quant.scales):
        raise GraphError(f"{where}: a scale is not a positive finite number in {type}")
    least, most = ml_dtypes.iinfo(type.dtype).min, ml_dtypes.iinfo(type.dtype).max
    for zero_point in quant.zero_points:
        if not least <= zero_point <= most:
            raise GraphError(f"{where}: zero point {zero_point} is outside {type.dtype}")
    if quant.axis is None:
        if len(quant.scales) != 1:
            raise GraphError(f"{where}: {len(quant.scales)} scales but no axis in {type}")
        return
    if not type.has_rank:
        return
    if not 0 <= quant.axis < len(type.shape):
        raise GraphError(f"{where}: quantisation axis {quant.axis} of {type}")
    if type.shape[quant.axis] != len(quant.scales):
        raise GraphError(f"{where}: {len(quant.scales)} scales along axis {quant.axis} of {type}")


def _agrees(stored: TensorType, inferred: TensorType) -> bool:
    """Whether a stored type is the inferred one, or says more of dimensions that are not numbers.

    A pass that follows shape tensors (passes/symbolic_shapes.py) knows more than one node tells.
    """
    if stored.without_quant() == inferred.without_quant():
        return True
    if stored.dtype != inferred.dtype:
        return False
    if not inferred.has_rank:
        return True
    if not stored.has_rank or len(stored.shape) != len(inferred.shape):
        return False
    pairs = zip(stored.shape, inferred.shape, strict=True)
    return all(
        mine == other or other == UNKNOWN or (isinstance(mine, str) and isinstance(other, str))
        for mine, other in pairs
    )


def _check_node(graph: Graph, node: Node, defined: set[int], seen: set[int]) -> None:
    if node.id in seen:
        raise GraphError(f"{node.label}: a node with this id came before")
    for value in node.used:
        if value not in defined:
            raise GraphError(f"{node.label}: input %{value} is used before it is made")
    for other in node.after:
        if other not in seen:
            raise GraphError(f"{node.label}: waits for node #{other}, which does not come before")
    op = get_op(node.op)
    if op.bind(node.attrs) != dict(node.attrs):
        raise InternalError(f"{node.label}: attributes are not in normal form: {dict(node.attrs)}")
    values = [None if i is None else graph.values[i] for i in node.inputs]
    types = infer_types(op, values, node.attrs, len(node.outputs), node.label)
    for out, inferred in zip(node.outputs, types, strict=True):
        if out in defined:
            raise GraphError(f"{node.label}: output %{out} is already made")
        stored = graph.values[out].type
        if not _agrees(stored, inferred):
            raise GraphError(f"{node.label}: output %{out} is {stored}, the op makes {inferred}")
        defined.add(out)
    seen.add(node.id)
