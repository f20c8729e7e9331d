"""carried_states: states that bodies of control flow use become values that the bodies carry.

    loop(n, x), body: y = assign(variable(s) + x)   ->   v = variable(s)
                                                         v = loop(n, v, x), body: v = v + x
                                                         assign(v)

A session does this before all else. What is left has its order of effects outside of bodies, where
every mode keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trireme.ir.builder import GraphBuilder
from trireme.ir.effects import uses_state, writes_state
from trireme.ir.graph import Graph, Node, Value
from trireme.ops.repeats import bodies_of, repeat_of
from trireme.support.errors import GraphError


def carried_states(graph: Graph) -> Graph:
    """Return the graph with states used outside of bodies only; the graph itself where they are.

    Errors: GraphError, if a state of a body has no constant initial value
    """
    if not any(map(_states_in, graph.nodes)):
        return graph
    initials = {state: value for state, value in _initials(graph) if value is not None}
    return _Carrying(initials).rebuilt(graph)


def _states_in(node: Node) -> list[str]:
    """Return the states that the bodies of a node use."""
    found: set[str] = set()
    for body in bodies_of(node).values():
        for inner in body.nodes:
            found.update([inner.attrs["state"]] if uses_state(inner) else _states_in(inner))
    return sorted(found)


def _writes(body: Graph) -> Iterator[str]:
    """Yield the states that a body writes."""
    for node in body.nodes:
        if writes_state(node):
            yield node.attrs["state"]
        for inner in bodies_of(node).values():
            yield from _writes(inner)


def _initials(graph: Graph) -> Iterator[tuple[str, Value | None]]:
    """Yield each state with its initial value, None where that is no constant."""
    for node in graph.nodes:
        if node.op == "variable":
            value = graph.values[node.used[0]]
            yield node.attrs["state"], value if value.is_constant else None
        for body in bodies_of(node).values():
            yield from _initials(body)


class _Carrying:
    def __init__(self, initials: Mapping[str, Value]) -> None:
        self._initials = initials

    def rebuilt(self, graph: Graph) -> Graph:
        """Return a graph whose bodies use no state."""
        b = GraphBuilder(graph.name)
        b.symbols.update(graph.symbols)
        known = {v.id: b.input(v.name, v.type) for v in graph.input_values()}
        self._nodes(b, graph, known)
        return b.finish(*(known[value] for value in graph.outputs))

    def _nodes(self, b: GraphBuilder, graph: Graph, known: dict[int, int]) -> None:
        """Add the nodes of a graph; `known` has its inputs, and gets its other values."""
        for value in graph.values.values():
            if value.data is not None:
                known[value.id] = b.constant(value.name, value.data, value.quant)
        for node in graph.nodes:
            inputs = [None if one is None else known[one] for one in node.inputs]
            states = _states_in(node)
            made = (
                self._control(b, graph, node, inputs, states)
                if states
                else _copied(b, graph, node, inputs, node.attrs)
            )
            known |= dict(zip(node.outputs, made, strict=True))

    def _control(
        self,
        b: GraphBuilder,
        graph: Graph,
        node: Node,
        inputs: Sequence[int | None],
        states: Sequence[str],
    ) -> Sequence[int]:
        """Add a control node that carries states, between reading and writing them."""
        before = [b.add("variable", self._initial(b, node, one), state=one) for one in states]
        form, attrs = repeat_of(node.attrs), dict(node.attrs)
        first, made = (0, 0) if form is None else (form.first, form.made)
        carried = 0 if form is None else form.carried
        at_in, at_out = first + carried, made + carried
        for key, body in bodies_of(node).items():
            ends = (len(body.inputs), len(body.outputs)) if form is None else (at_in, at_out)
            attrs[key] = self._threaded(self.rebuilt(body), states, *ends)
        if form is not None:
            attrs["carried"] = carried + len(states)
        at = len(inputs) if form is None else at_in
        operands = [*inputs, *[None] * (at - len(inputs))]
        operands = [*operands[:at], *before, *operands[at:]]
        split = len(node.outputs) if form is None else carried
        outs = _copied(b, graph, node, operands, attrs, len(states), split)
        after = outs[split : split + len(states)]
        written = {state for body in bodies_of(node).values() for state in _writes(body)}
        for state, value in zip(states, after, strict=True):
            if state in written:
                b.add("assign", value, state=state, source=node.source)
        return [*outs[:split], *outs[split + len(states) :]]

    def _initial(self, b: GraphBuilder, node: Node, state: str) -> int:
        value = self._initials.get(state)
        if value is None or value.data is None:
            raise GraphError(
                f"{node.label}: a body uses state {state!r}, which has no constant initial value",
                fix="a variable node of the state with a constant",
            )
        return b.constant(value.name, value.data, value.quant)

    def _threaded(self, body: Graph, states: Sequence[str], at_in: int, at_out: int) -> Graph:
        """Return a body that takes states as inputs and returns them, at these places."""
        b = GraphBuilder(body.name)
        b.symbols.update(body.symbols)
        known, now = dict[int, int](), dict[str, int]()
        for place in range(len(body.inputs) + 1):
            if place == at_in:
                now = {one: b.input(one, self._initials[one].type) for one in states}
            if place < len(body.inputs):
                value = body.values[body.inputs[place]]
                known[value.id] = b.input(value.name, value.type)
        for value in body.values.values():
            if value.data is not None:
                known[value.id] = b.constant(value.name, value.data, value.quant)
        for node in body.nodes:
            inputs = [None if one is None else known[one] for one in node.inputs]
            if not uses_state(node):
                made = _copied(b, body, node, inputs, node.attrs)
                known |= dict(zip(node.outputs, made, strict=True))
                continue
            if writes_state(node):
                now[node.attrs["state"]] = known[node.used[0]]
            known[node.outputs[0]] = now[node.attrs["state"]]
        outs = [known[value] for value in body.outputs]
        return b.finish(*outs[:at_out], *(now[one] for one in states), *outs[at_out:])


def _copied(
    b: GraphBuilder,
    graph: Graph,
    node: Node,
    inputs: Sequence[int | None],
    attrs: Mapping[str, object],
    more: int = 0,
    place: int = 0,
) -> tuple[int, ...]:
    """Add a node with other inputs and attributes, and `more` outputs at a place."""
    outs = [graph.values[value] for value in node.outputs]
    names, quants = [one.name for one in outs], [one.quant for one in outs]
    return b.add_node(
        node.op,
        inputs,
        attrs,
        outputs=len(outs) + more,
        names=[*names[:place], *[""] * more, *names[place:]],
        quants=[*quants[:place], *[None] * more, *quants[place:]],
        source=node.source,
        pin=node.pin,
    )
