"""Graphs of branches alone: the host chooses one, and its body has a program for every shape.

Exporters put a decoder with a past and one without into a single file, as the branches of an `if`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trireme.ir.bind_shapes import sizes_of
from trireme.ir.dims import substituted
from trireme.ir.graph import Graph, Node, TensorType
from trireme.ops.repeats import bodies_of, repeat_of
from trireme.passes.bodies import body_of
from trireme.runtime.dynamic.stage import has_little_work
from trireme.support.errors import TriremeError


def only_chooses(graph: Graph, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether all nodes are branches on inputs of the graph, and one of the bodies has much work.

    Bodies with little work are compiled for each shape with the graph: numpy would run them.
    Errors: ShapeError, if the shapes do not fit the graph
    """
    given = {*graph.inputs, *(v.id for v in graph.values.values() if v.is_constant)}
    nodes = graph.nodes
    if not nodes or not all(_is_choice(node) and given.issuperset(node.used) for node in nodes):
        return False
    sizes = sizes_of(graph, shapes)

    def bound(value: int) -> TensorType:
        type = graph.type(value)
        dims = tuple(substituted(dim, sizes) for dim in type.shape)
        return TensorType(dims, type.dtype, type.quant)

    return any(_has_much_work(node, [bound(value) for value in node.used[1:]]) for node in nodes)


def has_branches(graph: Graph) -> bool:
    """Whether a node chooses one of several bodies: one that is not taken may refuse any shapes."""
    return any(map(_is_choice, graph.nodes))


def _is_choice(node: Node) -> bool:
    return bool(bodies_of(node)) and repeat_of(node.attrs) is None and not node.after


def _has_much_work(node: Node, given: Sequence[TensorType]) -> bool:
    for body in bodies_of(node).values():
        try:
            if not has_little_work(body_of(body, given)):
                return True
        except TriremeError:  # a branch that is not taken may refuse the shapes
            continue
    return False
