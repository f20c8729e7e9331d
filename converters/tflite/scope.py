"""Where nodes and states go during conversion: the graph, or the body of an IF or a WHILE.

The states (variables of the file) are values during conversion. The graph reads each state once,
before its first use, and writes each changed state once, at the end. A body takes the states that
it uses as inputs and returns the states that it changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trireme.converters.fold import FoldingBuilder
from trireme.converters.tflite.file import FileGraph
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import ConvertError, ModelFileError

MOST_CALLS = 10_000
"""The most subgraphs that all calls together may unfold to."""
MOST_OPERATORS = 200_000
"""The most operators of all unfolded subgraphs."""
MOST_STATE_BYTES = 1 << 28
"""The most bytes of all states that start with zeros."""
MOST_DEPTH = 40
"""The most calls inside each other."""


@dataclass
class ModelScope:
    """The data that all scopes of one model share.

    convert: adds the nodes of a subgraph, given its ConversionState
    initial: the first data and the quantisation of each state that has them
    initialised: the subgraphs that a CALL_ONCE has run
    touched: the states that were read or written
    """

    graphs: Mapping[int, FileGraph]
    check_shapes: bool
    convert: Callable[[Any], None]
    initial: dict[str, tuple[Array, Quant | None]] = field(default_factory=dict)
    initialised: set[int] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    _names: dict[Hashable, str] = field(default_factory=dict)
    _calls: int = 0
    _operators: int = 0
    _filled_bytes: int = 0

    def state_name(self, key: Hashable, wish: str) -> str:
        """Return the name of a state: the wish, with a suffix where another state has it."""
        if key not in self._names:
            name, count, taken = wish, 1, set(self._names.values())
            while name in taken:
                name, count = f"{wish}_{count}", count + 1
            self._names[key] = name
        return self._names[key]

    def fill(self, name: str, shape: Sequence[int], dtype: str, zero: int) -> Array:
        """Return the first data of a state that starts with one value.

        Errors: ConvertError, if all such states take more than MOST_STATE_BYTES
        """
        self._filled_bytes += math.prod(shape) * numpy_dtype(dtype).itemsize
        if self._filled_bytes > MOST_STATE_BYTES:
            raise ConvertError(
                f"the variables up to '{name}' take {self._filled_bytes} bytes, the limit is "
                f"{MOST_STATE_BYTES}"
            )
        return np.full(shape, zero, numpy_dtype(dtype))

    def count(self, graph: FileGraph) -> None:
        """Count one more call; raise ModelFileError when a hostile file unfolds without end."""
        self._calls += 1
        self._operators += len(graph.operators)
        if self._calls > MOST_CALLS or self._operators > MOST_OPERATORS:
            raise ModelFileError(
                f"the calls of subgraph {graph.index} '{graph.name}' unfold to over {MOST_CALLS} "
                f"calls or {MOST_OPERATORS} operators"
            )


@dataclass
class BodyScope:
    """The nodes and states of the graph or of a body; `outer` is the scope around a body.

    states: the value of each state so far
    entered: the states that the body reads from outside, with their inputs
    written: the states that are changed, in order
    """

    model: ModelScope
    builder: GraphBuilder
    outer: BodyScope | None = None
    depth: int = 0
    states: dict[str, int] = field(default_factory=dict)
    entered: dict[str, int] = field(default_factory=dict)
    written: dict[str, None] = field(default_factory=dict)

    def inner(self, name: str) -> BodyScope:
        """Return the scope of a body."""
        return BodyScope(self.model, FoldingBuilder(name), self, self.depth)

    def read(self, name: str, where: str) -> int:
        """Return the value of a state.

        Errors: ConvertError, if nothing gave the state a value before
        """
        if name not in self.states:
            self.states[name] = self._enter(name, where)
        return self.states[name]

    def _enter(self, name: str, where: str) -> int:
        self.model.touched.add(name)
        if self.outer is not None:
            type = self.outer.builder.type(self.outer.read(name, where))
            self.entered[name] = self.builder.input(name, type)
            return self.entered[name]
        if name not in self.model.initial:
            raise ConvertError(
                f"{where}: variable '{name}' is read before CALL_ONCE or ASSIGN_VARIABLE gives it "
                "a value"
            )
        data, quant = self.model.initial[name]
        initial = self.builder.constant(f"{name}_initial", data, quant)
        return self.builder.add("variable", initial, state=name, names=[name], quants=[quant])

    def write(self, name: str, value: int, where: str) -> None:
        """Give a state a value.

        Errors: ConvertError, if the value's type is not the one of the state, or not static
        """
        type = self.builder.type(value)
        if not type.is_static:
            raise ConvertError(f"{where}: variable '{name}' becomes {type}, a shape not known")
        if name in self.model.initial or self._has(name):
            before = self.builder.type(self.read(name, where))
            if before != type:
                raise ConvertError(f"{where}: variable '{name}' is {before} and becomes {type}")
        elif self.outer is not None:
            raise ConvertError(
                f"{where}: variable '{name}' has no value before this body assigns it",
                fix="assign the variable before the IF or WHILE, or in the subgraph of a CALL_ONCE",
            )
        self.model.touched.add(name)
        self.states[name] = value
        self.written[name] = None

    def _has(self, name: str) -> bool:
        return name in self.states or (self.outer is not None and self.outer._has(name))

    def finish(self, *outputs: int) -> None:
        """Add the nodes that keep the changed states."""
        for name in self.written:
            value = self.states[name]
            quant = self.builder.type(value).quant
            self.builder.add("assign", value, state=name, names=[f"{name}_kept"], quants=[quant])
