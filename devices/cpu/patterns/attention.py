"""Find attentions: a softmax between two products, with scale, mask and transposes.

    [transpose] Q, K, V; matmul(Q, K^T) -> mul or div by a number -> add a mask -> softmax -> matmul
    with V -> [transpose]

A node belongs when nobody outside reads its results. Transposes that others read too are walked
through all the same, as strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_copy
from trireme.devices.cpu.kernels.copies import dense
from trireme.devices.cpu.kernels.f32.attention import attention_kernel
from trireme.devices.cpu.kernels.f32.attention_shape import AttentionShape, OperandStrides
from trireme.devices.cpu.kernels.lowering import Context, Operand, Step
from trireme.devices.cpu.kernels.polymorphic.sample import varies
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array

MOST_KEYS = 4096
"""Keys whose scores for a block of queries stay in the L2 cache."""


@dataclass(frozen=True)
class _View:
    """A matrix or a batch of them as it lies in memory: the value there, sizes and strides."""

    value: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def flipped(self) -> _View:
        """The view with rows and columns exchanged."""
        *batch, row, column = self.shape
        *steps, over, along = self.strides
        return _View(self.value, (*batch, column, row), (*steps, along, over))

    def over(self, batch: Sequence[int]) -> OperandStrides | None:
        """The strides along batch dimensions, 0 where broadcast; None when they do not fit."""
        missing = len(batch) - (len(self.shape) - 2)
        sizes = (1,) * missing + self.shape[:-2]
        steps = (0,) * missing + self.strides[:-2]
        if missing < 0 or any(
            size not in (1, whole) for size, whole in zip(sizes, batch, strict=True)
        ):
            return None
        found = tuple(0 if n == 1 else s for n, s in zip(sizes, steps, strict=True))
        return OperandStrides(found, self.strides[-2], self.strides[-1])


@dataclass(frozen=True)
class AttentionParts:
    """What an attention's shape follows from: its products, scales, mask and last transpose."""

    first: Node
    second: Node
    after: Node | None
    mask: int | None
    scales: tuple[float, float]

    def views(self, graph: Graph) -> tuple[_View, _View, _View, _View]:
        """Return Q, K, V and the result as matrices in memory."""
        q, k, v = (_view(graph, i) for i in (*self.first.used, self.second.used[1]))
        turned = _turned_view(graph, self.after) if self.after else None
        return q, k.flipped(), v, turned or _plain(graph, self.second.outputs[0])

    def shape(self, graph: Graph) -> AttentionShape | None:
        """Return the kernel's shape, None when it cannot walk the operands."""
        return _shape(graph, self.views(graph), self.mask, self.scales)


@dataclass(frozen=True)
class Attention:
    """An attention in a graph: its nodes in order, where its operands lie, its kernel's shape."""

    nodes: tuple[Node, ...]
    q: int
    k: int
    v: int
    mask: int | None
    output: int
    shape: AttentionShape
    parts: AttentionParts

    def lower(self, context: Context) -> list[Step]:
        """Return the step that computes it."""
        shape, reads = self.shape, [context.operand(i) for i in (self.q, self.k, self.v)]
        if self.mask is not None:
            operand, walk = _lay_mask(context, self.mask, shape)
            by_query = is_mask_by_query(context.graph, self.mask)
            shape = replace(shape, mask=walk, mask_by_query=by_query)
            reads.append(operand)
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


