"""Where recorded nodes go: a GraphScope is a graph or a body in the making, a Traced its value.

`trace` records calls into one scope. `capture` opens a scope for each body of control flow. An
outer value that a body reads becomes an extra input of the body and of its node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType, Value
from trireme.ir.interpreter import evaluate
from trireme.ir.op import get_op
from trireme.runtime.operators import Operators
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError, TriremeError

_MOST_INNER_CONSTANT = 64
"""The most elements of an outer constant that a body holds itself; a larger one is captured."""


@dataclass(frozen=True, eq=False, repr=False)
class Traced(Operators):
    """A value of a scope. Its operators, and the ops called on it, are recorded.

    weak: whether it stands for a Python number, which takes the dtype of a tensor beside it
    """

    scope: GraphScope
    id: int
    type: TensorType
    recorder: Recorder
    weak: bool = False

    def _apply(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        return self.recorder.apply(op, inputs, attrs)

    def _concrete(self) -> Array | None:
        return self.scope.builder.values[self.id].data

    def __repr__(self) -> str:
        return f"<traced {self.type}>"


class GraphScope:
    """A graph or a body under construction, and the outer values that it reads.

    captured: for each outer value that is read here, by its id there, its id here
    examples: elements of some inputs, from which `Recorder.example` computes the others
    """

    def __init__(self, name: str, parent: GraphScope | None = None) -> None:
        self.builder = GraphBuilder(name)
        self.parent = parent
        self.captured: dict[int, int] = {}
        self.examples: dict[int, Array] = {}

    def find(self, value: Traced) -> int:
        """Return the id of a value in this scope; an outer value becomes an input or a constant."""
        if value.scope is self:
            return value.id
        if self.parent is None:
            raise InternalError(f"{value} belongs to a body that is finished")
        outer = self.parent.find(value)
        if outer not in self.captured:
            self.captured[outer] = self._capture(self.parent.builder.values[outer])
        return self.captured[outer]

    def _capture(self, value: Value) -> int:
        if value.data is not None and value.data.size <= _MOST_INNER_CONSTANT:
            return self.builder.constant(value.name, value.data, value.quant)
        return self.builder.input(value.name, value.type)

    @property
    def captures(self) -> list[int]:
        """The outer values that are inputs of this body, by their ids outside."""
        inputs = set(self.builder.inputs)
        return [outer for outer, inner in self.captured.items() if inner in inputs]

    def finish(
        self, outputs: Sequence[int], formal: Sequence[int], captures: Sequence[int]
    ) -> Graph:
        """Return the body with its own inputs first and then the captures, read or not."""
        inner = []
        for outer in captures:
            if outer not in self.captured or self.captured[outer] not in self.builder.inputs:
                assert self.parent is not None
                value = self.parent.builder.values[outer]
                self.captured[outer] = self.builder.input(value.name, value.type)
            inner.append(self.captured[outer])
        self.builder.inputs = [*formal, *inner]
        return self.builder.finish(*outputs)


class Recorder:
    """Adds nodes to the scope that is open, with the line of the program as their source.

    where: returns the source of a new node, as "model.py:12"
    """

    def __init__(self, name: str, where: Callable[[], str]) -> None:
        self.scope = GraphScope(name)
        self.where = where
        self.pin: str | None = None

    def apply(
        self, op: str, inputs: Sequence[Any], attrs: dict[str, Any], outputs: int | None = None
    ) -> Any:
        """Return the outputs of an op: a Traced, or a tuple where there are several.

        outputs: how many of them; those that the op always has when None
        """
        values = [None if each is None else self.use(each) for each in inputs]
        count = outputs or max(get_op(op).out_arity[0], 1)
        made = self.scope.builder.add_node(
            op, values, attrs, outputs=count, source=self.where(), pin=self.pin
        )
        results = tuple(self.traced(value) for value in made)
        return results[0] if len(results) == 1 else results

    def traced(self, value: int, weak: bool = False) -> Traced:
        """Return a value of the open scope."""
        return Traced(self.scope, value, self.scope.builder.type(value), self, weak)

    def input(self, name: str, type: TensorType, example: Array | None = None) -> Traced:
        """Return a new input of the open scope."""
        value = self.scope.builder.input(name, type)
        if example is not None:
            self.scope.examples[value] = example
        return self.traced(value)

    def lift(self, value: Any) -> Traced:
        """Return a value as a Traced: a Python number is a constant that takes others' dtypes."""
        if isinstance(value, Traced):
            return value
        if isinstance(value, Operators):
            found = value._concrete()
            if found is None:
                raise InternalError(f"{value} is of another recording")
            value = found
        made = self.scope.builder.constant("", np.asarray(value))
        return self.traced(made, weak=type(value) in (int, float))

    def use(self, value: Any) -> int:
        """Return the id of a value in the open scope; an array or a number becomes a constant."""
        return self.scope.find(self.lift(value))

    def name(self, value: Traced, name: str) -> None:
        """Give a value of the open scope the name of its variable, unless it has a name."""
        known = self.scope.builder.values
        if value.scope is self.scope and value.id in known:
            old = known[value.id]
            if old.data is None and value.id not in self.scope.builder.inputs:
                known[value.id] = replace(old, name=name)

    def example(self, value: Any) -> Array | None:
        """Return the elements that a value has for the example's inputs; None where unknown."""
        if not isinstance(value, Traced):
            return np.asarray(value)
        return _Examples().of(value.scope, value.id)


class _Examples:
    """Elements of values for the examples of a recording, computed on the references."""

    def of(self, scope: GraphScope, value: int) -> Array | None:
        """Return the elements of a value of a scope; None where an input has no example."""
        known = scope.examples
        if value in known:
            return known[value]
        data = scope.builder.values[value].data
        if data is not None:
            return data
        outer = next((out for out, inner in scope.captured.items() if inner == value), None)
        if outer is not None and scope.parent is not None:
            return self.of(scope.parent, outer)
        self._run(scope, value)
        return known.get(value)

    def _run(self, scope: GraphScope, value: int) -> None:
        graph = Graph("", (), (), tuple(scope.builder.nodes), scope.builder.values)
        needed, order = {value}, []
        for node in reversed(graph.nodes):
            if needed.intersection(node.outputs) and node.outputs[0] not in scope.examples:
                needed.update(node.used)
                order.append(node)
        for node in reversed(order):
            made = {out for each in order for out in each.outputs}
            arrays = [
                None if i is None else scope.examples.get(i) if i in made else self.of(scope, i)
                for i in node.inputs
            ]
            if any(a is None and i is not None for a, i in zip(arrays, node.inputs, strict=True)):
                return
            try:
                results = evaluate(graph, node, arrays)
            except TriremeError:
                return
            scope.examples.update(zip(node.outputs, results, strict=False))
