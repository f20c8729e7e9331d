"""Find attentions: a softmax between two products, with scale, mask, transposes and repeated heads.

    [views of] Q, K, V; matmul(Q, K^T) -> mul or div by a number -> add a mask -> softmax
    -> [where(is_nan, 0, itself)] -> matmul with V -> [transpose]

A node belongs when nobody outside reads its results. Transposes, reshapes, repeats of heads and
products with a number are walked through as strides and scales (views.py), those that others read
too.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_copy
from trireme.devices.cpu.kernels.copies import dense
from trireme.devices.cpu.kernels.f32.attention import attention_kernel
from trireme.devices.cpu.kernels.f32.attention_shape import (
    AttentionShape,
    OperandStrides,
    is_by_row,
)
from trireme.devices.cpu.kernels.lowering import Context, Operand, Step
from trireme.devices.cpu.kernels.polymorphic.attention import alike_key, shared_attention_step
from trireme.devices.cpu.kernels.polymorphic.sample import varies
from trireme.devices.cpu.patterns.views import (
    Axis,
    StridedView,
    ViewPath,
    is_float,
    order_of,
    path_to,
    plain,
    scale_step,
    size_of,
    split_axis,
)
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

FEW_KERNELS = 3
"""Attentions that differ in strides alone share code from this number on; LLVM takes 0.1 s each."""
MOST_KEYS = 4096
"""Keys whose scores for a block of queries stay in the L2 cache."""


@dataclass(frozen=True)
class AttentionWalk:
    """How an attention walks its operands at one shape.

    splits: the factors of each batch axis of the result; the shape's batch is all of them
    """

    shape: AttentionShape
    splits: tuple[tuple[int, ...], ...]


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
        walk = _walk(q, k, v, out, self.scales, self.guarded)
        fits = walk is None or self.mask is None or _mask_fits(graph, self.mask, walk)
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
        shape, reads = self.walk.shape, [context.operand(i) for i in (self.q, self.k, self.v)]
        if self.mask is not None:
            operand, walk = _lay_mask(context, self.mask, self.walk)
            by_query = is_mask_by_query(context.graph, self.mask)
            shape = replace(shape, mask=walk, mask_by_query=by_query)
            reads.append(operand)
        if self.shares_code:
            return [shared_attention_step(context, shape, tuple(reads), self.output)]
        code, chunks, local_bytes, seconds = context.kernel(attention_kernel, shape)
        return [
            Step(
                code,
                tuple(reads),
                (self.output,),
                chunks,
                local_bytes,
                seconds,
                family="attention_f32",
            )
        ]


def find_attention(graph: Graph) -> list[Attention]:
    """Return the attentions of a graph, none sharing a node with another."""
    found = (_match(graph, node) for node in graph.nodes if node.op == "softmax")
    return [attention for attention in found if attention is not None]


def with_shared_code(found: Sequence[Attention]) -> list[Attention]:
    """Return attentions, those marked that would be FEW_KERNELS or more of almost equal code."""
    kinds: dict[Hashable, set[AttentionShape]] = {}
    keys = [(one.mask is None, alike_key(one.walk.shape)) for one in found]
    for key, one in zip(keys, found, strict=True):
        kinds.setdefault(key, set()).add(one.walk.shape)
    return [
        replace(one, shares_code=len(kinds[key]) >= FEW_KERNELS and not is_by_row(one.walk.shape))
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


def _walk(
    q: StridedView,
    k: StridedView,
    v: StridedView,
    out: StridedView,
    scales: tuple[float, float],
    guarded: bool,
) -> AttentionWalk | None:
    """Return how views are walked; None where the kernel cannot."""
    (queries, width), depth, keys = out.shape[-2:], q.shape[-1], k.shape[-2]
    splits = _splits([view.axes[:-2] for view in (out, q, k, v)])
    if splits is None or not depth or not keys or not math.prod(out.shape):
        return None
    if keys > MOST_KEYS and not varies(keys):
        return None
    walks = [_strides_of(view, splits) for view in (q, k, v, out)]
    first, second, third, last = walks
    if first is None or second is None or third is None or last is None:
        return None
    if (first.column != 1 and depth > 1) or (last.column != 1 and width > 1):
        return None
    batch = tuple(size for split in splits for size in split)
    sizes = queries, keys, depth, width
    shape = AttentionShape(batch, *sizes, first, second, third, last, None, *scales)
    return AttentionWalk(replace(shape, guarded=guarded), splits)


def _splits(batches: Sequence[Sequence[Axis]]) -> tuple[tuple[int, ...], ...] | None:
    """Return the sizes that each batch axis of the first operand is cut into, for all to walk."""
    rank = len(batches[0])
    if any(len(batch) > rank for batch in batches):
        return None
    found = []
    for place in range(rank):
        axes = [batch[place - rank] for batch in batches if len(batch) >= rank - place]
        whole = size_of(axes[0])
        fitting = (axis for axis in axes if size_of(axis) == whole)
        found.append(tuple(size for size, _ in max(fitting, key=len)))
    return tuple(found)


def _strides_of(view: StridedView, splits: Sequence[Sequence[int]]) -> OperandStrides | None:
    """Return a view's strides along the cut batch axes, rows and columns; 0 where broadcast."""
    batch = batch_strides(view.axes[:-2], splits)
    row, column = view.stride(-2), view.stride(-1)
    if batch is None or row is None or column is None:
        return None
    return OperandStrides(batch, row, column)


