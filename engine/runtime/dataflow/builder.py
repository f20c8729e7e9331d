"""Build a dataflow graph primitive by primitive, as a frontend of TensorFlow-like graphs does.

b = DataflowBuilder("count")
n = b.input("n", TensorType((), "int64"))
i = b.merge(b.enter(b.constant(np.int64(0)), "loop"))
going = b.add("less", i, b.enter(n, "loop", is_constant=True))
done, again = b.switch(i, going)
b.next_iteration(i, b.add("add", again, np.int64(1)))
graph = lift(b.finish(last=b.exit(done)))
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType, Value
from trireme.runtime.dataflow import calls
from trireme.runtime.dataflow.graph import DataflowGraph, Operand, Port, Primitive
from trireme.support.dtypes import constant_array, dtype_name
from trireme.support.errors import GraphError


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
