"""Loops whose types or number of iterations only a run knows, compiled for every shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from trireme.backend.device import Buffer, host_alloc, host_view
from trireme.ir.bind_shapes import retyped
from trireme.ir.graph import UNKNOWN, Graph, Node, TensorType, Value
from trireme.ops.repeats import GOING, TURN, Repeat
from trireme.passes.bodies import body_of
from trireme.passes.pipeline import optimise
from trireme.passes.turns import turn_of
from trireme.runtime.control.body import Workshop, compiled_body
from trireme.runtime.control.operands import ControlOperands
from trireme.runtime.control.repeat import TurnRunner
from trireme.runtime.shapes.polymorphic import PolymorphicGraph
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


FIRST_TURNS = 64
"""Turns that rows have room for at first."""
KNOWN_BYTES = 64 << 20
"""Rows of a known most number of turns get their whole room at once, up to these bytes."""
KEPT_BYTES = 16 << 20
"""Larger rows are given back after a run."""


class OpenLoop:
    """A `loop` or a `scan` on arrays; one run at a time."""

    def __init__(
        self, node: Node, form: Repeat, given: Sequence[TensorType], workshop: Workshop
    ) -> None:
        """Compile a loop for states, slices and captures of these types.

        Errors: CompileError, if a turn changes the type of a state or has open shapes; those of
        compiling a body
        """
        first = (TURN, GOING) if form.counts else ()
        body = optimise(body_of(form.body, [*first, *given]))
        _check_turns(node, form, body, given)
        self._form = replace(
            form,
            body=body,
            slices=((0, False),) * len(form.slices),
            rows=((0, False),) * len(form.rows),
        )
        turn = turn_of(self._form)
        program = compiled_body(turn.graph, workshop)
        self._cut = [body.type(v) for v in body.inputs[form.first + form.carried :]]
        self._kinds = [body.type(v) for v in body.outputs[form.made + form.carried :]]
        self._inputs: list[Array] = []
        operands = self._operands(node, given)
        how = workshop.options
        self._runner = TurnRunner(node, operands, self._form, turn, program, how.timeout_s)
        self._room, self._stops = FIRST_TURNS, turn.stops
        self.plan = program.plan
        self.kernel = self._runner.kernel

    def _operands(self, node: Node, given: Sequence[TensorType]) -> ControlOperands:
        """Return memory for what a run is given and what it makes."""
        form, values, inputs = self._form, dict[int, Value](), list[int | None]()
        buffers: list[Buffer | None] = []
        for _ in range(form.first):
            inputs.append(None)
            buffers.append(None)

        def place(type: TensorType) -> tuple[int, Buffer]:
            number = len(values)
            values[number] = Value(number, f"v{number}", type)
            return number, host_alloc(max(type.nbytes, 1))

        for k, type in enumerate(given):
            is_cut = form.carried <= k < form.carried + len(form.slices)
            number, buffer = place(_rows_of(type, 1) if is_cut else type)
            inputs.append(number)
            buffers.append(buffer)
            self._inputs.append(host_view(buffer, values[number].type))
        made = [place(type) for type in given[: form.carried]]
        made += [place(_rows_of(type, FIRST_TURNS)) for type in self._kinds]
        alone = Node(0, node.op, tuple(inputs), tuple(n for n, _ in made), node.attrs, node.source)
        graph = Graph(node.label, (), (), (alone,), values)
        return ControlOperands(graph, alone, buffers, [buffer for _, buffer in made])

    def run(
        self,
        states: Sequence[Array],
        cut: Sequence[Array],
        captures: Sequence[Array],
        most: int | None,
    ) -> tuple[int, list[Array], list[Array]]:
        """Run; return the turns done, the last states, and rows of each kind, one after another.

        cut: arrays whose first axis is cut, in the order of the turns
        """
        form, bound = self._form, self._runner.bound
        end = form.carried + len(form.slices)
        places = [*self._inputs[: form.carried], *self._inputs[end:]]
        for place, array in zip(places, (*states, *captures), strict=True):
            place[...] = array
        for part, array in zip(bound.slices, cut, strict=True):
            part.reset(_aligned(array))
        self._make_room(most)
        if cut:
            self._runner.rebind()
        for state in bound.states:
            state.begin()
        turns = self._turns(1 if self._stops and most != 0 else most)
        lasts = [np.array(state.last(turns)) for state in bound.states]
        rows = [one.table[:turns].copy() for one in bound.rows]
        if sum(one.table.nbytes for one in bound.rows) > KEPT_BYTES:
            self._resize(FIRST_TURNS, 0)
        return turns, lasts, rows

    def _turns(self, most: int | None) -> int:
        """Run the turns, with more room for rows whenever it is used up; return how many."""
        done = 0
        while True:
            limit = most
            if self._kinds:
                limit = self._room if most is None else min(most, self._room)
            done = self._runner.run(limit, done)
            if done != limit or done == most or self._runner.has_stopped:
                return done
            self._resize(2 * self._room, done)

    def _make_room(self, most: int | None) -> None:
        row_bytes = sum(type.nbytes for type in self._kinds)
        if most is not None and self._room < most and most * row_bytes <= KNOWN_BYTES:
            self._resize(most, 0)

    def _resize(self, room: int, done: int) -> None:
        """Give rows room for so many turns, and keep those that are done."""
        for row, type in zip(self._runner.bound.rows, self._kinds, strict=True):
            whole = _rows_of(type, room)
            table = host_view(host_alloc(max(whole.nbytes, 1)), whole)
            table[:done] = row.table[:done]
            row.reset(table)
        self._room = room
        self._runner.rebind()


def _check_turns(node: Node, form: Repeat, body: Graph, given: Sequence[TensorType]) -> None:
    """Raise CompileError unless all shapes are known and each state keeps its type."""
    ends = form.made + form.carried
    made = [body.type(out) for out in body.outputs[form.made : ends]]
    if not all(value.type.is_static for value in body.values.values()):
        raise CompileError(f"{node.label}: a shape in its body depends on values")
    for old, new in zip(given, made, strict=False):
        if old.shape != new.shape:
            raise CompileError(f"{node.label}: a turn makes {new} of {old}")


def _rows_of(type: TensorType, turns: int) -> TensorType:
    return TensorType((turns, *type.shape), type.dtype)


def _aligned(array: Array) -> Array:
    """Return an array that kernels can read part by part: contiguous, at a multiple of 16."""
    made = np.ascontiguousarray(array)
    if made.ctypes.data % 16 == 0:
        return made
    copy = np.empty(made.nbytes + 16, np.uint8)
    start = -copy.ctypes.data % 16
    view = copy[start : start + made.nbytes].view(made.dtype).reshape(made.shape)
    view[...] = made
    return view
