"""Find float operators on int8 weights, whose input is rounded to 8 bits at run time.

    levels, step = rounded(x);  y = activation(op(levels, w) * (step * scales) + bias)

The nodes that round (**levels**) and those of each product become a kernel each. They belong when
nobody outside reads the values between them. Several products may share their levels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trireme.devices.cpu.kernels.expressions import ACTIVATIONS
from trireme.devices.cpu.kernels.int8.dot_variants import Way
from trireme.devices.cpu.patterns.pattern_match import Pattern, Solution, number_of, solve
from trireme.ir.graph import Graph, Node

SYMMETRIC: dict[str, Pattern] = {
    "levels": ("round", ("mul", "x", ("div", 127.0, "step"))),
    "step": ("max", ("reduce_max", ("abs", "x"), "axes"), "tiny"),
}
"""127 steps either way. The step here is all of them together, max |x|."""
ASYMMETRIC: dict[str, Pattern] = {
    "levels": (
        "sub",
        ("clip", ("round", ("add", ("div", "x", "step"), "point")), -128.0, 127.0),
        "point",
    ),
    "point": ("clip", ("round", ("sub", -128.0, ("div", "low", "step"))), -128.0, 127.0),
    "step": ("max", ("mul", ("sub", "high", "low"), 1 / 255), "tiny"),
    "low": ("min", ("reduce_min", "x", "axes"), 0.0),
    "high": [("max", ("reduce_max", "x", "axes"), 0.0), ("relu", ("reduce_max", "x", "axes"))],
}
MOST_DEPTH = (1 << 31) // (255 * 128) - 1
"""Products that a 32-bit sum surely holds."""
Pads = tuple[int, int, int, int]


@dataclass(frozen=True)
class Levels:
    """A value x rounded to 8 bits, and the step between two levels of each image of it.

    images: how many parts of x have a range of their own
    readers: the ops that multiply levels
    ways: their variants (int8/dot_variants.py), by the op's id, once chosen
    """

    nodes: tuple[Node, ...]
    x: int
    levels: int
    step: int
    images: int
    tiny: float
    asymmetric: bool
    readers: tuple[Node, ...] = ()
    ways: dict[int, Way] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class HybridProduct:
    """A conv or fully_connected `op` on levels, and what follows it up to the activation."""

    nodes: tuple[Node, ...]
    source: Levels
    op: Node
    scales: tuple[int, ...]
    bias: int | None
    activation: str
    output: int


def pads_of(op: Node) -> Pads:
    """Return the border (top, left, bottom, right) that a product wants around its levels."""
    top, left, bottom, right = op.attrs["pads"] if op.op == "conv" else (0, 0, 0, 0)
    return top, left, bottom, right


def find_hybrid(graph: Graph) -> list[Levels | HybridProduct]:
    """Return the levels and products of a graph; none shares a node with another."""
    starts = dict.fromkeys(n.used[0] for n in graph.nodes if n.op in ("conv", "fully_connected"))
    found: list[Levels | HybridProduct] = []
    for value in starts:
        levels = _levels(graph, value)
        if levels is not None:
            found += _family(graph, levels)
    return found


def _levels(graph: Graph, value: int) -> Levels | None:
    for equations in (SYMMETRIC, ASYMMETRIC):
        for found in solve(graph, equations, Solution({"levels": value})):
            images, tiny = _images(graph, found), number_of(graph, found["tiny"])
            nodes = _in_order(graph, found.nodes)
            if images and tiny and tiny > 0 and _are_float(graph, nodes):
                return Levels(
                    nodes,
                    found["x"],
                    value,
                    found["step"],
                    images,
                    float(tiny),
                    equations is ASYMMETRIC,
                )
    return None


def _images(graph: Graph, found: Solution) -> int:
    """Return how many ranges x has; 0 if they are not over its last axes, kept as axes of 1."""
    x, axes = graph.type(found["x"]), graph.values[found["axes"]].data
    rank = len(x.shape)
    if axes is None or not rank or not x.elements:
        return 0
    reduced = sorted(int(axis) % rank for axis in axes.reshape(-1))
    first = rank - len(reduced)
    reducers = [node for node in found.nodes.values() if node.op.startswith("reduce_")]
    kept = all(node.attrs["keepdims"] for node in reducers)
    whole = bool(reduced) and reduced == list(range(first, rank))
    return math.prod(x.dims[:first]) if kept and whole else 0


def _family(graph: Graph, levels: Levels) -> list[Levels | HybridProduct]:
    """Return levels and all their products; nothing, if somebody else reads a value between."""
    products = [_product(graph, levels, node) for node in graph.users(levels.levels)]
    good = [product for product in products if product is not None]
    parts: list[Levels | HybridProduct] = [levels, *good]
    nodes = [node for part in parts for node in part.nodes]
    family = {node.id for node in nodes}
    inside = {value for node in nodes for value in node.outputs}
    inside -= {product.output for product in good}
    closed = all(node.id in family for value in inside for node in graph.users(value))
    if len(good) < len(products) or not closed or inside & set(graph.outputs):
        return []
    levels = replace(levels, readers=tuple(product.op for product in good))
    taken: set[int] = set()
    made: list[Levels | HybridProduct] = [levels]
    for product in good:
        mine = tuple(node for node in product.nodes if node.id not in taken)
        taken |= {node.id for node in mine}
        made.append(replace(product, nodes=mine, source=levels))
    return made


def _product(graph: Graph, levels: Levels, op: Node) -> HybridProduct | None:
    """Return the product that a reader of levels is, if it is one."""
    scaled = _only_reader(graph, op.outputs[0], "mul")
    if not _multiplies_integers(graph, levels, op) or scaled is None:
        return None
    rest = [value for value in scaled.used if value != op.outputs[0]]
    chain = _scales(graph, levels, rest[0], op) if len(rest) == 1 else None
    if chain is None:
        return None
    between, scales = chain
    last, bias = scaled, None
    adds = _only_reader(graph, scaled.outputs[0], "add")
    if not scaled.attrs["activation"] and adds is not None:
        others = [value for value in adds.used if value != scaled.outputs[0]]
        if len(others) == 1 and _is_row(graph, others[0], op):
            last, bias = adds, others[0]
    nodes = _in_order(graph, {n.id: n for n in (*between, op, scaled, last)})
    activation = str(last.attrs["activation"])
    same = graph.type(last.outputs[0]).shape == graph.type(op.outputs[0]).shape
    if activation not in ACTIVATIONS or not same or not _are_float(graph, nodes):
        return None
    return HybridProduct(nodes, levels, op, scales, bias, activation, last.outputs[0])


def _multiplies_integers(graph: Graph, levels: Levels, op: Node) -> bool:
    """Whether a node is a linear op on levels whose weights are constants of 8 bits."""
    if op.op not in ("conv", "fully_connected") or len(op.used) != 2 or op.attrs["activation"]:
        return False
    w, x = graph.values[op.used[1]].data, graph.type(op.used[0])
    if op.used[0] != levels.levels or w is None or w.dtype != np.float32 or not w.size:
        return False
    if op.op == "conv" and (op.attrs["layout"] != "NHWC" or len(x.shape) != 4):
        return False
    images = x.elements // x.dims[-1] if op.op == "fully_connected" else x.dims[0]
    if images != levels.images or math.prod(w.shape[1:]) > MOST_DEPTH:
        return False
    return bool((np.rint(w) == w).all() and w.min() >= -128 and w.max() <= 127)


def _scales(
    graph: Graph, levels: Levels, value: int, op: Node
) -> tuple[list[Node], tuple[int, ...]] | None:
    """Walk back from what scales a product to the step: the nodes between and their constants."""
    nodes: list[Node] = []
    constants: list[int] = []
    while value != levels.step:
        node = graph.producer(value)
        if node is None or node.op != "mul" or node.attrs["activation"]:
            return None
        known = [other for other in node.used if graph.values[other].is_constant]
        if len(known) != 1 or not _is_row(graph, known[0], op):
            return None
        (value,) = (other for other in node.used if other != known[0])
        nodes.append(node)
        constants.insert(0, known[0])
    return nodes, tuple(constants)


def _is_row(graph: Graph, value: int, op: Node) -> bool:
    """Whether a value is constant: one number, or one for each channel of a product."""
    data, channels = graph.values[value].data, graph.type(op.outputs[0]).dims[-1]
    if data is None or data.dtype != np.float32:
        return False
    return data.size == 1 or (data.size == channels and data.shape[-1] == channels)


def _only_reader(graph: Graph, value: int, op: str) -> Node | None:
    users = graph.users(value)
    alone = not graph.is_output(value) and len(users) == 1 and users[0].op == op
    return users[0] if alone else None


def _are_float(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether all results of nodes are float32 and not quantised."""
    types = [graph.type(value) for node in nodes for value in node.outputs]
    return all(type.dtype == "float32" and type.quant is None for type in types)


def _in_order(graph: Graph, nodes: Mapping[int, Node]) -> tuple[Node, ...]:
    return tuple(node for node in graph.nodes if node.id in nodes)
