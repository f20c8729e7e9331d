"""The dataflow form of a graph: primitives that send tokens to each other; and its builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Node, TensorType, Value
from trireme.runtime.dataflow import calls
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array, constant_array, dtype_name
from trireme.support.errors import GraphError

Kind = Literal["input", "op", "call", "switch", "merge", "enter", "exit", "next_iteration"]
"""What a primitive does with its tokens.

input: an array that is fed; op: a node of the graph; call: bookkeeping of a loop, such as its count
switch: sends its data to output 1 where the predicate is true, else to output 0; the other is dead
merge: sends its first live input
enter: sends its input into iteration 0 of a frame, or into every iteration where it `is_constant`
exit: sends its input out of the frame; next_iteration: sends its input to the next iteration
"""


class Port(NamedTuple):
    """One output of a primitive."""

    primitive: int
    output: int = 0


Operand = Port | Array | None
"""A token to wait for, a constant, or an input that is left out."""


@dataclass(frozen=True, eq=False)
class Primitive:
    """One step of the dataflow form.

    operands: what it reads, in order
    controls: tokens that it waits for, and whose data it ignores
    outputs: how many tokens it sends
    frame: of an enter, the name of the frame; unique in the graph
    node, graph: of an op; of a merge, an exit or a stack, the control node whose output it sends
    function: of a call, on the tokens of its operands
    values: names and types of the tokens it sends, in a graph; () where no graph has them
    """

    id: int
    kind: Kind
    label: str
    operands: tuple[Operand, ...] = ()
    controls: tuple[Port, ...] = ()
    outputs: int = 1
    frame: str = ""
    is_constant: bool = False
    node: Node | None = None
    graph: Graph | None = None
    function: Callable[..., Any] | None = None
    values: tuple[Value | None, ...] = ()

    @property
    def value(self) -> Value | None:
        """The name and the type of its first token."""
        return self.values[0] if self.values else None

    @property
    def waits(self) -> tuple[Port, ...]:
        """The tokens it waits for, operands first."""
        return (*(one for one in self.operands if isinstance(one, Port)), *self.controls)

    def __str__(self) -> str:
        inputs = ", ".join(_operand_text(one) for one in self.operands)
        after = f" after {', '.join(map(_operand_text, self.controls))}" if self.controls else ""
        frame = f" frame={self.frame}" if self.frame else ""
        constant = " constant" if self.is_constant else ""
        return f"%{self.id} = {self.kind} {self.label}({inputs}){frame}{constant}{after}"


@dataclass(frozen=True)
class DataflowGraph:
    """Primitives, in the order of their ids, and where tokens come from and go to.

    inputs: the primitives that are fed, by the graph's input; outputs: of the graph, in order
    symbols: bounds of the symbols in types; names: of the outputs
    """

    name: str
    primitives: tuple[Primitive, ...]
    inputs: Mapping[int, int]
    outputs: Sequence[Operand]
    symbols: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    names: Sequence[str] = ()

    @cached_property
    def readers(self) -> Mapping[Port, Sequence[int]]:
        """The primitives that read each port, once for each time."""
        found: dict[Port, list[int]] = {}
        for primitive in self.primitives:
            for port in primitive.waits:
                found.setdefault(port, []).append(primitive.id)
        return found

    def __str__(self) -> str:
        lines = [f"dataflow {self.name}:", *(f"  {one}" for one in self.primitives)]
        return "\n".join([*lines, f"  return {', '.join(map(_operand_text, self.outputs))}"])


def _operand_text(operand: Operand) -> str:
    if isinstance(operand, Port):
        return f"%{operand.primitive}" + (f":{operand.output}" if operand.output else "")
    return "-" if operand is None else f"{operand.dtype}{list(operand.shape)}const"


class DataflowBuilder:
    """Collects primitives; the types of tokens are inferred as they are added."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._primitives: list[Primitive] = []
        self._types: dict[Port, TensorType] = {}
        self._inputs: dict[int, int] = {}

    def input(self, name: str, type: TensorType) -> Port:
        """Add a token that the caller feeds."""
        port = self._add("input", name, types=(type,))
        self._inputs[len(self._inputs)] = port.primitive
        value = Value(len(self._inputs) - 1, name, type)
        self._primitives[port.primitive] = replace(
            self._primitives[port.primitive], values=(value,)
        )
        return port

    def constant(self, data: Any, after: Port | None = None) -> Port:
        """Add a token of some data, sent once `after` is there."""
        array = constant_array(np.asarray(data))
        return self._add(
            "call",
            "constant",
            array,
            types=(TensorType(array.shape, dtype_name(array.dtype)),),
            controls=() if after is None else (after,),
            function=calls.same,
        )

    def add(
        self, op: str, *operands: Any, outputs: int = 1, after: Port | None = None, **attrs: Any
    ) -> Any:
        """Add a node; return its token, or a tuple of them where there are several outputs.

        operands: tokens, arrays, or None for one that is left out
        Errors: GraphError or ShapeError, as GraphBuilder
        """
        b = GraphBuilder(op)
        given: list[Operand] = [
            one if one is None or isinstance(one, Port) else constant_array(np.asarray(one))
            for one in operands
        ]
        values = [
            b.input(f"x{k}", self.type(one))
            if isinstance(one, Port)
            else (None if one is None else b.constant(f"c{k}", one))
            for k, one in enumerate(given)
        ]
        made = b.add_node(op, values, attrs, outputs=outputs)
        graph = b.finish(*made)
        port = self._add(
            "op",
            op,
            *given,
            types=[graph.type(value) for value in made],
            controls=() if after is None else (after,),
            node=graph.nodes[0],
            graph=graph,
        )
        ports = tuple(Port(port.primitive, k) for k in range(outputs))
        return ports[0] if outputs == 1 else ports

    def switch(self, data: Port, predicate: Port) -> tuple[Port, Port]:
        """Add a switch; return its false side and its true side."""
        port = self._add("switch", "switch", data, predicate, types=(self.type(data),) * 2)
        return port, Port(port.primitive, 1)

    def merge(self, *operands: Port) -> Port:
        """Add a merge of the two sides of a switch, or of an enter and, later, a next_iteration."""
        return self._add("merge", "merge", *operands, types=(self.type(operands[0]),))

    def enter(self, data: Port, frame: str, is_constant: bool = False) -> Port:
        """Add an enter into a frame, for its first iteration or for every one."""
        return self._add(
            "enter", "enter", data, types=(self.type(data),), frame=frame, is_constant=is_constant
        )

    def exit(self, data: Port) -> Port:
        """Add an exit."""
        return self._add("exit", "exit", data, types=(self.type(data),))

    def next_iteration(self, merge: Port, data: Port) -> Port:
        """Add a next_iteration that a merge with one input gets too."""
        old = self._primitives[merge.primitive]
        if old.kind != "merge" or len(old.operands) != 1:
            raise GraphError(f"a next_iteration goes to a merge of one enter, not to {old}")
        port = self._add("next_iteration", "next", data, types=(self.type(data),))
        self._primitives[old.id] = replace(old, operands=(*old.operands, port))
        return port

    def type(self, port: Port) -> TensorType:
        """Return the type of a token."""
        if port not in self._types:
            raise GraphError(f"{self.name}: {port!r} is no token of this graph")
        return self._types[port]

    def finish(self, **outputs: Port) -> DataflowGraph:
        """Return the graph with these outputs, by name."""
        return DataflowGraph(
            self.name,
            tuple(self._primitives),
            self._inputs,
            list(outputs.values()),
            names=list(outputs),
        )

    def _add(self, kind: Any, label: str, *operands: Operand, types: Any, **more: Any) -> Port:
        made = Primitive(len(self._primitives), kind, label, operands, outputs=len(types), **more)
        self._primitives.append(made)
        ports = [Port(made.id, k) for k in range(len(types))]
        self._types |= dict(zip(ports, types, strict=True))
        return ports[0]