def batch_strides(axes: Sequence[Axis], splits: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Return the stride of each factor of cut axes; None where an operand does not fit them."""
    missing = len(splits) - len(axes)
    found: list[int] = []
    for place, sizes in enumerate(splits):
        axis = axes[place - missing] if place >= missing else ()
        if size_of(axis) == 1:
            found += [0] * len(sizes)
            continue
        split = split_axis(axis, sizes)
        if split is None:
            return None
        found += [stride for _, stride in split]
    return tuple(found)


def _mask_axes(graph: Graph, mask: int, walk: AttentionWalk) -> tuple[Axis, ...]:
    """Return the axes of a mask, of size 1 where it has none."""
    axes = plain(graph, mask).axes
    missing: tuple[Axis, ...] = (((1, 0),),) * (len(walk.splits) + 2 - len(axes))
    return missing + axes


def _mask_fits(graph: Graph, mask: int, walk: AttentionWalk) -> bool:
    """Whether a mask is a constant, the same for all queries, or given for each key of each."""
    axes, shape = _mask_axes(graph, mask, walk), walk.shape
    if len(axes) != len(walk.splits) + 2 or batch_strides(axes[:-2], walk.splits) is None:
        return False
    (rows, _), (columns, _) = (axis[0] for axis in axes[-2:])
    if rows not in (1, shape.queries) or columns not in (1, shape.keys):
        return False
    is_whole = (rows, columns) == (shape.queries, shape.keys)
    return graph.values[mask].is_constant or rows == 1 or is_whole


def _lay_mask(context: Context, mask: int, walk: AttentionWalk) -> tuple[Operand, OperandStrides]:
    """Return a mask as the kernel reads it, keys along the rows, and its strides."""
    axes = _mask_axes(context.graph, mask, walk)
    sizes = tuple(axis[0][0] for axis in axes)
    by_query = is_mask_by_query(context.graph, mask)
    if sizes[-2] == 1 or by_query:
        return context.operand(mask), mask_walk(context.graph, mask, walk, by_query)
    lanes = context.isa.lanes
    room = -(-walk.shape.queries // lanes) * lanes

    def turn() -> Array:
        data = np.asarray(context.graph.values[mask].data).reshape(sizes)
        pads = [(0, 0)] * (len(sizes) - 1) + [(0, room - walk.shape.queries)]
        return aligned_copy(np.pad(np.swapaxes(data, -1, -2), pads))

    laid = context.pack(mask, f"mask {len(sizes)} {room}", turn)
    turned = (*sizes[:-2], sizes[-1], room)
    places = tuple(zip(turned, dense(turned), strict=True))
    batch = batch_strides([(pair,) for pair in places[:-2]], walk.splits)
    row = places[-2][1] if sizes[-1] > 1 else 0
    return laid, OperandStrides(batch or (), row, 1)


def is_mask_by_query(graph: Graph, mask: int) -> bool:
    """Whether a mask is not known and has a row for each query."""
    shape = graph.type(mask).shape
    return not graph.values[mask].is_constant and len(shape) > 1 and shape[-2] != 1


def mask_walk(graph: Graph, mask: int, walk: AttentionWalk, by_query: bool) -> OperandStrides:
    """Return how a mask with a row for each query, or with one for all, is walked."""
    axes = _mask_axes(graph, mask, walk)
    batch = batch_strides(axes[:-2], walk.splits) or ()
    (_, row), (columns, _) = (axis[0] for axis in axes[-2:])
    if by_query:
        return OperandStrides(batch, 1, row)
    return OperandStrides(batch, int(columns == walk.shape.keys), 0)


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
