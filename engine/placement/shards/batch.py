"""Data parallelism begins with a batch: a graph of one input made a graph of many.

The rules that tell the needs of a stretch of a result also tell those of a longer result. Along the
first axis every node must keep its elements apart. A node that mixes them (a sum over the batch, a
reshape across it) is refused with its sentence. Each element of the batch is computed as the graph
alone
would: the references give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trireme.ir.effects import uses_state
from trireme.ir.graph import Graph, Node, TensorType, Value
from trireme.ir.op import get_op
from trireme.ir.verify import check, infer_types
from trireme.placement.shards.rules import Piece, Span, refusal, stretched
from trireme.support.errors import PlacementError


def batched(graph: Graph, count: int) -> Graph:
    """Return the graph with `count` where the first axis of its inputs was 1.

    Shapes: every input [1,...] -> [count,...], every output that depends on one too
    Errors: PlacementError, naming the node that takes no batch, or the input not [1,...]
    """
    if count < 1:
        raise PlacementError(f"a batch of {count}: expected at least 1")
    for value in graph.input_values():
        if not value.shape or value.shape[0] != 1:
            raise PlacementError(
                f"input '{value.name}' is {value.type}: only a first axis of 1 can become a batch"
            )
    return graph if count == 1 else _Batching(graph, count).finish()


class _Batching:
    def __init__(self, graph: Graph, count: int) -> None:
        self.graph, self.count = graph, count
        self.values = dict(graph.values)
        self.many: set[int] = set()
        for value in graph.inputs:
            self._grow(value, graph.type(value))
        self.nodes = [self._node(node) for node in graph.nodes]

    def _grow(self, value: int, type: TensorType) -> None:
        shape = (self.count, *type.shape[1:])
        self.values[value] = replace(self.values[value], type=replace(type, shape=shape))
        self.many.add(value)

    def _node(self, node: Node) -> Node:
        if self.many.isdisjoint(node.used):
            return node
        if uses_state(node) or get_op(node.op).is_host_only:
            raise refusal(node, "what it keeps or runs inside is of one element")
        for value in node.outputs:
            shape = self.graph.type(value).shape
            if not shape or shape[0] != 1:
                raise refusal(node, f"its output is {self.graph.type(value)}, not a batch of one")
        made = stretched(self.graph, node, Span(0, 0, self.count))
        inputs = [self._input(node, i, made) for i in range(len(node.inputs))]
        node = replace(node, inputs=tuple(inputs), attrs=_bound(node, made.changed))
        values = [None if i is None else self.values[i] for i in node.inputs]
        types = infer_types(get_op(node.op), values, node.attrs, len(node.outputs), node.label)
        for value, type in zip(node.outputs, types, strict=True):
            if not type.shape or type.shape[0] != self.count:
                raise refusal(node, "it does not keep the batch apart")
            self._grow(value, self.graph.type(value))
        return node

    def _input(self, node: Node, position: int, made: Piece) -> int | None:
        """Return the input of a batched node: itself, grown or not, or the constant in its place.

        A batched input of one element along the first axis looks broadcast to the rule, and is not.
        """
        value, need = node.inputs[position], made.inputs[position]
        if isinstance(need, np.ndarray):
            made_id = max(self.values) + 1
            need.flags.writeable = False
            type = TensorType(need.shape, str(need.dtype))
            self.values[made_id] = Value(made_id, f"batch_{made_id}", type, need)
            return made_id
        if value is None:
            return None
        if value in self.many:
            rank = len(self.graph.type(value).shape)
            alike = rank == len(self.graph.type(node.outputs[0]).shape)
            if need is None and not alike or need is not None and need.axis != 0:
                raise refusal(node, "it moves the batch to another axis")
        elif need is not None:
            raise refusal(node, f"'{self.values[value].name}' holds one element of the batch")
        return value

    def finish(self) -> Graph:
        values = self._used()
        return check(replace(self.graph, nodes=tuple(self.nodes), values=values))

    def _used(self) -> Mapping[int, Value]:
        used = {i for node in self.nodes for i in (*node.used, *node.outputs)}
        used.update(self.graph.inputs, self.graph.outputs)
        return {i: value for i, value in self.values.items() if i in used}


def _bound(node: Node, changed: Mapping[str, Any]) -> dict[str, Any]:
    return get_op(node.op).bind({**node.attrs, **changed})
