"""Graphs that shapes choose between: one for each rank of an input, one for each branch taken.

The rank of an input of a later stage is known when its array is there. An `if` whose condition
follows from shapes takes one branch at each set of shapes. Each variant is an open graph of its
own, so that a program for every shape serves the shapes that choose it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from trireme.ir.any_rank import has_late_rank
from trireme.ir.bind_shapes import retyped, sizes_of, value_at
from trireme.ir.contents import decided_by_shapes
from trireme.ir.graph import UNKNOWN, Graph, Node, TensorType, Value
from trireme.runtime.shapes.closed import ClosedGraph, why_not_closed
from trireme.runtime.shapes.stage import part_of

Shapes = Sequence[Sequence[int]]
Made = TypeVar("Made")
MOST_SHAPES = 1024
"""Shapes whose variant is remembered."""


class Variants(Protocol):
    """The graphs that shapes of a graph's inputs choose between."""

    def key(self, shapes: Shapes) -> Hashable:
        """Return the key of the variant for these shapes.

        Errors: ShapeError, if they do not fit the graph
        """

    def graph(self, shapes: Shapes) -> Graph:
        """Return the variant for these shapes, which has the same inputs and outputs."""


class Chosen(Generic[Made]):
    """The variants that shapes of a graph's inputs chose so far, and what was made of each.

    make: makes it of a variant
    """

    def __init__(self, graph: Graph, make: Callable[[Graph], Made]) -> None:
        self._variants, self._make = variants_of(graph), make
        self._keys: dict[tuple[tuple[int, ...], ...], Hashable] = {}
        self._made: dict[Hashable, Made] = {}

    @property
    def has_variants(self) -> bool:
        """Whether shapes choose between several graphs."""
        return self._variants is not None

    def at(self, shapes: tuple[tuple[int, ...], ...]) -> Made | None:
        """Return what was made of the variant for these shapes; None where there is one graph.

        Errors: ShapeError, if they do not fit the graph
        """
        if self._variants is None:
            return None
        if shapes not in self._keys:
            if len(self._keys) >= MOST_SHAPES:
                self._keys.clear()
            self._keys[shapes] = self._variants.key(shapes)
        key = self._keys[shapes]
        if key not in self._made:
            self._made[key] = self._make(self._variants.graph(shapes))
        return self._made[key]


def variants_of(graph: Graph) -> Variants | None:
    """Return the graphs that shapes choose between; None where there is one graph."""
    if has_late_rank(list(graph.input_values())):
        return RankVariants(graph)
    decided = decided_by_shapes(graph)
    for node in graph.nodes:
        if node.op == "if" and node.used[0] in decided:
            condition = _condition(graph, node.used[0])
            if not why_not_closed(condition):
                return BranchVariants(graph, node, condition)
    return None


class RankVariants:
    """A graph with inputs of unknown rank: a variant for each of their ranks."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._late = [k for k, v in enumerate(graph.input_values()) if not v.type.has_rank]

    def key(self, shapes: Shapes) -> Hashable:
        """Return the ranks of the inputs whose rank was unknown."""
        return tuple(len(shapes[k]) for k in self._late)

    def graph(self, shapes: Shapes) -> Graph:
        """Return the graph with the inputs' ranks, their dimensions unknown."""
        types = [value.type for value in self._graph.input_values()]
        for k in self._late:
            types[k] = replace(types[k], shape=(UNKNOWN,) * len(shapes[k]))
        return retyped(self._graph, types)


class BranchVariants:
    """A graph with an `if` that shapes decide: a variant for each branch.

    condition: the nodes that compute the condition from shapes
    """

    def __init__(self, graph: Graph, node: Node, condition: Graph) -> None:
        self._graph, self._node, self._condition = graph, node, condition
        self._closed = ClosedGraph(condition)

    def key(self, shapes: Shapes) -> bool:
        """Return whether the condition is true."""
        sizes = sizes_of(self._graph, shapes)
        dims = [value_at(value, sizes).type.dims for value in self._condition.input_values()]
        data = self._closed.at(dims).values[self._condition.outputs[0]].data
        return data is not None and bool(data.reshape(-1)[0])

    def graph(self, shapes: Shapes) -> Graph:
        """Return the graph with a constant condition, by which a pass takes the branch."""
        known = max(self._graph.values) + 1
        data = np.array(self.key(shapes))
        values = {**self._graph.values, known: Value(known, "taken", TensorType((), "bool"), data)}
        old = self._node
        new = replace(old, inputs=(known, *old.inputs[1:]))
        nodes = tuple(new if node is old else node for node in self._graph.nodes)
        return replace(self._graph, values=values, nodes=nodes)


def _condition(graph: Graph, condition: int) -> Graph:
    """Return the nodes that compute a condition which shapes decide, as a graph."""
    needed, nodes = {condition}, list[Node]()
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            nodes.append(node)
            needed |= set() if node.op in ("shape", "size") else set(node.used)
    return part_of(graph, "condition", nodes[::-1], [condition])
