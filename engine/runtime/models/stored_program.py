"""A program from an entry of the cache, on memory of this process, as a session runs it."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trireme.backend.image import ImageCall, TaskImage
from trireme.ir.graph import Quant, Rounding, TensorType, Value
from trireme.runtime.program.contexts import MOST, ContextCount
from trireme.runtime.program.failures import raise_at
from trireme.runtime.program.io_binding import IOBinding, IOPort, RunInContext
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import RunError
from trireme.support.mapped import aligned, open_file, stamp_of

if TYPE_CHECKING:
    from trireme.ir.dim_values import Numbers


MOST_SHAPES = 8
"""Shapes with memory, beside the stored one; the one that ran longest ago makes room."""
LENGTH = struct.Struct("<Q")
"""The bytes of the text that an entry's head begins with."""


class StoredEntry:
    """An entry of the cache, mapped once for all sessions of the process that are open.

    told: what its head says
    """

    def __init__(self, head: bytes, data: Array) -> None:
        (size,) = LENGTH.unpack_from(head)
        self.told = json.loads(head[LENGTH.size : LENGTH.size + size])
        self._tables, self._data = head[LENGTH.size + size :], data

    @cached_property
    def image(self) -> TaskImage:
        """The image of the program."""
        told = self.told
        tables = _tables(told["tables"], self._tables)
        constants = _constants(told["constants"], told["files"], self._data)
        return TaskImage(told["facts"], tables, tuple(constants))


