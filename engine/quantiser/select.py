"""Choose the nodes that become integers, and give each other node the reason why it stays float."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from trireme.ir.graph import Graph, Node, node_names
from trireme.ir.op import get_op
from trireme.passes.algebra import named_clamp
from trireme.quantiser.scheme import FLOAT_SUMS, ModelKind, QuantScheme, form_of, is_product
from trireme.support.errors import GraphError


def half_of(node: int) -> int:
    """Return the number that stands for a node in float16 where its id stands for integers.

    It is negative, and its own inverse.
    """
    return ~node


@dataclass(frozen=True)
class Selection:
    """The nodes that become integers, and the reason for each other node, by node id.

    to_floats: taken products that read integers and make floats
    halves: nodes that compute in float16, none of which is taken; in a switched graph all that may
    """

    taken: frozenset[int]
    reasons: Mapping[int, str]
    to_floats: frozenset[int] = frozenset()
    halves: frozenset[int] = frozenset()

    @property
    def to_integers(self) -> frozenset[int]:
        """The taken nodes that make integers."""
        return self.taken - self.to_floats


def select(
    graph: Graph, scheme: QuantScheme, kind: ModelKind, keep_float: Collection[str]
) -> Selection:
    """Return the nodes that a scheme takes.

    keep_float: names of nodes, or "op:NAME" for all nodes of an op
    Errors: GraphError, if there is no such node
    """
    kept = named_nodes(graph, keep_float)
    reasons = {
        node.id: "it was asked to stay float"
        if node.id in kept
        else reason_of(graph, node, scheme, kind)
        for node in graph.nodes
    }
    candidates = {node for node, reason in reasons.items() if not reason}
    taken = settled(graph, candidates)
    for node in candidates - taken:
        reasons[node] = "no product of integers is beside it, so it would only be converted twice"
    return Selection(frozenset(taken), {n: why for n, why in reasons.items() if why})


def making_floats(graph: Graph, selection: Selection) -> Selection:
    """Return the selection whose products make floats, where an op has that form.

    A move keeps integers only between other integers, so it may be float now.
    """
    products = {n for n in selection.taken if graph.node(n).op in FLOAT_SUMS}
    others = settled(graph, set(selection.taken - products))
    moves = selection.taken - products - others
    why = "it moves floats between products that make floats"
    reasons = {**selection.reasons, **dict.fromkeys(moves, why)}
    return Selection(frozenset(products | others), reasons, frozenset(products))


def named_nodes(graph: Graph, keep_float: Collection[str]) -> set[int]:
    """Return the ids of named nodes, or those of an op.

    Errors: GraphError, if there is no such node
    """
    names = node_names(graph)
    found: set[int] = set()
    for name in keep_float:
        op = name.removeprefix("op:") if name.startswith("op:") else None
        here = {n.id for n in graph.nodes if (n.op == op if op else name == names[n.id])}
        if not here:
            raise GraphError(
                f"keep_float: no node is called {name!r}",
                facts=[f"nodes: {', '.join(list(names.values())[:8])}, ..."],
                fix="name a node by its output after folding, or all nodes of an op by op:NAME",
            )
        found |= here
    return found


def reason_of(graph: Graph, node: Node, scheme: QuantScheme, kind: ModelKind) -> str:
    """Return why a node stays float; nothing where it may become integers."""
    op, form = get_op(node.op), form_of(get_op(node.op))
    if graph.type(node.outputs[0]).dtype != "float32":
        return f"it makes {graph.type(node.outputs[0]).dtype}, no float32"
    if not form or not (op.quantized or op.moves):
        return f"{node.op} has no integer form"
    if form not in kind.forms:
        return kind.why
    if scheme.ops is not None and not op.moves and node.op not in scheme.ops:
        return f"{node.op} has no form on {scheme.activations}"
    activation = str(node.attrs.get("activation", ""))
    if activation and not named_clamp(activation):
        return f"its activation {activation} is no clamp"
    if activation and node.op == "concat":
        return "a concat of integers has no activation"
    if form == "linear":
        return _product_reason(graph, node)
    return _shape_reason(graph, node)


def _product_reason(graph: Graph, node: Node) -> str:
    weights = graph.values[node.used[1]].data
    if weights is None:
        return "its weights are no constant"
    if not np.all(np.isfinite(weights)):
        return "its weights are not all finite"
    if node.op == "matmul":
        return "its weights are no matrix of a fully_connected"
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = graph.values[node.inputs[2]].data
        if bias is None or bias.ndim != 1:
            return "its bias is no constant of one number a channel"
    if len(node.used) > 3:
        return "it has a residual"
    if node.op == "conv_transpose" and node.attrs.get("groups", 1) != 1:
        return "a conv_transpose of groups has weights of one scale only"
    if graph.values[node.used[0]].is_constant:
        return "its input is a constant"
    return ""


def _shape_reason(graph: Graph, node: Node) -> str:
    if all(graph.values[i].is_constant for i in data_inputs(node)):
        return "its inputs are constants"
    if node.op == "resize" and node.attrs["mode"] == "cubic":
        return "a cubic resize goes beyond the range of its input"
    if node.op == "clip" and any(
        i is not None and not graph.values[i].is_constant for i in node.inputs[1:]
    ):
        return "the limits of a clip of integers must be constants"
    return ""


def data_inputs(node: Node) -> tuple[int, ...]:
    """Return the inputs that hold data; the others are weights, sizes, axes and limits."""
    op, form = get_op(node.op), form_of(get_op(node.op))
    if op.arity[1] is None or (form == "own" and len(op.input_names) == 2 and op.elementwise):
        return node.used
    return node.used[:1]


def settled(graph: Graph, candidates: set[int]) -> set[int]:
    """Return the candidates but for moves between floats and islands without a product."""
    taken = {n for n in candidates if form_of(get_op(graph.node(n).op)) != "same"}
    same = [graph.node(n) for n in sorted(candidates - taken)]
    changed = True
    while changed:
        changed = False
        for node in same:
            if node.id not in taken and (
                _is_after(graph, node, taken) or _is_before(graph, node, taken)
            ):
                taken.add(node.id)
                changed = True
    return {n for island in _islands(graph, taken) if _multiplies(graph, island) for n in island}


def _is_after(graph: Graph, node: Node, taken: set[int]) -> bool:
    makers = [graph.producer(i) for i in data_inputs(node) if not graph.values[i].is_constant]
    return all(maker is not None and maker.id in taken for maker in makers)


def _is_before(graph: Graph, node: Node, taken: set[int]) -> bool:
    readers = [reader for out in node.outputs for reader in graph.users(out)]
    leaves = any(graph.is_output(out) for out in node.outputs)
    return bool(readers) and not leaves and all(reader.id in taken for reader in readers)


def _multiplies(graph: Graph, island: Collection[int]) -> bool:
    return any(is_product(graph.node(n)) for n in island)


def _islands(graph: Graph, taken: Collection[int]) -> Iterator[set[int]]:
    """Yield the connected sets of taken nodes."""
    left = set(taken)
    while left:
        work, island = [left.pop()], set()
        while work:
            node = graph.node(work.pop())
            island.add(node.id)
            makers = (graph.producer(i) for i in node.used)
            near = [m for m in makers if m] + [r for out in node.outputs for r in graph.users(out)]
            found = {n.id for n in near} & left
            left -= found
            work += found
        yield island
