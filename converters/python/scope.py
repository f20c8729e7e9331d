"""Where recorded nodes go: a GraphScope is a graph or a body in the making, a Traced its value.

`trace` records calls into one scope. `capture` opens a scope for each body of control flow. An
outer value that a body reads becomes an extra input of the body and of its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trireme.converters.python.array_like import ArrayLike, TensorRules
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Node, Quant, TensorType, Value
from trireme.ir.interpreter import evaluate
from trireme.ir.op import get_op
from trireme.runtime.eager.eager import tensor as eager_tensor
from trireme.runtime.eager.operators import Operators
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError, InternalError, TriremeError

_MOST_INNER_CONSTANT = 64
"""The most elements of an outer constant that a body holds itself; a larger one is captured."""


@dataclass(frozen=True, eq=False, repr=False)
class Traced(ArrayLike):
    """A value of a scope. Its operators, and the ops called on it, are recorded.

    weak: whether it stands for a Python number, which takes the dtype of a tensor beside it
    """

    scope: GraphScope
    id: int
    type: TensorType
    recorder: Recorder
    weak: bool = False

    def __post_init__(self) -> None:
        if self.recorder.like_arrays is not None:
            self.recorder.like_arrays.note(self)

    def _rules(self) -> TensorRules | None:
        return self.recorder.like_arrays

    def _apply(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        return self.recorder.apply(op, inputs, attrs)

    def _recorded(
        self,
        op: str,
        inputs: Sequence[Any],
        attrs: Mapping[str, Any],
        device: Any,
        outputs: int | None,
        quants: Sequence[Quant | None],
    ) -> Any:
        if device is not None and not isinstance(device, str):
            raise GraphError(f"{op} is recorded for the device {device!r}, expected its name")
        values = [eager_tensor(each) if _is_python(each) else each for each in inputs]
        if self.recorder.like_arrays is not None:
            self.recorder.like_arrays.tensors = True
        return self.recorder.apply(op, values, attrs, outputs, device, quants)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            raise GraphError(f"no op stands for numpy.{ufunc.__name__}.{method}")
        if options.get("out") is not None:
            raise GraphError(
                f"numpy.{ufunc.__name__} writes a tensor into an array",
                fix="x = x + y in place of x += y, where x is an array and y a tensor",
            )
        return self.recorder.call(ufunc, inputs, options)

    def __array_function__(
        self, function: Any, types: Any, args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        return self.recorder.call(function, args, options)

    def _elements(self, wanted: str) -> Array:
        if self._concrete() is None and self.recorder.on_value is not None:
            return self.recorder.on_value(self, wanted)
        return super()._elements(wanted)

    def __bool__(self) -> bool:
        return bool(self._elements("a truth").item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        made = super().__array__(dtype, copy)
        if not copy:  # what is written into the array does not reach this value
            made = made.view()
            made.flags.writeable = False
        return made

    def __iter__(self) -> Iterator[Traced]:
        if self.recorder.on_rows is not None:
            self.recorder.on_rows(self)
        return super().__iter__()

    def _concrete(self) -> Array | None:
        return self.scope.builder.values[self.id].data

    def __repr__(self) -> str:
        shown = self._shown()
        return f"<traced {self.type}>" if shown is None else repr(shown)


@dataclass(frozen=True, eq=False, repr=False)
class RowList(Traced):
    """A list as a tensor of its items, weak if they are numbers of Python.

    `+` and `*` of lists are refused.

    depth: how many axes are lists, one in the other; the others are those of arrays
    """

    depth: int = 1

    def __getitem__(self, key: Any) -> Traced:  # type: ignore[override]
        made = super().__getitem__(key)
        if isinstance(key, slice):
            return self.recorder.rows(replace(made, weak=self.weak), self.depth)
        return self.as_item(made)

    def as_item(self, made: Traced) -> Traced:
        """Return an item as what it is in Python."""
        one = replace(made, weak=self.weak)
        return self.recorder.rows(one, self.depth - 1) if self.depth > 1 else one


class GraphScope:
    """A graph or a body under construction, and the outer values that it reads.

    before: what the variables held when the body began
    captured: for each outer value that is read here, by its id there, its id here
    examples: elements of some inputs, from which `Recorder.example` computes the others
    rows: for each input that holds rows of an outer tensor, one a turn, that tensor
    """

    def __init__(
        self,
        name: str,
        parent: GraphScope | None = None,
        before: Sequence[Any] = (),
    ) -> None:
        self.builder = GraphBuilder(name)
        self.before = before
        self.parent = parent
        self.captured: dict[int, int] = {}
        self.examples: dict[int, Array] = {}
        self.rows: dict[int, Traced] = {}
        self._producers: dict[int, Node] = {}
        self._indexed = 0

    def producer(self, value: int) -> Node | None:
        """Return the node that made a value; None for an input or a constant."""
        nodes = self.builder.nodes
        for node in nodes[self._indexed :]:
            self._producers |= dict.fromkeys(node.outputs, node)
        self._indexed = len(nodes)
        return self._producers.get(value)

    def outer_of(self, value: int) -> tuple[GraphScope, int] | None:
        """Return the outer value whose elements an input of this body shows; None for others."""
        if value in self.rows:
            return self.rows[value].scope, self.rows[value].id
        for outer, inner in self.captured.items():
            if inner == value and self.parent is not None:
                return self.parent, outer
        return None

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
    known: returns how a function of numpy is recorded, to be called with the recorder first; None
        where no op stands for it
    on_value: returns the elements that Python asks of a value; None refuses to
    on_rows: called when Python iterates over a value
    like_arrays: how a value behaves as numpy's arrays do; None for a tensor
    eager: whether an eager tensor is among the inputs
    """

    def __init__(
        self, name: str, where: Callable[[], str], known: Callable[[Any], Callable[..., Any] | None]
    ) -> None:
        self.scope = GraphScope(name)
        self.where = where
        self.known = known
        self.on_value: Callable[[Traced, str], Array] | None = None
        self.on_rows: Callable[[Traced], None] | None = None
        self.like_arrays: TensorRules | None = None
        self.eager = False

    def call(self, function: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return what a function of numpy gives; raise GraphError if no op stands for it."""
        known = self.known(function)
        if known is None:
            raise GraphError(f"no op stands for numpy.{function.__name__}")
        try:
            return known(self, *args, **options)
        except TypeError as error:
            raise GraphError(f"numpy.{function.__name__}: {error}") from error

    def apply(
        self,
        op: str,
        inputs: Sequence[Any],
        attrs: Mapping[str, Any],
        outputs: int | None = None,
        pin: str | None = None,
        quants: Sequence[Quant | None] = (),
    ) -> Any:
        """Return the outputs of an op: a Traced, or a tuple where there are several.

        outputs: how many of them; those that the op always has when None
        pin: the device that the node must run on
        """
        values = [None if each is None else self.use(each) for each in inputs]
        count = outputs or self._count(op, values, attrs)
        made = self.scope.builder.add_node(
            op, values, attrs, outputs=count, quants=tuple(quants), source=self.where(), pin=pin
        )
        results = tuple(self.traced(value) for value in made)
        return results[0] if len(results) == 1 else results

    def _count(self, op: str, values: Sequence[int | None], attrs: Mapping[str, Any]) -> int:
        """Return how many outputs an op has; of one with any number, as its types say."""
        definition = get_op(op)
        least, most = definition.out_arity
        if most is not None:
            return max(least, 1)
        given = [None if value is None else self.scope.builder.values[value] for value in values]
        try:
            return len(definition.infer(*given, **definition.bind(attrs)))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return 1

    def finish(self, results: Sequence[Traced], once: bool = False) -> Graph:
        """Return the graph whose outputs are some values, each with a name of its own.

        once: whether a value that is listed again becomes an output of another name, as callers
            who find outputs by name need
        """
        builder = self.scope.builder
        outputs: list[int] = []
        for value in map(self.use, results):
            if once and value in outputs:
                value = builder.add("identity", value, names=[builder.values[value].name])
            outputs.append(value)
        taken = {builder.values[value].name for value in builder.inputs}
        for value in dict.fromkeys(outputs):
            if value in builder.inputs:
                continue
            base = name = builder.values[value].name or "output"
            while name in taken:
                name = f"{base}_{sum(one.startswith(base) for one in taken) + 1}"
            taken.add(name)
            builder.values[value] = replace(builder.values[value], name=name)
        return builder.finish(*outputs)

    def traced_like(self, value: Traced) -> Traced:
        """Return a value as a plain tensor."""
        return Traced(value.scope, value.id, value.type, self)

    def rows(self, value: Traced, depth: int = 1) -> RowList:
        """Return a tensor that stands for a list of its rows, in lists of some depth."""
        return RowList(value.scope, value.id, value.type, self, value.weak, depth)

    def alike(self, value: Traced, model: Any) -> Traced:
        """Return a value as a list where its model is one."""
        return self.rows(value, model.depth) if isinstance(model, RowList) else value

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
        array = np.asarray(value)
        if array is value and array.flags.writeable and self.on_value is not None:
            array = array.copy()  # the program that runs may change it
        made = self.scope.builder.constant("", array)
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


def _is_python(value: Any) -> bool:
    return value is not None and not isinstance(value, (Operators, np.ndarray, np.generic))


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