def _tables(told: Sequence[Any], data: bytes) -> dict[str, Array]:
    tables, at = {}, 0
    for name, dtype, shape in told:
        count = int(np.prod(shape))
        tables[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += tables[name].nbytes
    return tables


def _constants(
    told: Sequence[Any], files: Sequence[tuple[str, Sequence[int]]], data: Array
) -> list[Array]:
    """Return the constants: views of the entry, or of the model's files where they are."""
    sources: dict[int, Array] = {-1: data}
    found = []
    for number, offset, dtype, shape in told:
        if number not in sources:
            opened = open_file(Path(files[number][0]))
            if opened.stamp != tuple(files[number][1]):
                raise OSError(f"{files[number][0]} changed meanwhile")
            sources[number] = opened.data
        found.append(np.ndarray(shape, dtype, sources[number].data, offset))
    return found


class StoredEnds:
    """The inputs and outputs of a stored program.

    inputs, outputs: as _port_facts has them; moves: whether calls can be pointed to each
    opened: the inputs and outputs of a graph of open shapes; None where shapes are fixed
    shown: the inputs and outputs of the session's graph
    """

    def __init__(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        moves: Sequence[bool],
        opened: Sequence[Sequence[Any]] | None,
    ) -> None:
        self.inputs = [_value(*facts[1:]) for facts in inputs]
        self.outputs = [_value(*facts[1:]) for facts in outputs]
        self.is_open = opened is not None
        pair = opened or (inputs, outputs)
        self.shown = [[_value(*facts[1:]) for facts in values] for values in pair]
        values = (*self.inputs, *self.outputs)
        numbers = (facts[0] for facts in (*inputs, *outputs))
        self._moves = dict(zip([value.id for value in values], moves, strict=True))
        self._arguments = sorted(zip(numbers, values, strict=True))

    def reshaped(self, shapes: Mapping[str, tuple[int, ...]]) -> StoredEnds:
        """Return the same with other shapes, by name."""
        made = copy(self)

        def at(value: Value) -> Value:
            return replace(value, type=replace(value.type, shape=shapes[value.name]))

        made.inputs, made.outputs = (list(map(at, vs)) for vs in (self.inputs, self.outputs))
        made._arguments = [(number, at(value)) for number, value in self._arguments]
        return made

    def on_new_memory(
        self, open_call: Callable[[Sequence[Array]], ImageCall]
    ) -> tuple[ImageCall, IOBinding]:
        """Return a call on new memory, and the binding of its inputs and outputs."""
        places = [_place(value) for _, value in self._arguments]
        call = open_call(places)
        ports = {
            value.id: IOPort.at(
                value, place, call.rebind(number) if self._moves[value.id] else None
            )
            for (number, value), place in zip(self._arguments, places, strict=True)
        }
        inputs, outputs = ([ports[v.id] for v in vs] for vs in (self.inputs, self.outputs))
        return call, IOBinding(inputs, outputs)


def _place(value: Value) -> Array:
    """Return new memory for a value."""
    type = value.type
    return aligned(type.nbytes).view(numpy_dtype(value.dtype)).reshape(type.dims)


class StoredProgram:
    """A program from an entry, ready to run.

    inputs, outputs: as of the session's graph; task: what errors of a run name
    is_open: whether that graph has open shapes, of which the program runs one set (`takes`)
    shapes: of the inputs that it runs
    ran: the shapes of the last run, where they are open
    run: returns the outputs of feeds, as `Session.run` does
    """

    def __init__(
        self,
        ends: StoredEnds,
        open_image: Callable[[Sequence[Array]], ImageCall],
        entry: StoredEntry,
    ) -> None:
        task = entry.told["task"]
        self.inputs, self.outputs = ends.shown
        self.is_open = ends.is_open
        self.ran: tuple[tuple[int, ...], ...] | None = None
        self._others: dict[tuple[int, ...], StoredProgram] = {}  # as they ran last
        self._fed = [(v.name, v.type.dims, numpy_dtype(v.dtype)) for v in ends.inputs]
        self.shapes = tuple(v.type.dims for v in ends.inputs)
        self._ends, self._task, self._entry = ends, task, entry
        self._call, self._binding = ends.on_new_memory(open_image)
        self._runs = _NamedRuns(self._call, task)
        self.run = self._binding.direct(self._runs) or self._bound_run

    def _bound_run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        given = self._binding.bind(feeds)
        self._runs.run()
        return self._binding.collect(given)

    def takes(self, feeds: Mapping[str, Any]) -> bool:
        """Whether feeds are arrays of the names, shapes and dtypes that the program runs."""
        if not isinstance(feeds, dict) or len(feeds) != len(self._fed):
            return False
        for name, dims, dtype in self._fed:  # a generator takes twice as long
            array = feeds.get(name)
            if not isinstance(array, np.ndarray) or array.shape != dims or array.dtype != dtype:
                return False
        return True

    def at(self, feeds: Mapping[str, Any]) -> StoredProgram | None:
        """Return what runs feeds of open shapes, this or the same at other shapes, or None.

        Each shape has memory of its own, and all close with this one.
        """
        if self.takes(feeds):
            return self
        taken = self._taken
        sizes = None if taken is None else taken.sizes(feeds)
        if taken is None or sizes is None:
            return None
        found = self._others.pop(sizes, None)
        if found is None:
            opened = self._call.at(sizes)
            if opened is None:
                return None
            found = StoredProgram(self._ends.reshaped(taken.at(sizes)), opened, self._entry)
            if len(self._others) >= MOST_SHAPES:
                del self._others[next(iter(self._others))]
        self._others[sizes] = found
        return found

    def drop_others(self) -> None:
        """Give back the memory of other shapes, when no later run will have them."""
        self._others.clear()

    @cached_property
    def _taken(self) -> StoredShapes | None:
        told = self._entry.told["sizing"]
        return None if told is None else StoredShapes(self.inputs, self.outputs, told)

    def count(self, asked: int | None) -> ContextCount:
        """Return how many calls run at once."""
        if asked is not None:
            return ContextCount(asked, "asked for", self._call.busy_calls)
        most = min(self._call.calls_at_once, MOST)
        return ContextCount(most, "so many keep the device busy", self._call.busy_calls)

    def beside(self) -> RunInContext:
        """Return what runs the program in another context, at the same time."""
        call, binding = self._ends.on_new_memory(self._call.beside)
        return binding.runner(_NamedRuns(call, self._task))

    def check_current(self) -> None:
        """Raise RunError if a file of the model is no longer the one that this was made of."""
        for name, stamp in self._entry.told["files"]:
            if stamp_of(Path(name)) != tuple(stamp):
                raise RunError(
                    f"{name} has changed since the session opened it",
                    facts=["the session can only run: its program came from the cache"],
                    fix="open a new session",
                )

    def close(self) -> None:
        """Give threads and memory back."""
        self._call.close()


class _NamedRuns:
    """Runs a call; an error names the task, as in any session."""

    def __init__(self, call: ImageCall, task: str) -> None:
        plain = call.run

        def run() -> None:
            try:
                plain()
            except Exception as error:
                raise_at([task], error)

        self.run: Callable[[], None] = run


def _value(id: int, name: str, dims: Sequence[int], dtype: str, quant: Any) -> Value:
    how = None
    if quant is not None:
        rounding = None if quant[3] is None else Rounding(quant[3])
        how = Quant(tuple(quant[0]), tuple(quant[1]), quant[2], rounding)
    return Value(id, name, TensorType(tuple(dims), dtype, how))


class StoredShapes:
    """The shapes that the graph of a stored program takes.

    Nothing is inferred: the entry says which sizes go together (session/sized_runner.py).
    inputs, outputs: of the graph, with symbols; told: the symbols, their bounds and what must agree
    """

    def __init__(
        self, inputs: Sequence[Value], outputs: Sequence[Value], told: Mapping[str, Any]
    ) -> None:
        from trireme.ir.dim_values import evaluator

        names, self._ends = told["names"], [*inputs, *outputs]
        axes = [dim for value in inputs for dim in value.shape]
        self._places = [axes.index(name) for name in names]
        self._axes = evaluator(axes, names)
        self._bounds = [(low, math.inf if high is None else high) for low, high in told["bounds"]]
        self._agree = evaluator([dim for pair in told["agree"] for dim in pair], names)
        self._shapes = [evaluator(value.shape, names) for value in self._ends]
        self._fed = {v.name: (len(v.shape), numpy_dtype(v.dtype)) for v in inputs}

    def sizes(self, feeds: Mapping[str, Any]) -> Numbers | None:
        """Return the sizes of the symbols, None where feeds do not fit the graph."""
        if not isinstance(feeds, dict) or feeds.keys() != self._fed.keys():
            return None
        axes: tuple[int, ...] = ()
        for name, kind in self._fed.items():
            array = feeds[name]
            if not isinstance(array, np.ndarray) or (array.ndim, array.dtype) != kind:
                return None
            axes += array.shape
        sizes = tuple([axes[place] for place in self._places])
        within = all(low <= n <= high for n, (low, high) in zip(sizes, self._bounds, strict=True))
        if not within or self._axes(*sizes) != axes:
            return None
        agree = self._agree(*sizes)
        pairs = zip(agree[::2], agree[1::2], strict=True)
        return sizes if all(a in (1, b) for a, b in pairs) else None

    def at(self, sizes: Numbers) -> dict[str, tuple[int, ...]]:
        """Return the shapes of inputs and outputs, by name."""
        pairs = zip(self._ends, self._shapes, strict=True)
        return {value.name: shape(*sizes) for value, shape in pairs}
