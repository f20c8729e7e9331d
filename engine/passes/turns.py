"""Make the graph of one iteration: the body with an output for each value that changes.

Placement places these graphs, and the runtime drives them, both by the same rule: the condition
where a turn computes it, then each state that changes, then the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trireme.ir.graph import Graph, Node, TensorType, Value
from trireme.ir.verify import check
from trireme.ops.repeats import Repeat
from trireme.support.records import dataclass


@dataclass(frozen=True)
class BodyTurn:
    """One turn of a repeated body.

    graph: the inputs of the body; outputs are the condition where `asks`, then the changed states,
        then the rows. Each output is made by a node and listed once
    asks: whether a turn decides if there is another
    stops: whether the condition is false after any turn
    changed: the numbers of the states that a turn changes; the others keep their first value
    """

    graph: Graph
    asks: bool
    stops: bool
    changed: tuple[int, ...]


def turn_of(form: Repeat) -> BodyTurn:
    """Return one turn of a repeated body."""
    body, first = form.body, form.first
    asks, stops = False, False
    if form.counts:
        ended = body.values[body.outputs[0]]
        stops = ended.data is not None and not ended.data.reshape(-1)[0]
        asks = ended.data is None and ended.id != body.inputs[1]
    states = body.outputs[form.made : form.made + form.carried]
    given = body.inputs[first : first + form.carried]
    changed = [k for k, pair in enumerate(zip(states, given, strict=True)) if pair[0] != pair[1]]
    rows = body.outputs[form.made + form.carried :]
    outputs = [*body.outputs[: int(asks)], *(states[k] for k in changed), *rows]
    return BodyTurn(with_own_outputs(body, outputs), asks, stops, tuple(changed))


def has_no_end(form: Repeat) -> bool:
    """Whether no turn of a loop can be the last, so that only a trip count ends it."""
    turn = form.body.values[form.body.outputs[0]]
    always = turn.data is not None and bool(turn.data.reshape(-1)[0])
    return form.counts and (always or turn.id == form.body.inputs[1])


def with_own_outputs(body: Graph, outputs: Sequence[int]) -> Graph:
    """Return a graph of these outputs, each made by a node and listed once.

    An identity makes those that are inputs, constants or listed before.
    """
    values, nodes = dict(body.values), list(body.nodes)
    number = max((node.id for node in nodes), default=-1) + 1
    mine: list[int] = []
    for value in outputs:
        if value not in mine and body.producer(value) is not None:
            mine.append(value)
            continue
        own = max(values) + 1
        type = body.type(value)
        plain = TensorType(type.shape, type.dtype, type.quant)
        values[own] = Value(own, values[value].name, plain)
        nodes.append(Node(number, "identity", (value,), (own,), {}, source="control"))
        number += 1
        mine.append(own)
    return check(_alive(replace(body, outputs=tuple(mine), nodes=tuple(nodes), values=values)))


def _alive(graph: Graph) -> Graph:
    """Return the graph without nodes that no output needs, as for a condition that is ignored."""
    needed, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs) or node.after:
            kept.append(node)
            needed.update(node.used)
    if len(kept) == len(graph.nodes):
        return graph
    used = needed.union(graph.inputs, *(node.outputs for node in kept))
    values = {id: value for id, value in graph.values.items() if id in used}
    return replace(graph, nodes=tuple(reversed(kept)), values=values)
