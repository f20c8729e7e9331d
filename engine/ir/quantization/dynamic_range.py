"""Find float operators on int8 weights, whose input is rounded to 8 bits at run time.

    levels, step = rounded(x);  y = activation(op(levels, w) * (step * scales) + bias)

The cpu compiles the nodes that round (**levels**) and those of each product to a kernel each; files
of TensorFlow Lite hold an operator. The nodes belong when nobody outside reads the values between
them. Several products may share their levels.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ir.pattern_match import Pattern, Solution, number_of, solve
from trireme.support.records import dataclass

RoundingKind = Literal["symmetric", "asymmetric", "unsigned"]
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
UNSIGNED: dict[str, Pattern] = {
    "levels": (
        "sub",
        ("clip", ("add", ("round", ("div", "x", "step")), "point"), 0.0, 255.0),
        "point",
    ),
    "point": ("clip", ("round", ("div", ("sub", 0.0, "low"), "step")), 0.0, 255.0),
    "step": ("where", ("equal", "extent", 0.0), 1.0, ("div", "extent", 255.0)),
    "extent": ("sub", "high", "low"),
    "low": ("min", ("reduce_min", "x"), 0.0),
    "high": [("max", ("reduce_max", "x"), 0.0), ("relu", ("reduce_max", "x"))],
}
"""ONNX's DynamicQuantizeLinear: one range for the whole of x."""
KINDS: dict[RoundingKind, dict[str, Pattern]] = {
    "symmetric": SYMMETRIC,
    "asymmetric": ASYMMETRIC,
    "unsigned": UNSIGNED,
}
MOST_DEPTH = (1 << 31) // (255 * 255) - 1
"""Products that a 32-bit sum surely holds."""
Pads = tuple[int, int, int, int]


@dataclass(frozen=True)
class LinearOp:
    """A conv or fully_connected on levels: the first node, and its weights by parts of the depth.

    Sums that float32 does not hold are cut into parts, each a slice of the levels by its weights;
    the parts are added as int32.
    """

    node: Node
    weights: tuple[int, ...]


