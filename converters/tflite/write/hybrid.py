"""Products on rows that are rounded in the run, as the operators whose kernels do so ("hybrid").

    levels, step = rounded(x);  y = activation(op(levels, w) * (step * scales) + bias)
    -> op(float x, int8 w with scales, bias), whose kernel rounds x

The kernels round as the nodes say (converters/tflite/dynamic_range.py), but for the last bits of
the scaling. FULLY_CONNECTED has both ways to round a row. CONV_2D and DEPTHWISE_CONV_2D round
without a zero point where the weights have one scale, and with one where each channel has its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from trireme.ir.graph import Graph, Node, Quant, TensorType, Value
from trireme.ir.quantization.dynamic_range import HybridProduct, Levels, find_hybrid
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import rewritten, rules_by_op
from trireme.support.dtypes import Array

_MOST = 127
"""Levels on either side of 0 of a row that is rounded without a zero point."""


@dataclass(frozen=True)
class HybridGraph:
    """A graph for the writer alone: floats meet int8 weights in its products.

    symmetric: the products whose kernel rounds without a zero point, by the node's id
    """

    graph: Graph
    symmetric: frozenset[int]


def with_hybrid_products(graph: Graph, activations: Collection[str]) -> HybridGraph:
    """Return the graph with the nodes of each such product as one node.

    activations: those that may end a product
    """
    whole, graph = graph, _folded(graph)
    found = find_hybrid(graph, activations)
    families = [one for one in _families(found) if _has_kernels(graph, *one)]
    if not families:
        return HybridGraph(whole, frozenset())
    values, fresh = dict(graph.values), count(max(graph.values) + 1)
    inside: set[int] = set()
    made: dict[int, Node] = {}
    symmetric: set[int] = set()
    for levels, products in families:
        inside.update(node.id for node in levels.nodes)
        for product in products:
            inside.update(node.id for node in product.nodes)
            weights = _weights(graph, product, next(fresh))
            values[weights.id] = weights
            made[product.nodes[-1].id] = _node(product, weights.id)
            if levels.kind == "symmetric":
                symmetric.add(product.op.node.id)
    nodes = tuple(
        made.get(node.id, node) for node in graph.nodes if node.id in made or node.id not in inside
    )
    return HybridGraph(replace(graph, nodes=nodes, values=values), frozenset(symmetric))


def _families(found: list[Levels | HybridProduct]) -> Iterator[tuple[Levels, list[HybridProduct]]]:
    """Yield levels with all products that read them."""
    for levels in found:
        if isinstance(levels, Levels):
            mine = [one for one in found if isinstance(one, HybridProduct)]
            yield levels, [one for one in mine if one.source.levels == levels.levels]


def _has_kernels(graph: Graph, levels: Levels, products: list[HybridProduct]) -> bool:
    """Whether LiteRT's kernels round this way for every product of the levels."""
    return levels.kind != "unsigned" and all(_has_kernel(graph, one) for one in products)


def _has_kernel(graph: Graph, product: HybridProduct) -> bool:
    levels, op, scales = product.source, product.op.node, _scales(graph, product)
    x = graph.type(levels.x)
    if scales is None or len(product.op.weights) > 1:
        return False
    if op.op == "fully_connected":
        return levels.images == x.elements // x.dims[-1]
    is_one = len(set(scales.tolist())) == 1
    is_plain = op.attrs["groups"] in (1, x.dims[-1]) and set(op.attrs["dilations"]) == {1}
    return is_plain and (is_one or levels.kind == "asymmetric")


def _scales(graph: Graph, product: HybridProduct) -> Array | None:
    """Return the scale of each channel of the weights, positive; None where it is not known."""
    constants = [graph.values[value].data for value in product.scales]
    numbers = [data.reshape(-1) for data in constants if data is not None]
    if product.source.kind == "symmetric":
        steps = [at for at, data in enumerate(numbers) if _is(data, 1 / _MOST)]
        if not steps:
            return None
        numbers.pop(steps[0])
    channels = graph.type(product.op.node.outputs[0]).dims[-1]
    scales = np.ones(channels, np.float32)
    for data in numbers:
        scales = scales * data
    return scales if (scales > 0).all() else None


def _is(data: Array, number: float) -> bool:
    return data.size == 1 and bool(data[0] == np.float32(number))


def _weights(graph: Graph, product: HybridProduct, id: int) -> Value:
    """Return the weights as int8 with the scales of their channels."""
    given, scales = graph.values[product.op.weights[0]], _scales(graph, product)
    assert given.data is not None and scales is not None
    is_one = product.source.kind == "symmetric" and product.op.node.op == "conv"
    kept = scales[:1] if is_one else scales
    quant = Quant(tuple(map(float, kept)), (0,) * len(kept), None if is_one else 0)
    type = TensorType(given.type.shape, "int8", quant)
    return Value(id, given.name, type, given.data.astype(np.int8))


def _node(product: HybridProduct, weights: int) -> Node:
    """Return the product as a node of float32 by int8."""
    op = product.op.node
    inputs = (product.source.x, weights, *(() if product.bias is None else (product.bias,)))
    attrs = {**op.attrs, "activation": product.activation}
    return replace(op, inputs=inputs, outputs=(product.output,), attrs=attrs, after=())


def _folded(graph: Graph) -> Graph:
    """Return the graph with constants of int8 cast to floats, as the finder reads weights."""
    return rewritten(graph, rules_by_op((("cast",), _constant)))


def _constant(g: GraphRewriter, node: Node) -> tuple[int] | None:
    data = g.data(node.used[0])
    if data is None or data.dtype != np.int8 or node.attrs["to"] != "float32":
        return None
    return (g.constant(data.astype(np.float32)),)