def _match(graph: Graph, softmax: Node) -> Attention | None:
    """Return the attention around a softmax, if there is one."""
    scores = graph.type(softmax.used[0])
    if len(scores.shape) < 2 or softmax.attrs["axis"] % len(scores.shape) != len(scores.shape) - 1:
        return None
    second = _only_reader(graph, softmax.outputs[0], "matmul")
    if second is None or second.used[0] != softmax.outputs[0] or second.used[1] == second.used[0]:
        return None
    before = _scores_of(graph, softmax)
    if before is None:
        return None
    first, between, scale, mask = before
    beta = float(softmax.attrs.get("beta", 1.0))
    after = _turned_result(graph, second)
    parts = AttentionParts(first, second, after, mask, (scale * beta, beta))
    q, k, v, out = parts.views(graph)
    shape = parts.shape(graph)
    nodes = [*between, first, softmax, second, *([after] if after else [])]
    nodes += [t for t, reader in _turners(graph, first, second) if _is_only_for(graph, t, reader)]
    if shape is None or any(not _is_float(graph, node) for node in nodes):
        return None
    order = {node.id: place for place, node in enumerate(graph.nodes)}
    nodes = sorted(dict.fromkeys(nodes, None), key=lambda node: order[node.id])
    return Attention(tuple(nodes), q.value, k.value, v.value, mask, out.value, shape, parts)


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
        step = _scale_step(graph, node) or (_mask_step(graph, node) if not between else None)
        if step is None:
            return None
        value, number, masked = step
        scale, mask = scale * number, mask if masked is None else masked
        between.append(node)


def _scale_step(graph: Graph, node: Node) -> tuple[int, float, None] | None:
    """Read a node as a product with a number: the scaled value and the factor."""
    if node.op not in ("mul", "div") or len(node.used) != 2:
        return None
    for value, other in (node.used, node.used[::-1]):
        data = graph.values[other].data
        same = graph.type(value).shape == graph.type(node.outputs[0]).shape
        if data is not None and data.size == 1 and same:
            number = float(data.reshape(-1)[0])
            if node.op == "div" and (other != node.used[1] or not number):
                return None
            return value, number if node.op == "mul" else 1 / number, None
    return None


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
        step = _scale_step(graph, node)
        node = graph.producer(step[0]) if step else None
    return node is not None and node.op == "matmul"


def _shape(
    graph: Graph,
    views: tuple[_View, _View, _View, _View],
    mask: int | None,
    scales: tuple[float, float],
) -> AttentionShape | None:
    """Return the kernel's shape, None when it cannot walk the operands."""
    q, k, v, out = views
    batch, (queries, width) = out.shape[:-2], out.shape[-2:]
    walks = [view.over(batch) for view in views]
    (depth, keys) = q.shape[-1], k.shape[-2]
    if (
        any(walk is None for walk in walks)
        or (keys > MOST_KEYS and not varies(keys))
        or not math.prod(out.shape)
    ):
        return None
    first, second, third, last = (walk for walk in walks if walk is not None)
    if (q.strides[-1] != 1 and depth > 1) or (out.strides[-1] != 1 and width > 1):
        return None
    if not depth or not keys:
        return None
    shape = AttentionShape(
        batch, queries, keys, depth, width, first, second, third, last, None, *scales
    )
    return shape if mask is None or _mask_fits(graph, mask, shape) else None


def _mask_fits(graph: Graph, mask: int, shape: AttentionShape) -> bool:
    """Whether a mask is a constant, the same for all queries, or given for each key of each."""
    type = graph.type(mask)
    full = (*shape.batch, shape.queries, shape.keys)
    sizes = (1,) * (len(full) - len(type.shape)) + tuple(type.shape)
    fits = len(sizes) == len(full) and all(
        size in (1, whole) for size, whole in zip(sizes, full, strict=True)
    )
    is_whole = sizes[-2:] == full[-2:]
    return fits and (graph.values[mask].is_constant or sizes[-2] == 1 or is_whole)


