"""Values that shapes decide whose contents at large sizes begin with those at smaller sizes.

The positions 0, 1, 2 .. of a longer past begin with those of a shorter one, along every axis. So
they are computed for more sizes at once, and each size takes its part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from trireme.ir.graph import UNKNOWN, Dim, Graph, Node
from trireme.ir.op import get_op


def find_prefixed(
    graph: Graph, ids: Collection[int], symbols: Mapping[int, frozenset[str]]
) -> frozenset[int]:
    """Return those decided values that are such.

    ids: the decided values; symbols: those that decide each
    """
    found: set[int] = set()

    def is_known(value: int) -> bool:
        own = symbols.get(value)
        return graph.values[value].is_constant or value in found or own == frozenset()

    for node in graph.nodes:
        if len(node.outputs) == 1 and node.outputs[0] in ids and _keeps(graph, node, is_known):
            found.add(node.outputs[0])
    return frozenset(found)


def _keeps(graph: Graph, node: Node, is_known: Callable[[int], bool]) -> bool:
    """Whether the result of a node begins so, given the inputs that do."""
    op, made = get_op(node.op), graph.type(node.outputs[0]).shape
    if UNKNOWN in made or op.random or op.effect:
        return False
    if node.op == "range":  # its limit only says how long it is
        start, _, delta = node.used
        return graph.values[start].is_constant and graph.values[delta].is_constant
    first = node.used[0]
    shape = graph.type(first).shape
    if op.alias:
        is_same = graph.type(first).dtype == graph.type(node.outputs[0]).dtype
        return is_same and is_known(first) and _long(shape) == _long(made)
    if op.elementwise:
        return all(is_known(v) and _agrees(graph.type(v).shape, made) for v in node.used)
    does = None if op.axes is None else op.axes.does
    if does == "repeats":
        return is_known(first) and _agrees(shape, made)
    if does == "joins":
        axis = node.attrs["axis"] % len(made)
        dims = [graph.type(v).shape[axis] for v in node.used]
        return all(isinstance(dim, int) for dim in dims) and all(map(is_known, node.used))
    return False


def _long(shape: Sequence[Dim]) -> list[Dim]:
    """Return the axes that have more than one element at some size."""
    return [dim for dim in shape if dim != 1]


def _agrees(shape: Sequence[Dim], made: Sequence[Dim]) -> bool:
    """Whether each axis of an input is an axis of the result, or one element that is repeated."""
    if len(shape) > len(made):
        return False
    ends = zip(shape, made[len(made) - len(shape) :], strict=True)
    return all(dim in (1, end) for dim, end in ends)
