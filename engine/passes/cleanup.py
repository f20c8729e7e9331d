"""dead_code, common_subexpressions and simplify: remove nodes that change no result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import numpy as np

from trireme.ir.graph import Graph, Node, Value, digest, hashable
from trireme.ir.op import get_op
from trireme.ir.rewriter import GraphRewriter, Rule
from trireme.ir.rules import Rewritten, Roots, apply, rules_by_op
from trireme.passes.constants import is_repeatable
from trireme.support.dtypes import Array


def dead_code(graph: Graph) -> Rewritten:
    """Drop nodes without an effect whose outputs nothing reads."""
    draft = GraphRewriter(graph)
    draft.walk({})
    dropped = draft.drop_dead()
    unread = len(graph.values) - len(draft.read_values())
    if not dropped and not unread:
        return Rewritten(graph)
    counts = {"dead node": dropped, "unread constant": unread - dropped}
    return Rewritten(draft.finish(), Counter({k: n for k, n in counts.items() if n > 0}))


def common_subexpressions(graph: Graph) -> Rewritten:
    """Merge equal nodes: same op, inputs, attributes, types and pin."""
    seen = _SeenNodes()

    def same_work(g: GraphRewriter, node: Node) -> tuple[int, ...] | None:
        return seen.first_like(g, node) if is_repeatable(node.op) else None

    ops = sorted({node.op for node in graph.nodes})
    draft = GraphRewriter(graph)
    draft.walk(rules_by_op((ops, same_work)))
    if not draft.counts:
        return Rewritten(graph)
    return Rewritten(draft.finish(), draft.counts)


LARGE_BYTES = 1 << 20
"""The contents of constants beyond this size are not compared."""
_GLANCE_BYTES = 64
"""Of each end of a constant, before its contents are compared."""


class _SeenNodes:
    """Nodes by what they compute. Constants are read whole only where two nodes look alike."""

    def __init__(self) -> None:
        self._alike: dict[Hashable, list[tuple[tuple[int | None, ...], tuple[int, ...]]]] = {}
        self._digests: dict[int, Hashable] = {}
        self._glances: dict[int, Hashable] = {}

    def first_like(self, g: GraphRewriter, node: Node) -> tuple[int, ...] | None:
        """Return the outputs of an equal node before this one; None for the first of its kind."""
        types = tuple(g.type(i) for i in node.outputs)
        inputs = tuple(None if i is None else self._glance(g.values[i]) for i in node.inputs)
        key = (node.op, inputs, hashable(node.attrs), types, node.pin)
        others = self._alike.setdefault(key, [])
        for place, (theirs, outputs) in enumerate(others):
            if all(self._is_same(g, *pair) for pair in zip(theirs, node.inputs, strict=True)):
                if g.producer(outputs[0]) is None:  # dropped: nothing reads it any more
                    others[place] = (node.inputs, node.outputs)
                    return None
                return outputs
        others.append((node.inputs, node.outputs))
        return None

    def _glance(self, value: Value) -> Hashable:
        """Return what two equal values have in common: the id of one that a node computes."""
        if value.data is None:
            return value.id
        if value.id not in self._glances:
            self._glances[value.id] = (value.type, _glance(value.data))
        return self._glances[value.id]

    def _is_same(self, g: GraphRewriter, one: int | None, other: int | None) -> bool:
        """Whether two values that look alike are equal.

        Large constants are equal only when they are the same array. Reading all weights of a model
        to find two equal ones costs more than it saves.
        """
        if one == other or one is None or other is None:
            return True
        mine, theirs = g.values[one].data, g.values[other].data
        if mine is theirs or mine is None or theirs is None:
            return True
        if mine.nbytes > LARGE_BYTES:
            return False
        return self._digest(one, mine) == self._digest(other, theirs)

    def _digest(self, value: int, data: Array) -> Hashable:
        if value not in self._digests:
            self._digests[value] = digest(data)
        return self._digests[value]


def _glance(data: Array) -> Hashable:
    """Return bytes of both ends of an array."""
    if data.dtype == object or not data.flags.c_contiguous:
        return data.nbytes
    raw = data.reshape(-1).view(np.uint8)
    return raw[:_GLANCE_BYTES].tobytes(), raw[-_GLANCE_BYTES:].tobytes()


def simplify(graph: Graph) -> Rewritten:
    """Drop nodes that change nothing; join successive reshapes or transposes."""
    return apply(graph, rules_by_op(*SIMPLIFY))


def same_value(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """identity(x), or an op that returns its only input unchanged -> x."""
    if node.attrs.get("activation") or not len(node.used) == len(node.outputs) == 1:
        return None
    return (node.used[0],)


def same_type(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """An op that can only change the output's type, when the type stays -> x."""
    x, y = g.type(node.used[0]), g.type(node.outputs[0])
    return (node.used[0],) if x == y and x.is_static and len(node.outputs) == 1 else None


