"""Lower structured control flow to dataflow primitives.

An `if` sends its captures through switches, and its branches meet in merges. A `loop` or `scan` is
a frame: each value that it carries enters, and goes round through a merge, a switch on the
condition and a next_iteration; the switch's false output exits. Rows to stack are a carried list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ops.control import Repeat, bodies_of, no_rows, repeat_of, row_types
from trireme.runtime.control.dynamic import stacked, turns_at_most
from trireme.runtime.dataflow.graph import DataflowGraph, Operand, Port, Primitive
from trireme.support.dtypes import Array

PARALLEL_ITERATIONS = 32
"""Iterations of a frame that may be under way, as in TensorFlow."""


def lower(graph: Graph, parallel_iterations: int = PARALLEL_ITERATIONS) -> DataflowGraph:
    """Return the dataflow form of a graph: same inputs, outputs and results."""
    lowering = _Lowering()
    fed = {value: lowering.add("input", graph.values[value].name) for value in graph.inputs}
    results = lowering.nodes(graph, dict(fed), None)
    inputs = {value: port.primitive for value, port in fed.items()}
    outputs = [results[value] for value in graph.outputs]
    return DataflowGraph(
        graph.name, tuple(lowering.primitives), inputs, outputs, parallel_iterations
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
                return self._branch(node, operands, pivot)
            return self._loop(node, form, operands, pivot)
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
        self, node: Node, operands: Sequence[Operand], pivot: Port | None
    ) -> Sequence[Operand]:
        condition, *captures = operands
        chosen = self._call(f"{node.label} taken", _is_true, condition, pivot=pivot)
        token = self.add("switch", "pivot", chosen, chosen, outputs=2)
        sent = [
            self.add("switch", "capture", one, chosen, outputs=2) if isinstance(one, Port) else one
            for one in captures
        ]
        ends = []
        for side, body in zip((1, 0), bodies_of(node).values(), strict=True):
            given = [Port(one.primitive, side) if isinstance(one, Port) else one for one in sent]
            inner = Port(token.primitive, side)
            known = dict(zip(body.inputs, given, strict=True))
            results = self.nodes(body, known, inner)
            ends.append([self._live(results[value], inner) for value in body.outputs])
        count = len(node.outputs)
        return [
            self.add("merge", node.label, then, other)
            for then, other in zip(ends[0][:count], ends[1][:count], strict=True)
        ]

    def _loop(
        self, node: Node, form: Repeat, operands: Sequence[Operand], pivot: Port | None
    ) -> Sequence[Operand]:
        """Lower a loop or a scan; what it carries is the turn, the condition, states and lists."""
        frame = self._frame(node)
        head = (*operands[: form.first], None, None)[:2]
        values = [one for one in operands[form.first :] if one is not None]
        end = form.carried + len(form.slices)
        states, cut, captures = values[: form.carried], values[form.carried : end], values[end:]
        most = self._call("turns", _most(node, form), head[0], *cut, pivot=pivot)
        going = self._call("going", _going, head[1], pivot=pivot)

        def enter(one: Operand, label: str, constant: bool = False) -> Port:
            token = self._live(one, pivot)
            return self.add("enter", label, token, frame=frame, is_constant=constant)

        first = [self._call("turn 0", _zero, pivot=pivot), going, *states]
        first += [self._call("no rows", tuple, pivot=pivot) for _ in form.rows]
        limit = enter(most, "turns", True)
        fixed = [enter(one, "capture", True) for one in captures]
        sliced = [enter(one, "scanned", True) for one in cut]
        merges = [self.add("merge", "carried", enter(one, "carried")) for one in first]
        goes = self._call("goes on", _goes_on, merges[0], merges[1], limit)
        inner = [self.add("switch", "carried", one, goes, outputs=2) for one in merges]
        live = [Port(one.primitive, 1) for one in inner]
        rows = [
            self._call("slice", _row(axis, backward), one, live[0], limit)
            for one, (axis, backward) in zip(sliced, form.slices, strict=True)
        ]
        now = [self._in_turn(one, live[0]) for one in fixed]
        given = [*(live[:2] if form.counts else []), *live[2 : 2 + form.carried], *rows, *now]
        known: dict[int, Operand] = dict(zip(form.body.inputs, given, strict=True))
        results = self.nodes(form.body, known, live[0])
        made = [self._live(results[value], live[0]) for value in form.body.outputs]
        lists = [
            self._call("row", _push, one, made[form.made + form.carried + k])
            for k, one in enumerate(live[2 + form.carried :])
        ]
        on = self._call("going", _is_true, made[0]) if form.counts else live[1]
        again = [
            self._call("turn + 1", _next, live[0]),
            on,
            *made[form.made : form.made + form.carried],
            *lists,
        ]
        for merge, one in zip(merges, again, strict=True):
            back = self.add("next_iteration", "carried", one)
            self._also(merge, back)
        exits = [self.add("exit", "carried", Port(one.primitive, 0)) for one in inner[2:]]
        whole = [
            self._call("stack", _stack(node, form, k), one, *values)
            for k, one in enumerate(exits[form.carried :])
        ]
        return [*exits[: form.carried], *whole][: len(node.outputs)]

    def _frame(self, node: Node) -> str:
        name = node.source or node.label
        count = self.frames[name] = self.frames.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def _call(
        self, label: str, function: Any, *operands: Operand, pivot: Port | None = None
    ) -> Port:
        waits = any(isinstance(one, Port) for one in operands)
        controls = () if waits or pivot is None else (pivot,)
        return self.add("call", label, *operands, controls=controls, function=function)

    def _live(self, operand: Operand, pivot: Port | None) -> Port:
        """Return an operand as a token of this branch or turn."""
        if isinstance(operand, Port):
            return operand
        return self._call("constant", _same, operand, pivot=pivot)

    def _in_turn(self, capture: Port, pivot: Port) -> Port:
        """Return a capture as a token that is dead where the turn is not taken."""
        return self.add("call", "capture", capture, controls=(pivot,), function=_same)

    def _also(self, merge: Port, token: Port) -> None:
        """Give a merge a second input."""
        old = self.primitives[merge.primitive]
        self.primitives[merge.primitive] = Primitive(
            old.id, old.kind, old.label, (*old.operands, token)
        )


def _same(one: Any) -> Any:
    return one


def _is_true(one: Array) -> Array:
    return np.array(bool(one.reshape(-1)[0]))


def _going(condition: Array | None) -> Array:
    return np.array(True) if condition is None else _is_true(condition)


def _zero() -> Array:
    return np.array(0, np.int64)


def _next(turn: Array) -> Array:
    return np.array(int(turn) + 1, np.int64)


def _goes_on(turn: Array, going: Array, most: Array) -> Array:
    return np.array(bool(going) and (int(most) < 0 or int(turn) < int(most)))


def _push(rows: tuple[Any, ...], row: Array) -> tuple[Any, ...]:
    """Return a list with one more row: a pair of the last row and the list before it."""
    return (row, rows)


def _most(node: Node, form: Repeat) -> Any:
    """Return what gives the most turns: the trip count, or the length of what is cut; else -1."""

    def most(trips: Array | None, *cut: Array) -> Array:
        moved = [np.moveaxis(x, axis, 0) for x, (axis, _) in zip(cut, form.slices, strict=True)]
        found = turns_at_most(node, trips, moved)
        return np.array(-1 if found is None else max(found, 0), np.int64)

    return most


def _row(axis: int, backward: bool) -> Any:
    def row(whole: Array, turn: Array, most: Array) -> Array:
        at = int(most) - 1 - int(turn) if backward else int(turn)
        return np.array(whole.take(at, axis), order="C")

    return row


def _stack(node: Node, form: Repeat, k: int) -> Any:
    axis, backward = form.rows[k]

    def stack(rows: tuple[Any, ...], *values: Array) -> Array:
        found: list[Array] = []
        while rows:
            row, rows = rows
            found.append(row)
        if not found:
            return no_rows(row_types(form, values)[k], axis)
        return stacked(node, found if backward else found[::-1], axis)

    return stack
