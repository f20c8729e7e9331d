"""Find attentions: a softmax between two products, with scale, mask, transposes and repeated heads.

    [views of] Q, K, V; matmul(Q, K^T) -> mul or div by a number -> add a mask -> softmax
    -> [where(is_nan, 0, itself)] -> matmul with V -> [transpose]

A node belongs when nobody outside reads its results. Transposes, reshapes, repeats of heads and
products with a number are walked through as strides and scales (views.py), those that others read
too.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from trireme.devices.cpu.kernels.f32.attention_shape import AttentionShape, is_by_row
from trireme.devices.cpu.kernels.f32.attention_step import (
    alike_key,
    attention_step,
    shared_attention_step,
)
from trireme.devices.cpu.kernels.lowering import (
    Context,
    Operand,
    Step,
    varies,
)
from trireme.devices.cpu.kernels.spans import Wiring
from trireme.devices.cpu.patterns.attention_walk import (
    AttentionWalk,
    is_mask_by_query,
    lay_mask,
    mask_fits,
    mask_walk,
    walk_of,
)
from trireme.devices.cpu.patterns.views import (
    ViewPath,
    is_float,
    order_of,
    path_to,
    plain,
    scale_step,
)
from trireme.ir.graph import Graph, Node
from trireme.support.errors import CompileError
from trireme.support.records import dataclass

_FEW_KERNELS = 3
"""Attentions that differ in strides alone share code from this number on; LLVM takes 0.1 s each."""


@dataclass(frozen=True)
class AttentionParts:
    """What an attention's shape follows from.

    q, k, v: ways to the operands; k is [keys, depth]
    after: the last transpose; guarded: whether NaN of the softmax becomes 0
    """

    first: Node
    second: Node
    after: Node | None
    mask: int | None
    scales: tuple[float, float]
    q: ViewPath
    k: ViewPath
    v: ViewPath
    guarded: bool

    @property
    def output(self) -> int:
        """The value that is made."""
        return (self.after or self.second).outputs[0]

    def walk(self, graph: Graph) -> AttentionWalk | None:
        """Return how the operands are walked; None where the kernel cannot."""
        q, k, v = (path.at(graph) for path in (self.q, self.k, self.v))
        if q is None or k is None or v is None:
            return None
        k = k.transposed([*range(len(k.axes) - 2), -1, -2])
        out = plain(graph, self.output)
        if self.after is not None:
            order = order_of(graph, self.after)
            out = out.transposed([order.index(axis) for axis in range(len(order))])
        walk = walk_of(q, k, v, out, self.scales, self.guarded)
        fits = walk is None or self.mask is None or mask_fits(graph, self.mask, walk)
        return walk if fits else None


@dataclass(frozen=True)
class Attention:
    """An attention in a graph: its nodes in order, where its operands lie, its kernel's shape.

    shares_code: whether others in the graph run the same code with other strides
    """

    nodes: tuple[Node, ...]
    q: int
    k: int
    v: int
    mask: int | None
    output: int
    walk: AttentionWalk
    parts: AttentionParts
    shares_code: bool = False

    def lower(self, context: Context) -> list[Step]:
        """Return the step that computes it."""
        if context.is_open:
            return [_open_attention_step(context, self)]
        shape, mask = self.walk.shape, None
        if self.mask is not None:
            mask, walk = lay_mask(context, self.mask, self.walk)
            by_query = is_mask_by_query(context.graph, self.mask)
            shape = replace(shape, mask=walk, mask_by_query=by_query)
        wiring = self.wiring(context, mask)
        if self.shares_code:
            return [shared_attention_step(context, shape, tuple(wiring.reads), self.output)]
        return [attention_step(context, wiring, lambda _: shape)]

    def wiring(self, context: Context, mask: Operand | None) -> Wiring:
        """Return what its step reads, the mask as it is laid, and writes."""
        reads = [context.operand(i) for i in (self.q, self.k, self.v)]
        reads += [] if mask is None else [mask]
        nodes = tuple(node.id for node in self.nodes)
        return Wiring(reads, (self.output,), nodes, "attention_f32")


def find_open_attention(graph: Graph) -> list[Attention]:
    """Return the attentions of a sample that one kernel serves for every shape."""
    return [one for one in find_attention(graph) if _is_served(graph, one)]


def _is_served(graph: Graph, one: Attention) -> bool:
    if varies(one.walk.shape.depth) or varies(one.walk.shape.width):
        return False
    return one.mask is None or not graph.values[one.mask].is_constant


def find_attention(graph: Graph) -> list[Attention]:
    """Return the attentions of a graph, none sharing a node with another."""
    found = (_match(graph, node) for node in graph.nodes if node.op == "softmax")
    return [attention for attention in found if attention is not None]


def _open_attention_step(context: Context, one: Attention) -> Step:
    """Return the step of an attention for every shape."""
    mask = None if one.mask is None else context.operand(one.mask)
    by_query = one.mask is not None and is_mask_by_query(context.graph, one.mask)

    def shape_at(graph: Graph) -> AttentionShape:
        walk = one.parts.walk(graph)
        if walk is None:
            raise CompileError(f"cpu: {one.parts.first.label}: no kernel for this shape")
        if one.mask is None:
            return walk.shape
        read = mask_walk(graph, one.mask, walk, by_query)
        return replace(walk.shape, mask=read, mask_by_query=by_query)

    return attention_step(context, one.wiring(context, mask), shape_at)


def with_shared_code(found: Sequence[Attention]) -> list[Attention]:
    """Return attentions, those marked that would be _FEW_KERNELS or more of almost equal code."""
    kinds: dict[Hashable, set[AttentionShape]] = {}
    keys = [(one.mask is None, alike_key(one.walk.shape)) for one in found]
    for key, one in zip(keys, found, strict=True):
        kinds.setdefault(key, set()).add(one.walk.shape)
    return [
        replace(one, shares_code=len(kinds[key]) >= _FEW_KERNELS and not is_by_row(one.walk.shape))
        for key, one in zip(keys, found, strict=True)
    ]


def _match(graph: Graph, softmax: Node) -> Attention | None:
    """Return the attention around a softmax, if there is one."""
    scores = graph.type(softmax.used[0])
    if len(scores.shape) < 2 or softmax.attrs["axis"] % len(scores.shape) != len(scores.shape) - 1:
        return None
    guard = _nan_guard(graph, softmax)
    weights = guard[-1].outputs[0] if guard else softmax.outputs[0]
    second = _only_reader(graph, weights, "matmul")
    if second is None or second.used[0] != weights or second.used[1] == weights:
        return None
    before = _scores_of(graph, softmax)
    if before is None:
        return None
    first, between, scale, mask = before
    beta = float(softmax.attrs.get("beta", 1.0))
    after = _turned_result(graph, second)
    q, k = (path_to(graph, value, first) for value in first.used)
    v = path_to(graph, second.used[1], second)
    scales = (scale * beta * q.scale * k.scale, beta)
    if v.scale != 1:
        v = ViewPath(second.used[1], (), (), (), 1.0)
    parts = AttentionParts(first, second, after, mask, scales, q, k, v, bool(guard))
    walk = parts.walk(graph)
    nodes = [*between, first, softmax, second, *([after] if after else [])]
    if walk is None or any(not is_float(graph, node) for node in nodes):
        return None
    order = {node.id: place for place, node in enumerate(graph.nodes)}
    nodes += [*guard, *q.own, *k.own, *v.own]
    nodes = sorted(dict.fromkeys(nodes, None), key=lambda node: order[node.id])
    return Attention(tuple(nodes), q.value, k.value, v.value, mask, parts.output, walk, parts)


def _nan_guard(graph: Graph, softmax: Node) -> list[Node]:
    """Return is_nan and where, if they alone read a softmax and make 0 of its NaN."""
    value = softmax.outputs[0]
    users = graph.users(value)
    tests = [user for user in users if user.op == "is_nan"]
    choices = [user for user in users if user.op == "where"]
    if graph.is_output(value) or (len(users), len(tests), len(choices)) != (2, 1, 1):
        return []
    (test,), (choice,) = tests, choices
    condition, zero, other = choice.used
    data = graph.values[zero].data
    is_zero = data is not None and data.size == 1 and not data.reshape(-1)[0]
    same = condition == test.outputs[0] and other == value
    return [test, choice] if same and is_zero and _is_only_reader(graph, condition) else []


def _scores_of(graph: Graph, softmax: Node) -> tuple[Node, list[Node], float, int | None] | None:
    """Walk back from a softmax to the product: returns it, the nodes between, scale and mask."""
    between: list[Node] = []
    scale, mask, value = 1.0, None, softmax.used[0]
    while True:
        node = graph.producer(value)
        if node is None or not _is_only_reader(graph, value) or node.attrs.get("activation"):
            return None
        if node.op == "matmul":
            return node, between, scale, mask
        step = _scaled(graph, node) or (_mask_step(graph, node) if not between else None)
        if step is None:
            return None
        value, number, masked = step
        scale, mask = scale * number, mask if masked is None else masked
        between.append(node)


def _scaled(graph: Graph, node: Node) -> tuple[int, float, None] | None:
    found = scale_step(graph, node)
    return None if found is None else (*found, None)


def _mask_step(graph: Graph, node: Node) -> tuple[int, float, int] | None:
    """Read a node as scores plus a mask: the scores are the side that a product made."""
    if node.op != "add":
        return None
    for value, other in (node.used, node.used[::-1]):
        same = graph.type(value).shape == graph.type(node.outputs[0]).shape
        if same and graph.values[other].data is None and not _from_product(graph, value):
            continue
        if same and _from_product(graph, value):
            return value, 1.0, other
    return None


def _from_product(graph: Graph, value: int) -> bool:
    """Whether a value is a product, scaled or not."""
    node = graph.producer(value)
    while node is not None and node.op in ("mul", "div"):
        step = scale_step(graph, node)
        node = graph.producer(step[0]) if step else None
    return node is not None and node.op == "matmul"


def _turned_result(graph: Graph, second: Node) -> Node | None:
    """The transpose that alone reads the result, if it leaves rows whole."""
    node = _only_reader(graph, second.outputs[0], "transpose")
    if node is None:
        return None
    order = order_of(graph, node)
    return node if order[-1] == len(order) - 1 else None


def _is_only_reader(graph: Graph, value: int) -> bool:
    return not graph.is_output(value) and len(graph.users(value)) == 1


def _only_reader(graph: Graph, value: int, op: str) -> Node | None:
    """The only reader of a value, if it is of that op."""
    users = graph.users(value)
    alone = _is_only_reader(graph, value) and users[0].op == op
    return users[0] if alone else None
