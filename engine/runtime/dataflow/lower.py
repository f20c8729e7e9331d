"""Lower structured control flow to dataflow primitives.

An `if` sends its captures through switches, and its branches meet in merges. A `loop` or `scan` is
a frame: each value that it carries enters, and goes round through a merge, a switch on the
condition and a next_iteration; the switch's false output exits. Rows to stack are a carried list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from trireme.ir.graph import Graph, Node
from trireme.ops.repeats import Repeat, bodies_of, repeat_of
from trireme.runtime.dataflow import calls
from trireme.runtime.dataflow.graph import DataflowGraph, Operand, Port, Primitive


def lower(graph: Graph) -> DataflowGraph:
    """Return the dataflow form of a graph: same inputs, outputs and results."""
    lowering = _Lowering()
    fed = {v.id: lowering.add("input", v.name, values=(v,)) for v in graph.input_values()}
    known: dict[int, Operand] = dict(fed)
    results = lowering.nodes(graph, known, None)
    inputs = {value: port.primitive for value, port in fed.items()}
    outputs = [results[value] for value in graph.outputs]
    return DataflowGraph(
        graph.name,
        tuple(lowering.primitives),
        inputs,
        outputs,
        graph.symbols,
        [value.name for value in graph.output_values()],
    )


@dataclass
class _Lowering:
    """Primitives so far, and how often each frame's name was used."""

    primitives: list[Primitive] = field(default_factory=list)
    frames: dict[str, int] = field(default_factory=dict)

    def add(self, kind: Any, label: str, *operands: Operand, **more: Any) -> Port:
        """Add a primitive and return its first output."""
        made = Primitive(len(self.primitives), kind, label, operands, **more)
        self.primitives.append(made)
        return Port(made.id)

    def nodes(
        self, graph: Graph, known: dict[int, Operand], pivot: Port | None
    ) -> dict[int, Operand]:
        """Lower the nodes of a graph, given its inputs; return all its values.

        pivot: the token that says that this branch or turn is taken; None outside any
        """
        known |= {v.id: v.data for v in graph.values.values() if v.data is not None}
        places: dict[int, Port] = {}
        for node in graph.nodes:
            operands = [None if value is None else known[value] for value in node.inputs]
            after = tuple(places[other] for other in node.after)
            results = self._node(graph, node, operands, pivot, after)
            known |= dict(zip(node.outputs, results, strict=True))
            first = next((one for one in results if isinstance(one, Port)), None)
            if first is not None:
                places[node.id] = first
        return known

    def _node(
        self,
        graph: Graph,
        node: Node,
        operands: Sequence[Operand],
        pivot: Port | None,
        after: tuple[Port, ...],
    ) -> Sequence[Operand]:
        if bodies_of(node):
            form = repeat_of(node.attrs)
            if form is None:
                return self._branch(graph, node, operands, pivot)
            return self._loop(graph, node, form, operands, pivot)
        waits = any(isinstance(one, Port) for one in operands)
        controls = after if waits or pivot is None else (*after, pivot)
        made = self.add(
            "op",
            node.label,
            *operands,
            controls=controls,
            outputs=len(node.outputs),
            node=node,
            graph=graph,
        )
        return [Port(made.primitive, k) for k in range(len(node.outputs))]

    def _branch(
        self, graph: Graph, node: Node, operands: Sequence[Operand], pivot: Port | None
    ) -> Sequence[Operand]:
        condition, *captures = operands
        chosen = self._call(f"{node.label} taken", calls.is_true, condition, pivot=pivot)
        token = self.add("switch", "pivot", chosen, chosen, outputs=2)
        bodies = list(bodies_of(node).values())
        inner_values = zip(*(body.input_values() for body in reversed(bodies)), strict=True)
        sent = [
            self.add("switch", "capture", self._live(one, pivot), chosen, outputs=2, values=values)
            for one, values in zip(captures, inner_values, strict=True)
        ]
        ends = []
        for side, body in zip((1, 0), bodies, strict=True):
            given = [Port(one.primitive, side) for one in sent]
            inner = Port(token.primitive, side)
            known: dict[int, Operand] = dict(zip(body.inputs, given, strict=True))
            results = self.nodes(body, known, inner)
            ends.append([self._live(results[value], inner) for value in body.outputs])
        count = len(node.outputs)
        return [
            self.add("merge", node.label, then, other, **_sends(graph, node, k))
            for k, (then, other) in enumerate(zip(ends[0][:count], ends[1][:count], strict=True))
        ]

    def _loop(
        self,
        graph: Graph,
        node: Node,
        form: Repeat,
        operands: Sequence[Operand],
        pivot: Port | None,
    ) -> Sequence[Operand]:
        """Lower a loop or a scan; what it carries is the turn, the condition, states and lists."""
        frame = self._frame(node)
        head = (*operands[: form.first], None, None)[:2]
        values = [one for one in operands[form.first :] if one is not None]
        end = form.carried + len(form.slices)
        states, cut, captures = values[: form.carried], values[form.carried : end], values[end:]
        most = self._call("turns", calls.MostTurns(node, form), head[0], *cut, pivot=pivot)
        going = self._call("going", calls.begins, head[1], pivot=pivot)

        def enter(one: Operand, label: str, constant: bool = False) -> Port:
            token = self._live(one, pivot)
            return self.add("enter", label, token, frame=frame, is_constant=constant)

        first = [self._call("turn 0", calls.turn_0, pivot=pivot), going, *states]
        first += [self._call("no rows", calls.empty_list, pivot=pivot) for _ in form.rows]
        limit = enter(most, "turns", True)
        fixed = [enter(one, "capture", True) for one in captures]
        sliced = [enter(one, "scanned", True) for one in cut]
        merges = [self.add("merge", "carried", enter(one, "carried")) for one in first]
        goes = self._call("goes on", calls.goes_on, merges[0], merges[1], limit)
        inner = self._let_in(form, merges, goes)
        live = [Port(one.primitive, 1) for one in inner]
        made = self._turn(form, live, sliced, fixed, limit)
        lists = [
            self._call("row", calls.push, one, made[form.made + form.carried + k])
            for k, one in enumerate(live[2 + form.carried :])
        ]
        on = self._call("going", calls.is_true, made[0]) if form.counts else live[1]
        again = [
            self._call("turn + 1", calls.next_turn, live[0]),
            on,
            *made[form.made : form.made + form.carried],
            *lists,
        ]
        for merge, one in zip(merges, again, strict=True):
            back = self.add("next_iteration", "carried", one)
            self._also(merge, back)
        sends = [_sends(graph, node, k) for k in range(len(inner) - 2)]
        exits = [
            self.add("exit", "carried", Port(one.primitive, 0), **more)
            for one, more in zip(inner[2:], sends, strict=True)
        ]
        lasts, lists = exits[: form.carried], exits[form.carried :]
        whole = [
            self._call("stack", calls.StackedRows(node, form, k), one, *values, **more)
            for k, (one, more) in enumerate(zip(lists, sends[form.carried :], strict=True))
        ]
        return [*lasts, *whole][: len(node.outputs)]

    def _let_in(self, form: Repeat, merges: Sequence[Port], goes: Port) -> list[Port]:
        """Add a switch for each thing that is carried: out of the frame, or into a turn."""
        given = list(form.body.input_values())[: form.first + form.carried]
        stated = [*((None,) * (0 if form.counts else 2)), *given]
        return [
            self.add("switch", "carried", one, goes, outputs=2, values=(None, value))
            for one, value in zip_longest(merges, stated)
        ]

    def _turn(
        self,
        form: Repeat,
        live: Sequence[Port],
        sliced: Sequence[Port],
        fixed: Sequence[Port],
        limit: Port,
    ) -> list[Port]:
        """Add the nodes of a body on what is carried into a turn; return its outputs."""
        cut_values = list(form.body.input_values())[form.first + form.carried :]
        rows = [
            self._call("slice", calls.TurnSlice(*way), one, live[0], limit, values=(value,))
            for one, way, value in zip(sliced, form.slices, cut_values, strict=False)
        ]
        now = [
            self.add(
                "call", "capture", one, controls=live[:1], function=calls.same, values=(value,)
            )
            for one, value in zip(fixed, cut_values[len(sliced) :], strict=True)
        ]
        given = [*(live[:2] if form.counts else []), *live[2 : 2 + form.carried], *rows, *now]
        known: dict[int, Operand] = dict(zip(form.body.inputs, given, strict=True))
        results = self.nodes(form.body, known, live[0])
        return [self._live(results[value], live[0]) for value in form.body.outputs]

    def _frame(self, node: Node) -> str:
        name = node.source or node.label
        count = self.frames[name] = self.frames.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def _call(
        self,
        label: str,
        function: Any,
        *operands: Operand,
        pivot: Port | None = None,
        **more: Any,
    ) -> Port:
        waits = any(isinstance(one, Port) for one in operands)
        controls = () if waits or pivot is None else (pivot,)
        return self.add("call", label, *operands, controls=controls, function=function, **more)

    def _live(self, operand: Operand, pivot: Port | None) -> Port:
        """Return an operand as a token of this branch or turn."""
        if isinstance(operand, Port):
            return operand
        return self._call("constant", calls.same, operand, pivot=pivot)

    def _also(self, merge: Port, token: Port) -> None:
        """Give a merge a second input."""
        old = self.primitives[merge.primitive]
        self.primitives[merge.primitive] = replace(old, operands=(*old.operands, token))


def _sends(graph: Graph, node: Node, output: int) -> dict[str, Any]:
    """Return what a primitive says of the output of a control node that it sends."""
    if output >= len(node.outputs):
        return {}
    return {"node": node, "graph": graph, "values": (graph.values[node.outputs[output]],)}
