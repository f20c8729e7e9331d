"""move_chains: successive reshapes and transposes become one transpose between two reshapes.

Every such chain permutes factors of its first axes. The pass follows the factors through the chain,
and splits a factor that a reshape cuts. Then it joins neighbours that stay together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.ir.dims import multiply
from trireme.ir.graph import UNKNOWN, Dim, Graph, Node
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.passes.cleanup import perm_of


def move_chains(graph: Graph) -> Rewritten:
    """Make one transpose of several with reshapes between them."""
    rules = rules_by_op((["reshape"], whole_axes), (["reshape", "transpose"], one_transpose))
    return apply(graph, rules)


def whole_axes(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """A transpose of axes that a reshape joined and another parts again -> transpose.

    Sizes may be symbols: [b,8,s,32] -> [8 b,s,32] -> [8 b,32,s] -> [b,8,32,s].
    """
    turn = g.only_for(root.used[0], root, "transpose")
    join = g.made_by(turn.used[0], root, "reshape") if turn else None
    if turn is None or join is None:
        return None
    x, joined, out = (g.type(v) for v in (join.used[0], turn.used[0], root.outputs[0]))
    runs = _joins(x.shape, joined.shape)
    if runs is None or x.quant is not None or out.quant is not None:
        return None
    perm = [axis for place in perm_of(turn, len(runs)) for axis in runs[place]]
    if tuple(x.shape[axis] for axis in perm) != out.shape:
        return None
    return (g.add("transpose", [join.used[0]], {"perm": tuple(perm)}, [join, turn, root]),)


def _joins(dims: Sequence[Dim], joined: Sequence[Dim]) -> list[list[int]] | None:
    """Return the axes of `dims` that each joined dimension is the product of; None for others."""
    runs: list[list[int]] = []
    axis = 0
    for wanted in joined:
        run, size = [axis], dims[axis] if axis < len(dims) else UNKNOWN
        while size not in (wanted, UNKNOWN) and run[-1] + 1 < len(dims):
            run.append(run[-1] + 1)
            size = multiply(size, dims[run[-1]])
        if size != wanted or size == UNKNOWN:
            return None
        runs.append(run)
        axis = run[-1] + 1
    return runs if axis == len(dims) else None


def one_transpose(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """reshape and transpose, twice or more in any order -> reshape, transpose, reshape."""
    chain = _chain(g, root)
    if sum(node.op == "transpose" for node in chain) < 2:
        return None
    source, out = g.type(chain[0].used[0]), g.type(root.outputs[0])
    factors = AxisFactors(source.dims)
    for node in chain:
        if node.op == "transpose":
            factors.transpose(perm_of(node, len(g.type(node.used[0]).shape)))
        elif not factors.reshape(g.type(node.outputs[0]).dims):
            return None
    sizes, perm = factors.joined()
    value = g.add("reshape", [chain[0].used[0], _shape(g, sizes)], {}, chain, source.quant)
    if perm != sorted(perm):
        value = g.add("transpose", [value], {"perm": tuple(perm)}, chain, source.quant)
    return (g.add("reshape", [value, _shape(g, out.dims)], {}, chain, source.quant),)


def _shape(g: GraphRewriter, dims: Sequence[int]) -> int:
    return g.constant(np.array(dims, np.int64))


def _chain(g: GraphRewriter, root: Node) -> list[Node]:
    """Return the reshapes and transposes, in order, that lead to the root alone."""
    chain: list[Node] = []
    node: Node | None = root
    while node is not None and _is_plain(g, node):
        chain.append(node)
        node = g.only_for(node.used[0], root, "reshape", "transpose")
    return chain[::-1]


def _is_plain(g: GraphRewriter, node: Node) -> bool:
    """Whether all sizes are known, not zero, and the quantisation is the same everywhere."""
    x, y = g.type(node.used[0]), g.type(node.outputs[0])
    if not (x.is_static and y.is_static) or 0 in y.dims or x.quant != y.quant:
        return False
    return x.quant is None or x.quant.axis is None


class AxisFactors:
    """The axes of a value, as lists of factors of the axes of its source value."""

    def __init__(self, dims: Sequence[int]) -> None:
        self.source = list(range(len(dims)))
        self.sizes = dict(enumerate(dims))
        self.axes = [[factor] for factor in self.source]

    def transpose(self, perm: Sequence[int]) -> None:
        """Follow a transpose."""
        self.axes = [self.axes[i] for i in perm]

    def reshape(self, dims: Sequence[int]) -> bool:
        """Follow a reshape; return whether the new axes are made of whole factors."""
        left = [factor for axis in self.axes for factor in axis if self.sizes[factor] != 1][::-1]
        axes: list[list[int]] = []
        for dim in dims:
            axis: list[int] = []
            while dim > 1:
                if not left:
                    return False
                factor = left.pop()
                size = self.sizes[factor]
                if dim % size == 0:
                    dim //= size
                elif size % dim == 0:
                    left.append(self._split(factor, dim))
                    dim = 1
                else:
                    return False
                axis.append(factor)
            axes.append(axis)
        self.axes = axes
        return not left

    def _split(self, factor: int, first: int) -> int:
        """Split a factor in two, the first of that size; return the second."""
        rest = len(self.sizes)
        self.sizes[rest] = self.sizes[factor] // first
        self.sizes[factor] = first
        self.source.insert(self.source.index(factor) + 1, rest)
        return rest

    def joined(self) -> tuple[list[int], list[int]]:
        """Return the sizes of the source's factors and the perm of them, neighbours joined."""
        order = [factor for axis in self.axes for factor in axis if self.sizes[factor] != 1]
        place = {f: i for i, f in enumerate(f for f in self.source if self.sizes[f] != 1)}
        runs: list[list[int]] = []
        for factor in order:
            if runs and place[runs[-1][-1]] + 1 == place[factor]:
                runs[-1].append(factor)
            else:
                runs.append([factor])
        by_source = sorted(runs, key=lambda run: place[run[0]])
        sizes = [int(np.prod([self.sizes[f] for f in run])) for run in by_source]
        return sizes, [by_source.index(run) for run in runs]