def _lay_mask(context: Context, mask: int, shape: AttentionShape) -> tuple[Operand, OperandStrides]:
    """Return a mask as the kernel reads it, keys along the rows, and its strides."""
    full = (*shape.batch, shape.queries, shape.keys)
    dims = context.type(mask).dims
    sizes = (1,) * (len(full) - len(dims)) + dims
    by_query = is_mask_by_query(context.graph, mask)
    if sizes[-2] == 1 or by_query:
        return context.operand(mask), mask_walk(context.graph, mask, shape, by_query)
    lanes = context.isa.lanes
    room = -(-shape.queries // lanes) * lanes

    def turn() -> Array:
        data = np.asarray(context.graph.values[mask].data).reshape(sizes)
        pads = [(0, 0)] * (len(sizes) - 1) + [(0, room - shape.queries)]
        return aligned_copy(np.pad(np.swapaxes(data, -1, -2), pads))

    laid = context.pack(mask, f"mask {len(full)} {room}", turn)
    turned = (*sizes[:-2], sizes[-1], room)
    steps = [s if n > 1 else 0 for s, n in zip(dense(turned), turned, strict=True)]
    return laid, OperandStrides(tuple(steps[:-2]), steps[-2], 1)


def is_mask_by_query(graph: Graph, mask: int) -> bool:
    """Whether a mask is not known and has a row for each query."""
    shape = graph.type(mask).shape
    return not graph.values[mask].is_constant and len(shape) > 1 and shape[-2] != 1


def mask_walk(graph: Graph, mask: int, shape: AttentionShape, by_query: bool) -> OperandStrides:
    """Return how a mask with a row for each query, or with one for all, is walked."""
    dims = graph.type(mask).dims
    sizes = (1,) * (len(shape.batch) + 2 - len(dims)) + dims
    strides = [s if n > 1 else 0 for s, n in zip(dense(sizes), sizes, strict=True)]
    if by_query:
        return OperandStrides(tuple(strides[:-2]), 1, sizes[-1])
    return OperandStrides(tuple(strides[:-2]), int(sizes[-1] == shape.keys), 0)


def _plain(graph: Graph, value: int) -> _View:
    dims = graph.type(value).dims
    return _View(value, dims, dense(dims))


def _view(graph: Graph, value: int) -> _View:
    """A value as a view of its source before a transpose, or of itself."""
    node = graph.producer(value)
    if node is None or node.op != "transpose" or not _is_float(graph, node):
        return _plain(graph, value)
    source = _plain(graph, node.used[0])
    order = _order(graph, node)
    return _View(
        source.value,
        tuple(source.shape[axis] for axis in order),
        tuple(source.strides[axis] for axis in order),
    )


def _turned_result(graph: Graph, second: Node) -> Node | None:
    """The transpose that alone reads the result, if the kernel can write its output."""
    node = _only_reader(graph, second.outputs[0], "transpose")
    if node is None or _turned_view(graph, node).strides[-1] != 1:
        return None
    return node


def _turned_view(graph: Graph, node: Node) -> _View:
    """The output of the last transpose as a view in the result's axes."""
    target, order = _plain(graph, node.outputs[0]), _order(graph, node)
    back = [order.index(axis) for axis in range(len(order))]
    shape, strides = (tuple(row[axis] for axis in back) for row in (target.shape, target.strides))
    return _View(target.value, shape, strides)


def _order(graph: Graph, node: Node) -> list[int]:
    rank = len(graph.type(node.used[0]).shape)
    return [axis % rank for axis in node.attrs["perm"] or range(rank)[::-1]]


def _turners(graph: Graph, first: Node, second: Node) -> list[tuple[Node, Node]]:
    """The transposes of the operands, each with the product that reads it."""
    found = []
    for value, reader in ((first.used[0], first), (first.used[1], first), (second.used[1], second)):
        node = graph.producer(value)
        if node is not None and node.op == "transpose":
            found.append((node, reader))
    return found


def _is_only_for(graph: Graph, node: Node, reader: Node) -> bool:
    value = node.outputs[0]
    return not graph.is_output(value) and all(user is reader for user in graph.users(value))


def _is_only_reader(graph: Graph, value: int) -> bool:
    return not graph.is_output(value) and len(graph.users(value)) == 1


def _only_reader(graph: Graph, value: int, op: str) -> Node | None:
    """The only reader of a value, if it is of that op."""
    users = graph.users(value)
    alone = _is_only_reader(graph, value) and users[0].op == op
    return users[0] if alone else None


def _is_float(graph: Graph, node: Node) -> bool:
    """Whether all values of a node but parameters are float32 and not quantised."""
    types = [graph.type(i) for i in (*node.used, *node.outputs)]
    return all(type.dtype == "float32" and type.quant is None for type in types)
