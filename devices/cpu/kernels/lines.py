"""Images of one spatial axis as images of one line, for kernels that know two axes.

Nothing is copied: the node is seen in a graph of its own, in which its tensors have another shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trireme.devices.cpu.kernels.lowering import Context, Rule, Step
from trireme.ir.graph import Graph, Node, TensorType, Value

_FRONT = {"strides": (1,), "dilations": (1,), "kernel": (1,), "output_padding": (0,)}
"""Attributes of the axis in front of the only one."""


def for_lines(rule: Rule) -> Rule:
    """Return the rule for images of two axes as one for images of one axis too."""

    def reason(graph: Graph, node: Node) -> str | None:
        return rule.reason(*as_image(graph, node))

    def lower(context: Context, node: Node) -> Sequence[Step]:
        graph, node = as_image(context.graph, node)
        return rule.lower(replace(context, graph=graph), node)

    return Rule(reason, lower)


def as_image(graph: Graph, node: Node) -> tuple[Graph, Node]:
    """Return a graph and node of two spatial axes; those given, unless the node has one."""
    if len(graph.type(node.used[0]).shape) != 3:
        return graph, node
    values = {i: _widened(graph.values[i]) for i in (*node.used, *node.outputs)}
    wide = replace(node, attrs={name: _wide(name, value) for name, value in node.attrs.items()})
    flowing = tuple(i for i in dict.fromkeys(node.used) if not values[i].is_constant)
    return Graph(graph.name, flowing, node.outputs, (wide,), values), wide


def _wide(name: str, value: Any) -> Any:
    """Return an attribute for two axes."""
    if name == "pads":
        return (0, value[0], 0, value[1])
    front = _FRONT.get(name)
    return value if front is None or value is None else (*front, *value)


def _widened(value: Value) -> Value:
    """Return a value with an axis of 1 in front of its only spatial one."""
    type, data = value.type, value.data
    if len(type.shape) != 3:
        return value
    shape = (type.shape[0], 1, *type.shape[1:])
    quant = type.quant
    if quant is not None and quant.axis:
        quant = replace(quant, axis=quant.axis + 1)
    made = TensorType(shape, type.dtype, quant)
    if type.is_static:  # `int` would end the recording of sizes (compile/sized_values.py)
        made.__dict__["dims"] = (type.dims[0], 1, *type.dims[1:])
    return replace(value, type=made, data=None if data is None else data.reshape(made.dims))
