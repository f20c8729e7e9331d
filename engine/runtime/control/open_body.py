"""A body whose types vary from turn to turn, compiled once for every shape.

Dimensions that the body leaves open become symbols. Those of equal size in the turn for which it is
compiled share a symbol. A turn in which these sizes differ needs another program.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from trireme.ir.bind_shapes import retyped
from trireme.ir.graph import UNKNOWN, Graph
from trireme.passes.pipeline import optimise
from trireme.runtime.dynamic.polymorphic import PolymorphicGraph
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, ShapeError

MOST_SHAPES = 16
"""Shapes of which the tables are kept; a state that grows does not come back to a shape."""
Shapes = tuple[tuple[int, ...], ...]


class ShapedRun(Protocol):
    """What runs a graph at one set of shapes."""

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Return the outputs by name."""

    def close(self) -> None:
        """Release the resources."""


Compile = Callable[[Graph, Sequence[Sequence[int]]], PolymorphicGraph | str]
OpenAt = Callable[[PolymorphicGraph, Shapes], ShapedRun]


class OpenBody:
    """A body with one program for every shape; one run at a time.

    open_at: opens what runs the program at some shapes
    """

    def __init__(
        self, body: Graph, named: Graph, program: PolymorphicGraph, open_at: OpenAt
    ) -> None:
        """Take a body, and its graph of named ends (`_with_symbols`) as it is compiled."""
        self._program, self._open_at = program, open_at
        self._inputs = [value.name for value in named.input_values()]
        names = dict(zip(_made(body), (value.name for value in named.output_values()), strict=True))
        self._outputs = [
            (names.get(value), body.values[value].data, _index(body.inputs, value))
            for value in body.outputs
        ]
        self._runs: OrderedDict[Shapes, ShapedRun] = OrderedDict()

    def takes(self, arrays: Sequence[Array]) -> bool:
        """Whether the program runs arrays of these shapes, which get what runs them."""
        shapes = tuple([array.shape for array in arrays])
        if shapes not in self._runs:
            try:
                self._runs[shapes] = self._open_at(self._program, shapes)
            except (ShapeError, CompileError):  # sizes differ, or the structure does
                return False
            if len(self._runs) > MOST_SHAPES:
                self._runs.popitem(last=False)[1].close()
        return True

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs, given the inputs in order; `takes` knows their shapes."""
        run = self._runs[tuple([array.shape for array in arrays])]
        made = run.run(dict(zip(self._inputs, arrays, strict=True)))
        found = []
        for name, constant, position in self._outputs:
            if name is not None:
                found.append(made[name])
            else:
                found.append(arrays[position] if constant is None else constant)
        return found


def _made(body: Graph) -> list[int]:
    """Return the outputs of a body that nodes make, each once."""
    return [value for value in dict.fromkeys(body.outputs) if body.producer(value)]


def _index(values: Sequence[int], value: int) -> int:
    return values.index(value) if value in values else -1


def pattern_of(body: Graph, arrays: Sequence[Array]) -> Hashable:
    """Return which open dimensions of a body have equal sizes: of each, the first like it."""
    sizes = [size for _, size in _open_dims(body, arrays)]
    return tuple(sizes.index(size) for size in sizes)


def open_body(
    body: Graph, arrays: Sequence[Array], compile: Compile, open_at: OpenAt
) -> OpenBody | str:
    """Return a body compiled for every shape; a sentence where it cannot be.

    arrays: its operands in one turn
    Errors: those of optimising and placing it
    """
    named = optimise(_with_symbols(body, arrays))
    program = compile(named, [array.shape for array in arrays])
    return program if isinstance(program, str) else OpenBody(body, named, program, open_at)


def _open_dims(body: Graph, arrays: Sequence[Array]) -> list[tuple[tuple[int, int], int]]:
    """Return the input and axis of each open dimension, and its size in the arrays."""
    return [
        ((k, axis), array.shape[axis])
        for k, (value, array) in enumerate(zip(body.input_values(), arrays, strict=True))
        for axis, dim in enumerate(value.shape)
        if not isinstance(dim, int)
    ]


def _with_symbols(body: Graph, arrays: Sequence[Array]) -> Graph:
    """Return the body with a symbol for the open dimensions of each size."""
    dims = _open_dims(body, arrays)
    sizes = [size for _, size in dims]
    names = {place: f"size{sizes.index(size)}" for place, size in dims}
    values, types = dict(body.values), []
    for k, value in enumerate(body.input_values()):
        shape = tuple(names.get((k, axis), dim) for axis, dim in enumerate(value.shape))
        unnamed = tuple(UNKNOWN if (k, axis) in names else d for axis, d in enumerate(value.shape))
        types.append(replace(value.type, shape=shape))
        values[value.id] = replace(
            value, name=f"{value.name}%{k}", type=replace(value.type, shape=unnamed)
        )
    outputs = _made(body)
    for k, id in enumerate(outputs):
        values[id] = replace(values[id], name=f"out%{k}")
    bounds = dict.fromkeys(names.values(), (0, None))
    made = replace(body, outputs=tuple(outputs), values=values, symbols=bounds)
    return retyped(made, types)