@dataclass(frozen=True)
class Levels:
    """A value x rounded to 8 bits, and the step between two levels of each image of it.

    images: how many parts of x have a range of their own
    readers: the ops that multiply levels
    ways: the variants of their kernels, by the node's id, once a device has chosen
    """

    nodes: tuple[Node, ...]
    x: int
    levels: int
    step: int
    images: int
    tiny: float
    kind: RoundingKind
    readers: tuple[LinearOp, ...] = ()
    ways: dict[int, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class HybridProduct:
    """An `op` on levels, and what follows it up to the activation."""

    nodes: tuple[Node, ...]
    source: Levels
    op: LinearOp
    scales: tuple[int, ...]
    bias: int | None
    activation: str
    output: int


def pads_of(op: Node) -> Pads:
    """Return the border (top, left, bottom, right) that a product wants around its levels."""
    top, left, bottom, right = op.attrs["pads"] if op.op == "conv" else (0, 0, 0, 0)
    return top, left, bottom, right


def find_hybrid(graph: Graph, activations: Collection[str]) -> list[Levels | HybridProduct]:
    """Return the levels and products of a graph; none shares a node with another.

    activations: those that may end a product
    """
    starts = dict.fromkeys(n.used[0] for n in graph.nodes if _is_linear(n) or n.op == "slice")
    found: list[Levels | HybridProduct] = []
    for value in starts:
        levels = _levels(graph, value)
        if levels is not None:
            found += _family(graph, levels, activations)
    return found


def _is_linear(node: Node) -> bool:
    return node.op in ("conv", "fully_connected")


def _levels(graph: Graph, value: int) -> Levels | None:
    for kind, equations in KINDS.items():
        for found in solve(graph, equations, Solution({"levels": value})):
            images, tiny = _images(graph, found), _tiny(graph, found)
            nodes = _in_order(graph, found.nodes)
            if images and tiny > 0 and _are_float(graph, nodes):
                return Levels(nodes, found["x"], value, found["step"], images, tiny, kind)
    return None


def _tiny(graph: Graph, found: Solution) -> float:
    """Return the least step, 1 where the rule has none; 0 where the step is not constant."""
    if "tiny" not in found.values:
        return 1.0
    return float(number_of(graph, found["tiny"]) or 0)


def _images(graph: Graph, found: Solution) -> int:
    """Return how many ranges x has; 0 if they are not over its last axes, kept as axes of 1."""
    x = graph.type(found["x"])
    rank = len(x.shape)
    if not rank or not x.is_static or not x.elements:
        return 0
    if "axes" not in found.values:
        return 1
    axes = graph.values[found["axes"]].data
    if axes is None:
        return 0
    reduced = sorted(int(axis) % rank for axis in axes.reshape(-1))
    first = rank - len(reduced)
    reducers = [node for node in found.nodes.values() if node.op.startswith("reduce_")]
    kept = all(node.attrs["keepdims"] for node in reducers)
    whole = bool(reduced) and reduced == list(range(first, rank))
    return math.prod(x.dims[:first]) if kept and whole else 0


def _family(
    graph: Graph, levels: Levels, activations: Collection[str]
) -> list[Levels | HybridProduct]:
    """Return levels and all their products; nothing, if somebody else reads a value between."""
    users = graph.users(levels.levels)
    whole = [[node] for node in users if node.op != "slice"]
    products = [_product(graph, levels, parts) for parts in whole + _in_parts(graph, levels)]
    good = [one for one in products if one is not None and one.activation in activations]
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


def _product(graph: Graph, levels: Levels, parts: Sequence[Node]) -> HybridProduct | None:
    """Return the product that readers of levels are, or of slices of levels in their order."""
    whole = _sum_of_parts(graph, levels, parts)
    if whole is None or not all(_multiplies_integers(graph, levels, op) for op in parts):
        return None
    if sum(math.prod(graph.type(op.used[1]).dims[1:]) for op in parts) > MOST_DEPTH:
        return None
    inside, value = whole
    op, scaled = parts[0], _only_reader(graph, value, "mul")
    if scaled is None:
        return None
    rest = [other for other in scaled.used if other != value]
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
    floats = _in_order(graph, {n.id: n for n in (*between, *parts, scaled, last)})
    activation = str(last.attrs["activation"])
    same = graph.type(last.outputs[0]).shape == graph.type(op.outputs[0]).shape
    if not same or not _are_float(graph, floats):
        return None
    nodes = _in_order(graph, {n.id: n for n in (*floats, *inside)})
    linear = LinearOp(op, tuple(part.used[1] for part in parts))
    return HybridProduct(nodes, levels, linear, scales, bias, activation, last.outputs[0])


def _multiplies_integers(graph: Graph, levels: Levels, op: Node) -> bool:
    """Whether a node is a linear op on levels whose weights are constants of 8 bits."""
    if not _is_linear(op) or len(op.used) != 2 or op.attrs["activation"]:
        return False
    w, x = graph.values[op.used[1]].data, graph.type(op.used[0])
    if w is None or w.dtype != np.float32 or not w.size:
        return False
    if op.op == "conv" and (op.attrs["layout"] != "NHWC" or len(x.shape) != 4):
        return False
    rows = op.op == "fully_connected"
    images = x.elements // x.dims[-1] if rows else x.dims[0]
    if (images != levels.images and not (rows and levels.images == 1)) or not (
        np.rint(w) == w
    ).all():
        return False
    least, most = min(0.0, float(w.min())), max(0.0, float(w.max()))
    narrow = least >= -128 and most <= 127
    return narrow or (levels.kind == "unsigned" and rows and most - least <= 255)


def _in_parts(graph: Graph, levels: Levels) -> list[list[Node]]:
    """Return the products of slices of levels, those of one sum together in their order."""
    sums: dict[int, list[Node]] = {}
    for cut in graph.users(levels.levels):
        for op in graph.users(cut.outputs[0]) if cut.op == "slice" else ():
            value = op.outputs[0]
            while len(after := graph.users(value)) == 1 and after[0].op in ("cast", "add"):
                if graph.type(after[0].outputs[0]).dtype != "int32":
                    break
                value = after[0].outputs[0]
            sums.setdefault(value, []).append(op)
    return [sorted(parts, key=lambda op: _bounds(graph, op)) for parts in sums.values()]


def _bounds(graph: Graph, op: Node) -> tuple[int, int]:
    """Return where the part of the depth that a product reads begins and ends; (0, 0) unknown."""
    cut = graph.producer(op.used[0])
    if cut is None or cut.op != "slice":
        return 0, 0
    depth = graph.type(cut.used[0]).dims[-1]
    numbers = [graph.values[value].data for value in cut.used[1:]]
    known = [int(data[0]) for data in numbers if data is not None and data.size == 1]
    last = (-1, len(graph.type(cut.used[0]).shape) - 1)
    if (
        len(known) != len(numbers)
        or len(known) < 3
        or known[2] not in last
        or known[3:] not in ([], [1])
    ):
        return 0, 0
    return slice(known[0], known[1]).indices(depth)[:2]


def _sum_of_parts(
    graph: Graph, levels: Levels, parts: Sequence[Node]
) -> tuple[list[Node], int] | None:
    """Return the nodes that cut levels and add the parts of a product, and the sum in float32.

    None where the parts are not the whole depth in order, or anything else is in the sum.
    """
    if parts[0].used[0] == levels.levels:
        return [], parts[0].outputs[0]
    at, inside = 0, []
    for part in parts:
        cut, cast = graph.producer(part.used[0]), _only_reader(graph, part.outputs[0], "cast")
        start, stop = _bounds(graph, part)
        if start != at or stop <= start or cut is None or cast is None:
            return None
        at = stop
        inside += [cut, cast]
    if at != graph.type(levels.levels).dims[-1]:
        return None
    total, others = inside[1].outputs[0], {cast.outputs[0] for cast in inside[3::2]}
    while others:
        add = _only_reader(graph, total, "add")
        if add is None or add.attrs["activation"] or others.isdisjoint(add.used):
            return None
        others -= set(add.used)
        total = add.outputs[0]
        inside.append(add)
    cast = _only_reader(graph, total, "cast")
    if cast is None:
        return None
    integers = all(graph.type(n.outputs[0]).dtype == "int32" for n in inside if n.op != "slice")
    real = graph.type(cast.outputs[0]).dtype == "float32"
    return ([*inside, cast], cast.outputs[0]) if integers and real else None


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
    """Whether all results of nodes but comparisons are float32 and not quantised."""
    results = (node for node in nodes if node.op != "equal")
    types = [graph.type(value) for node in results for value in node.outputs]
    return all(type.dtype == "float32" and type.quant is None for type in types)


def _in_order(graph: Graph, nodes: Mapping[int, Node]) -> tuple[Node, ...]:
    return tuple(node for node in graph.nodes if node.id in nodes)
