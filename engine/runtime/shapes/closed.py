"""A graph with symbols at one size of each: types inferred, and what shapes decide computed.

Every dimension of the graph is a number or an expression of the inputs' symbols. No pass runs and
nothing is searched, so a graph of a hundred nodes takes one or two milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.ir.bind_shapes import sizes_of, value_at
from trireme.ir.contents import decided_by_shapes
from trireme.ir.graph import UNKNOWN, Graph, Node, TensorType, Value
from trireme.ir.interpreter import evaluate
from trireme.ir.op import get_op
from trireme.ir.verify import infer_types
from trireme.ops.repeats import repeat_of
from trireme.passes.bodies import narrowed
from trireme.support.dtypes import Array
from trireme.support.errors import ShapeError


def why_not_closed(graph: Graph) -> str:
    """Say which value has a shape that does not follow from the inputs' shapes; "" if none has."""
    for value in graph.values.values():
        if not value.type.has_rank:
            return f"the rank of '{value.name}' is known only in a run"
        if UNKNOWN in value.shape:
            return f"the shape of '{value.name}' {value.type} does not follow from the inputs'"
        if value.dtype == "string":
            return f"'{value.name}' holds strings"
    for node in graph.nodes:
        if node.op == "expand" and _may_repeat(graph, node):
            return f"{node.label} repeats an axis in those runs where its size is 1"
    return ""


def _may_repeat(graph: Graph, node: Node) -> bool:
    """Whether an axis of an expand is a symbol before, and a number above 1 after."""
    before, after = graph.type(node.used[0]).shape, graph.type(node.outputs[0]).shape
    pairs = zip(before, after[len(after) - len(before) :], strict=True)
    return any(isinstance(dim, str) and isinstance(made, int) and made > 1 for dim, made in pairs)


class ClosedGraph:
    """A graph all of whose shapes follow from the sizes of its inputs' symbols."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._decided = decided_by_shapes(graph)

    def at(self, shapes: Sequence[Sequence[int]]) -> Graph:
        """Return the graph for these shapes of the inputs; node and value ids stay.

        Errors: ShapeError, if the shapes do not fit the inputs, or a node refuses them
        """
        sizes = sizes_of(self.graph, shapes)
        values = dict(self.graph.values)
        for value in self.graph.input_values():
            values[value.id] = value_at(value, sizes)
        now = Graph(self.graph.name, (), (), (), values)
        nodes = []
        for node in self.graph.nodes:
            if node.outputs[0] in self._decided:
                _compute(now, node, values)
            else:
                _infer(node, values, sizes)
                nodes.append(node)
        return replace(self.graph, nodes=tuple(nodes), values=values, symbols={})


def _compute(now: Graph, node: Node, values: dict[int, Value]) -> None:
    """Make the outputs of a node that shapes decide constants."""
    if node.op in ("shape", "size"):  # their input may be of a type alone
        dims = values[node.used[0]].type.dims
        arrays: Sequence[Array] = [_shape(node, dims)]
    else:
        arrays = evaluate(now, node, [None if i is None else values[i].data for i in node.inputs])
    for out, array in zip(node.outputs, arrays, strict=True):
        kept = values[out]
        type = TensorType(array.shape, kept.dtype, kept.quant)
        values[out] = Value(out, kept.name, type, array)


def _shape(node: Node, dims: tuple[int, ...]) -> Array:
    if node.op == "size":
        return np.array(int(np.prod(dims)), np.int64)
    return np.array(dims[slice(node.attrs["start"], node.attrs["end"])], np.int64)


def _infer(node: Node, values: dict[int, Value], sizes: Mapping[str, int]) -> None:
    inputs = [None if i is None else values[i] for i in node.inputs]
    types = _types(node, inputs, node.attrs)
    if not all(type.is_static for type in types):  # the types of a body have the symbols
        types = _body_types(node, inputs) or types
    for out, type in zip(node.outputs, types, strict=True):
        kept = values[out]
        if not type.is_static:
            type = value_at(kept, sizes).type
        if not type.is_static:
            raise ShapeError(f"{node.label}: the shape of '{kept.name}' is {type} at these sizes")
        values[out] = Value(out, kept.name, replace(type, quant=kept.quant))


def _types(
    node: Node, inputs: Sequence[Value | None], attrs: Mapping[str, Any]
) -> Sequence[TensorType]:
    return infer_types(get_op(node.op), inputs, attrs, len(node.outputs), node.label)


def _body_types(node: Node, inputs: Sequence[Value | None]) -> Sequence[TensorType]:
    """Return the types of control flow at its operands' sizes; empty where a body refuses them."""
    form = repeat_of(node.attrs)
    operands = inputs[1 if form is None else form.first :]
    try:
        given = [value.type for value in operands if value is not None]
        return _types(node, inputs, narrowed(node.attrs, given))
    except ShapeError:  # such as a branch that is never taken
        return ()
