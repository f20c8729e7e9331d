"""known_branches: an `if` whose condition is a constant becomes the nodes of its branch."""

from __future__ import annotations

from trireme.graph import Graph, Node
from trireme.op import get_op
from trireme.rewrite import Draft, Rewritten, apply, rules_by_op


def known_branches(graph: Graph) -> Rewritten:
    """Put the nodes of the branch that will be taken in the place of an if."""
    return apply(graph, rules_by_op((["if"], branch_taken)))


def branch_taken(g: Draft, root: Node) -> tuple[int, ...] | None:
    """if(constant) -> the outputs of then_branch or of else_branch."""
    condition = g.data(root.used[0])
    if condition is None or condition.size != 1 or None in root.inputs:
        return None
    body: Graph = root.attrs["then_branch" if condition.reshape(()) else "else_branch"]
    if any(node.after or get_op(node.op).effect for node in body.nodes):
        return None
    values = dict(zip(body.inputs, root.used[1:], strict=True))
    for value in body.values.values():
        if value.data is not None:
            values[value.id] = g.constant(value.data, value.name, value.quant)
    for node in body.nodes:
        inputs = [None if i is None else values[i] for i in node.inputs]
        quants = [body.type(out).quant for out in node.outputs]
        made = g.add_many(node.op, inputs, node.attrs, [node], quants)
        values.update(zip(node.outputs, made, strict=True))
    return tuple(values[out] for out in body.outputs[: len(root.outputs)])