def same_dtype(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """cast(x) to the dtype it has -> x."""
    return (node.used[0],) if g.type(node.used[0]) == g.type(node.outputs[0]) else None


def view_to_reshape(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """squeeze, unsqueeze and flatten to a static shape -> reshape."""
    return _reshape(g, node.used[0], node)


def reshape_of_reshape(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """reshape(reshape(x)) -> reshape(x)."""
    first = g.made_by(node.used[0], node, "reshape")
    return _reshape(g, first.used[0], first, node) if first else None


def _reshape(g: GraphRewriter, x: int, *of: Node) -> tuple[int] | None:
    type = g.type(of[-1].outputs[0])
    if not type.is_static or 0 in type.dims:
        return None
    if type.quant is not None and type.quant.axis is not None:
        return None
    shape = g.constant(np.asarray(type.dims, np.int64))
    return (g.add("reshape", [x, shape], {}, of, type.quant),)


def idle_transpose(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """transpose(x) by 0, 1, 2... -> x."""
    perm = node.attrs["perm"]
    return (node.used[0],) if perm is not None and perm == tuple(range(len(perm))) else None


def transpose_of_transpose(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """transpose(transpose(x)) -> transpose(x)."""
    first = g.made_by(node.used[0], node, "transpose")
    if first is None:
        return None
    rank = len(g.type(node.outputs[0]).shape)
    inner, outer = (perm_of(n, rank) for n in (first, node))
    perm = tuple(inner[i] for i in outer)
    quant = g.type(node.outputs[0]).quant
    return (g.add("transpose", [first.used[0]], {"perm": perm}, [first, node], quant),)


def perm_of(node: Node, rank: int) -> tuple[int, ...]:
    """Return the permutation of a transpose, which reverses the axes when it has none."""
    perm = node.attrs["perm"]
    return tuple(range(rank))[::-1] if perm is None else tuple(perm)


def transpose_of_ones(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """transpose(x) that keeps the order of all axes longer than 1 -> reshape(x)."""
    type = g.type(node.used[0])
    if not type.is_static:
        return None
    long = [i for i in perm_of(node, len(type.shape)) if type.dims[i] != 1]
    return _reshape(g, node.used[0], node) if long == sorted(long) else None


def neutral_operand(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """x + 0, x - 0, x * 1, x / 1, x ^ 1, x and True -> x. Only -0 + 0 gets another sign."""
    if node.attrs.get("activation") or g.is_quantized(node):
        return None
    (a, b), op = node.used, get_op(node.op)
    for x, other in ((a, b), (b, a)) if op.commutes else ((a, b),):
        data = g.data(other)
        if data is None or data.dtype.kind not in "bfiu" or not np.all(data == op.neutral):
            continue
        if g.type(x) == g.type(node.outputs[0]):
            return (x,)
    return None


def zero_pad(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """pad(x) by zero elements -> x."""
    pads = g.data(node.inputs[1])
    return (node.used[0],) if pads is not None and not np.any(pads) else None


def whole_slice(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """slice(x) of all elements, forwards -> x."""
    steps = g.data(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    return same_type(g, node) if steps is not None and np.all(steps == 1) else None


def empty_parts(g: GraphRewriter, node: Node) -> tuple[int] | None:
    """concat(x, no elements, y) -> concat(x, y)."""
    full = [x for x in node.used if 0 not in g.type(x).shape]
    if not full or len(full) == len(node.used):
        return None
    quant = g.type(node.outputs[0]).quant
    return (g.add("concat", full, node.attrs, [node], quant),)


SIMPLIFY: tuple[tuple[Roots, Rule], ...] = (
    (["identity", "concat", "max", "min", "sum", "mean"], same_value),
    (["reshape", "squeeze", "unsqueeze", "flatten", "expand", "tile"], same_type),
    (["split"], same_type),
    (["cast", "cast_like", "quantize"], same_dtype),
    (["squeeze", "unsqueeze", "flatten"], view_to_reshape),
    (["reshape"], reshape_of_reshape),
    (["transpose"], idle_transpose),
    (["transpose"], transpose_of_transpose),
    (["transpose"], transpose_of_ones),
    (lambda op: op.neutral is not None, neutral_operand),
    (["pad"], zero_pad),
    (["slice"], whole_slice),
    (["concat"], empty_parts),
)
