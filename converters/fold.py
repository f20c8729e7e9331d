"""Fold known values during conversion: small constants, and shape arithmetic on open dimensions.

Only small tensors are evaluated here, so that shapes, axes and pads become constants before a rule
reads them. The constant-folding pass does the rest. Evaluation uses the op's own reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.contents import FOLLOWED, as_target, followed
from trireme.ir.graph import Dim, Graph, Quant, Value
from trireme.ir.interpreter import interpret
from trireme.ir.op import call_of, get_op
from trireme.ir.verify import infer_types
from trireme.support.dtypes import Array, numpy_dtype

MOST_ELEMENTS = 1 << 16
"""The most elements of a tensor that folding makes or reads."""
MOST_FLOPS = 1 << 22
_KEPT = ("dequantize", "dequantize_linear")
"""Ops that are not folded: a pass makes types of them."""

Dims = tuple[Dim, ...]


class FoldingBuilder(GraphBuilder):
    """A builder that computes small integers, such as shapes, instead of adding their nodes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._dims: dict[int, Dims] = {}

    def add_node(
        self,
        op: str,
        inputs: Sequence[int | None],
        attrs: Mapping[str, Any],
        *,
        outputs: int = 1,
        names: Sequence[str] = (),
        quants: Sequence[Quant | None] = (),
        source: str = "",
        pin: str | None = None,
        after: Sequence[int] = (),
    ) -> tuple[int, ...]:
        """Add a node, or constants where its outputs are integers that are known now."""
        values = [None if i is None else self.values[i] for i in inputs]
        plain = pin is None and not after and not any(quants)
        folded = self._folded(op, values, attrs, outputs) if plain else None
        if folded is not None:
            named = [*names, *[f"{op}_folded"] * (outputs - len(names))]
            return tuple(map(self.constant, named, folded))
        if op == "reshape" and len(inputs) == 2:
            inputs, attrs = self._to_known_shape(inputs, attrs)
        made = super().add_node(
            op,
            inputs,
            attrs,
            outputs=outputs,
            names=names,
            quants=quants,
            source=source,
            pin=pin,
            after=after,
        )
        if op == "shape" and inputs[0] is not None and self.type(inputs[0]).has_rank:
            self._dims[made[0]] = _part(self.type(inputs[0]).shape, attrs)
        elif plain and made:
            elements = fold_dims(values, op, get_op(op).bind(attrs), self._dims)
            if elements is not None and elements.shape == self.type(made[0]).shape:
                self._dims[made[0]] = tuple(elements.reshape(-1))
        return made

    def _to_known_shape(
        self, inputs: Sequence[int | None], attrs: Mapping[str, Any]
    ) -> tuple[Sequence[int | None], Mapping[str, Any]]:
        """Return a reshape's inputs and attributes, with a constant shape where one is known."""
        x, shape = inputs
        dims = None if shape is None else self._dims.get(shape)
        if x is None or dims is None or 0 in dims:
            return inputs, attrs
        target = as_target(list(dims), self.type(x))
        if target is None:
            return inputs, attrs
        return [x, self.constant("shape", target)], {"allowzero": 0}

    def known(self, value: int) -> Dims | None:
        """Return the elements of a value that follows from shapes, numbers or symbols."""
        return self._dims.get(value)

    def _folded(
        self, op: str, values: Sequence[Value | None], attrs: Mapping[str, Any], outputs: int
    ) -> list[Array] | None:
        """Return the outputs of a node on integers, where they are known now."""
        first = values[0] if values else None
        if first is None:
            return None
        if op == "shape" and first.type.has_rank:
            dims = _part(first.shape, attrs)
            return [np.array(dims, np.int64)] if all(isinstance(d, int) for d in dims) else None
        if any(v is not None and (v.dtype not in FOLLOWED or v.type.quant) for v in values):
            return None
        found = fold(values, op, attrs, outputs)
        if found is None and outputs == 1 and get_op(op).bounded and not get_op(op).has_body:
            bound = get_op(op).bind(attrs)
            elements = fold_dims(values, op, bound, self._dims)
            if elements is not None and all(isinstance(d, int) for d in elements.reshape(-1)):
                (type, *_) = infer_types(get_op(op), values, bound, outputs, op)
                return [elements.astype(numpy_dtype(type.dtype))]
        return found


def _part(dims: Dims, attrs: Mapping[str, Any]) -> Dims:
    """Return the dimensions that a `shape` node gives."""
    return dims[slice(attrs.get("start", 0), attrs.get("end"))]


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
    graph = Graph("fold", (), made, tuple(builder.nodes), builder.values)  # checked when added
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
