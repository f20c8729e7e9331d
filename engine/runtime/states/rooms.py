"""The buffers of states that grow in place: how large they are, what is in them, what a run adds.

A state with a bound has a buffer of the bound. Without one the buffer doubles when it is full, and
its rows are copied then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trireme.backend.device import HOST, Buffer
from trireme.ir.dims import bounds_of, substituted, symbols_of
from trireme.ir.effects import aligned_memory
from trireme.ir.graph import Graph, TensorType
from trireme.runtime.states.growth import GrowingGraph, StateBuffer
from trireme.support.dtypes import Array, dtype_name
from trireme.support.units import bytes_text

LEAST_ROWS = 64
"""Rows of the first buffer of a state without a bound."""


class Rooms:
    """The buffers of a graph's states.

    doubled: how often a buffer was copied into a larger one
    """

    def __init__(self, growing: GrowingGraph) -> None:
        self.buffers = self._buffers = growing.buffers
        graph = growing.graph
        self._rooms: dict[str, Array] = {}
        self._made: dict[tuple[str, tuple[int, ...]], Array] = {}
        self._views: dict[str, Array] = {}
        self._most = {one.rows: bounds_of(one.rows, graph.symbols)[1] for one in self._buffers}
        own = {name for one in self._buffers for name in (one.tie.name, one.length)}
        self._axes = [
            (value.name, axis, str(dim))
            for value in graph.input_values()
            if value.name not in own
            for axis, dim in enumerate(value.shape)
            if symbols_of(dim) == {dim}
        ]
        self._next: dict[str, tuple[Array, int]] = {}
        self.doubled = 0

    def feeds(self, full: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the feeds of the graph on buffers; None where states are not of one length.

        full: the feeds of the graph that is not on buffers
        """
        sizes = {symbol: np.shape(full[name])[axis] for name, axis, symbol in self._axes}
        lengths: dict[str, int] = {}
        for one in self._buffers:
            rows = full[one.tie.name].shape[one.axis]
            if lengths.setdefault(one.rows, rows) != rows:
                return None
        grown: dict[Any, Any] = {}
        feeds = dict(full)
        for one in self._buffers:
            rows, key = lengths[one.rows], (one.rows, one.grown)
            if key not in grown:
                grown[key] = substituted(one.grown, {**sizes, one.rows: rows})
            size = grown[key]
            if not isinstance(size, int) or size < rows:
                return None
            room = self._room(one, full[one.tie.name], size)
            feeds[one.tie.name] = room
            self._next[one.tie.name] = room, size
            feeds[one.length] = np.empty((rows, 0), np.uint8)
        return feeds

    def made(self) -> dict[str, Array]:
        """Return what the states are after a run with the last feeds, by the output's name."""
        views = self.grown([self._next[one.tie.name][1] for one in self._buffers])
        return {one.tie.present.name: views[one.tie.name] for one in self._buffers}

    def held(self, arrays: Mapping[str, Array]) -> list[Array] | None:
        """Return the buffers, if the states are the rows that the last run left there.

        arrays: the states by name
        """
        views = self._views
        names = [one.tie.name for one in self._buffers]
        if any(name not in views or arrays.get(name) is not views[name] for name in names):
            return None
        return [self._rooms[name] for name in names]

    def grown(self, sizes: Sequence[int]) -> dict[str, Array]:
        """Return the states by name, now that the buffers hold so many rows each."""
        for one, size in zip(self._buffers, sizes, strict=True):
            name, room = one.tie.name, self._rooms[one.tie.name]
            self._next[name] = room, size
            self._views[name] = room[(slice(None),) * one.axis + (slice(size),)]
        return {one.tie.name: self._views[one.tie.name] for one in self._buffers}

    def places(self, graph: Graph) -> dict[int, Buffer]:
        """Return where the buffers lie, by input of a graph of one shape."""
        found = {}
        for value in graph.input_values():
            room = self._made.get((value.name, value.type.dims))
            if room is not None:
                found[value.id] = Buffer(HOST, room.reshape(-1).view(np.uint8), 0, room.nbytes)
        return found

    def __str__(self) -> str:
        rooms = [self._rooms[one.tie.name] for one in self._buffers if one.tie.name in self._rooms]
        rows = sorted({r.shape[o.axis] for r, o in zip(rooms, self._buffers, strict=False)})
        nbytes = sum(room.nbytes for room in rooms)
        copied = f", {self.doubled} copied into larger ones" if self.doubled else ""
        return (
            f"{len(self._buffers)} states grow in place, buffers of {', '.join(map(str, rows))} "
            f"rows, {bytes_text(nbytes)}{copied}"
        )

    def _room(self, one: StateBuffer, held: Array, size: int) -> Array:
        """Return a buffer for so many rows, with the rows that are held."""
        name, axis = one.tie.name, one.axis
        room = self._rooms.get(name)
        rest = held.shape[:axis], held.shape[axis + 1 :]
        fits = room is not None and (room.shape[:axis], room.shape[axis + 1 :]) == rest
        if room is not None and fits and room.shape[axis] >= size:
            if self._views.get(name) is not held:
                _rows(room, axis, held)[...] = held
            return room
        before = room.shape[axis] if room is not None and fits else 0
        self.doubled += bool(before)
        room = self._alloc(one, held, self._rows_of(one, size, before))
        _rows(room, axis, held)[...] = held
        self._rooms[name] = room
        return room

    def _rows_of(self, one: StateBuffer, size: int, before: int) -> int:
        most = self._most[one.rows]
        if most is not None and most >= size:
            return most
        rows = max(LEAST_ROWS, 2 * before)
        while rows < size:
            rows *= 2
        return rows

    def _alloc(self, one: StateBuffer, held: Array, rows: int) -> Array:
        """Return the buffer of some rows; programs are bound to it, so there is one of a shape."""
        shape = (*held.shape[: one.axis], rows, *held.shape[one.axis + 1 :])
        key = one.tie.name, shape
        if key not in self._made:
            self._made[key] = aligned_memory(TensorType(shape, dtype_name(held.dtype)))
        return self._made[key]


def _rows(room: Array, axis: int, held: Array) -> Array:
    return room[(slice(None),) * axis + (slice(held.shape[axis]),)]
