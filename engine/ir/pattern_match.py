"""Patterns of nodes written as equations, and their solutions in a graph.

    {"levels": ("round", ("mul", "x", "inverse")), "inverse": ("div", 127.0, "most")}

A name stands for a value, a number for a constant of one element, a tuple for a node and what it
reads. A list gives alternatives. Operands of ops that commute may come in either order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import permutations

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.support.records import dataclass

Pattern = str | float | tuple["Pattern", ...] | list["Pattern"]


@dataclass(frozen=True)
class Solution:
    """The values that names stand for, and the nodes that make them, by id."""

    values: Mapping[str, int]
    nodes: Mapping[int, Node] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.values[name]


def solve(graph: Graph, equations: Mapping[str, Pattern], solution: Solution) -> Iterator[Solution]:
    """Yield the solutions of equations, each name on a left side known when its turn comes."""
    if not equations:
        yield solution
        return
    name = next(iter(equations))
    rest = {key: pattern for key, pattern in equations.items() if key != name}
    for found in _unify(graph, solution[name], equations[name], solution):
        yield from solve(graph, rest, found)


def _unify(graph: Graph, value: int, pattern: Pattern, known: Solution) -> Iterator[Solution]:
    if isinstance(pattern, list):
        for one in pattern:
            yield from _unify(graph, value, one, known)
    elif isinstance(pattern, str):
        if known.values.get(pattern, value) == value:
            yield Solution({**known.values, pattern: value}, known.nodes)
    elif isinstance(pattern, float):
        if number_of(graph, value) == np.float32(pattern):
            yield known
    else:
        yield from _unify_node(graph, value, pattern, known)


def _unify_node(
    graph: Graph, value: int, pattern: tuple[Pattern, ...], known: Solution
) -> Iterator[Solution]:
    op, *parts = pattern
    node = graph.producer(value)
    if node is None or node.op != op or len(node.used) != len(parts):
        return
    if node.attrs.get("activation"):
        return
    start = Solution(known.values, {**known.nodes, node.id: node})
    orders = permutations(node.used) if get_op(op).commutes else [node.used]
    for order in orders:
        yield from _unify_all(graph, list(zip(order, parts, strict=True)), start)


def _unify_all(
    graph: Graph, pairs: list[tuple[int, Pattern]], known: Solution
) -> Iterator[Solution]:
    if not pairs:
        yield known
        return
    (value, pattern), *rest = pairs
    for found in _unify(graph, value, pattern, known):
        yield from _unify_all(graph, rest, found)


def number_of(graph: Graph, value: int) -> np.float32 | None:
    """Return a constant of one element, None for other values."""
    data = graph.values[value].data
    return None if data is None or data.size != 1 else np.float32(data.reshape(-1)[0])
