"""Runs on buffers of states, one after another: a decoder that makes token after token.

A step of a small decoder takes less than a millisecond, and its weights leave no cache to Python.
So a run here neither makes arrays of the states nor looks at them: it knows how many rows each
buffer holds. It runs what the shapes before have shown to be usual. Anything else it leaves to the
program that checks everything (program.py), which raises the errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.dim_values import Numbers, evaluator, picker
from trireme.ir.dims import symbols_of
from trireme.ir.effects import States, aligned_memory
from trireme.ir.graph import TensorType, Value
from trireme.runtime.dynamic.kept import Shapes
from trireme.runtime.dynamic.resizable import ResizableGraph, laid_array
from trireme.runtime.states.rooms import Rooms
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import CompileError, ShapeError


class StateSteps:
    """Runs a graph on buffers; a StateHolder of its states between the runs.

    sizes: of the symbols in the last run, until somebody notes them
    """

    def __init__(
        self, whole: ResizableGraph, rooms: Rooms, states: States, inputs: Sequence[Value]
    ) -> None:
        self._whole, self._rooms, self._states = whole, rooms, states
        self._inputs = [(v.name, numpy_dtype(v.dtype), len(v.shape)) for v in inputs]
        axes = [dim for value in inputs for dim in value.shape]
        self._lengths = list(dict.fromkeys(one.rows for one in rooms.buffers))
        known = [*axes, *self._lengths, *(one.room for one in rooms.buffers)]
        symbols = whole.contents.names
        self._pick = picker([known.index(name) for name in symbols])
        self._axes = evaluator(axes, symbols)
        self._grown = evaluator([one.grown for one in rooms.buffers], symbols)
        pasts = [(one, one.tie.past.shape) for one in rooms.buffers]
        self._others = [
            (k, axis, dim)
            for k, (one, shape) in enumerate(pasts)
            for axis, dim in enumerate(shape)
            if axis != one.axis and symbols_of(dim)
        ]
        self._other_dims = evaluator([dim for _, _, dim in self._others], symbols)
        firsts = [one.rows for one in rooms.buffers]
        self._pick_rows = picker([firsts.index(rows) for rows in self._lengths])
        names = [value.name for value in inputs]
        ports = whole.ports
        self._fed = [
            (at, name) for at, k in enumerate(ports.fed) if (name := ports.names[k]) in names
        ]
        self._nothing = aligned_memory(TensorType((64,), "uint8"))
        self._room_rows: Numbers = ()
        self._rows: Numbers = ()
        self._other_sizes: Numbers = ()
        self._places: list[int] = []
        self.sizes: Numbers | None = None

    def run(self, given: Mapping[str, Any]) -> dict[str, Array] | None:
        """Return the outputs that are no states, by name; None where nothing was run.

        Errors: RunError, if a kernel found wrong data
        """
        whole = self._whole
        if self._states.holder is not self and not self._begin():
            return None
        sizes = self._sizes(given)
        if sizes is None:
            return None
        rows = self._grown(*sizes)
        if any([n > most for n, most in zip(rows, self._room_rows, strict=True)]):
            return None
        try:
            whole.checks.check(sizes)
            tables = whole.call.tables(sizes)
        except (CompileError, ShapeError):
            return None
        fed = [laid_array(given[name]) for _, name in self._fed]
        ports = whole.ports
        shapes = ports.shapes(sizes)
        made = [np.empty(shapes[k], ports.dtypes[k]) for k in ports.made]
        places = [*self._places, *[array.ctypes.data for array in made]]
        for (at, _), (_, place) in zip(self._fed, fed, strict=True):
            places[at] = place
        whole.calls.run(tables, places)
        self._rows, self.sizes = rows, sizes
        if self._states.holder is not self:  # another thread asked for them meanwhile
            self._states.arrays.update(self.arrays())
        return {name: made[k] for name, k in ports.results}

    def shapes(self) -> Shapes:
        """Return the shapes that the graph's inputs had in the last run."""
        return () if self.sizes is None else self._whole.shapes(self.sizes)

    def arrays(self) -> dict[str, Array]:
        """Return the states by name."""
        return self._rooms.grown(self._rows)

    def _sizes(self, given: Mapping[str, Any]) -> Numbers | None:
        """Return the sizes of the symbols; None where feeds are not plain arrays that fit."""
        if not isinstance(given, dict) or len(given) != len(self._inputs):
            return None
        axes: tuple[int, ...] = ()
        for name, dtype, rank in self._inputs:
            array = given.get(name)
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != rank:
                return None
            axes += array.shape
        sizes: Numbers = self._pick((*axes, *self._pick_rows(self._rows), *self._room_rows))
        if self._axes(*sizes) != axes or self._other_dims(*sizes) != self._other_sizes:
            return None
        return sizes if 0 not in sizes and self._whole.within(sizes) else None

    def _begin(self) -> bool:
        """Take the states over, if they lie where the last run left them."""
        arrays, buffers = self._states.arrays, self._rooms.buffers
        rooms = self._rooms.held(arrays)
        if rooms is None:
            return False
        self._room_rows = tuple(r.shape[o.axis] for r, o in zip(rooms, buffers, strict=True))
        self._rows = tuple(arrays[one.tie.name].shape[one.axis] for one in buffers)
        lengths = {
            (o.rows, n, m) for o, n, m in zip(buffers, self._rows, self._room_rows, strict=True)
        }
        if len(lengths) != len(self._lengths):
            return False
        self._other_sizes = tuple(rooms[k].shape[axis] for k, axis, _ in self._others)
        at = {one.tie.name: room.ctypes.data for one, room in zip(buffers, rooms, strict=True)}
        ports, nothing = self._whole.ports, self._nothing.ctypes.data
        self._places = [at.get(ports.names[k], nothing) for k in ports.fed]
        self._states.holder = self
        return True


def state_steps(
    whole: ResizableGraph | None, rooms: Rooms, states: States, ties: int
) -> StateSteps | None:
    """Return what runs step after step; None where a graph needs more than that.

    whole: the graph on buffers; ties: how many states there are
    """
    if whole is None or whole.ports.others or len(rooms.buffers) != ties:
        return None
    own = {name for one in rooms.buffers for name in (one.tie.name, one.length)}
    inputs = [value for value in whole.closed.graph.input_values() if value.name not in own]
    known = {dim for value in inputs for dim in value.shape if symbols_of(dim) == {dim}}
    known |= {name for one in rooms.buffers for name in (one.rows, one.room)}
    needed = set(whole.contents.names)
    for one in rooms.buffers:
        needed.update(*map(symbols_of, (one.grown, *one.tie.past.shape)))
    is_plain = needed <= known and all(value.dtype != "string" for value in inputs)
    return StateSteps(whole, rooms, states, inputs) if is_plain else None
