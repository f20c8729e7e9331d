"""States that grow in place: rows are written behind those that are there, in buffers with room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from trireme.backend.device import HOST, Buffer
from trireme.ir.dims import Bounds, bounds_of, substituted, subtract, symbols_of
from trireme.ir.effects import aligned_memory
from trireme.ir.graph import UNKNOWN, Dim, Graph, Node, TensorType, Value
from trireme.ir.verify import check
from trireme.runtime.states.rules import Tie
from trireme.support.dtypes import Array, dtype_name
from trireme.support.units import bytes_text

_LENGTH = "uint8"


@dataclass(frozen=True)
class StateBuffer:
    """A state in a buffer.

    axis: along which it grows; rows: the symbol of the rows that count, before a run
    grown: how many there are after the run; room: the symbol of the buffer's size along the axis
    length: the name of the input whose first axis is as long as the rows
    """

    tie: Tie
    axis: int
    rows: str
    grown: Dim
    room: str
    length: str


@dataclass(frozen=True)
class GrowingGraph:
    """A graph on buffers, and the states in them; the other ties are inputs and outputs still.

    A buffer is an input with the name of the past input.
    """

    graph: Graph
    buffers: tuple[StateBuffer, ...]


def growing(graph: Graph, ties: Sequence[Tie]) -> GrowingGraph | str:
    """Return the graph on buffers, for the ties that can be; why there is none if none can."""
    found = [(tie, concat_of(graph, tie)) for tie in ties]
    mine = [(tie, node) for tie, node in found if isinstance(node, Node)]
    if not mine:
        return next((why for _, why in found if isinstance(why, str)), "no state grows")
    graph = _with_one_length(graph, [tie for tie, _ in mine])
    return on_buffers(graph, [(_now(graph, tie), node) for tie, node in mine])


def on_buffers(graph: Graph, ties: Sequence[tuple[Tie, Node]]) -> GrowingGraph:
    """Return the graph with these ties on buffers; each with its `concat_of`."""
    return _Rewrite(graph).on_buffers(ties)


def concat_of(graph: Graph, tie: Tie) -> Node | str:
    """Return the node that joins a state and new rows; why there is none."""
    node = graph.producer(tie.present.id)
    where = f"'{tie.present.name}'"
    if node is None or node.op != "concat" or node.attrs.get("activation"):
        return f"{where} is no concat of '{tie.name}' and new rows"
    if len(node.used) != 2 or node.used[0] != tie.past.id or node.used[1] == tie.past.id:
        return f"{where} does not join '{tie.name}' and new rows in this order"
    axis = node.attrs["axis"] % len(tie.past.shape)
    symbol = tie.past.shape[axis]
    if tie.grows != (axis,) or symbol == UNKNOWN or symbols_of(symbol) != {symbol}:
        return f"'{tie.name}' {tie.past.type} grows along other axes than {axis}"
    if tie.past.dtype == "string" or graph.is_output(tie.past.id):
        return f"'{tie.name}' is an output too"
    return node


def _now(graph: Graph, tie: Tie) -> Tie:
    return replace(tie, past=graph.values[tie.past.id], present=graph.values[tie.present.id])


def _with_one_length(graph: Graph, ties: Sequence[Tie]) -> Graph:
    """Return the graph with one symbol for the lengths of states that begin and grow alike.

    The bounds of all of them hold for it.
    """
    past = {tie.past.id for tie in ties}
    fed = (value for value in graph.input_values() if value.id not in past)
    taken = {name for value in fed for dim in value.shape for name in symbols_of(dim)}
    firsts: dict[Dim, str] = {}
    names: dict[str, Dim] = {}
    symbols = dict(graph.symbols)
    for tie in ties:
        (axis,) = tie.grows
        symbol = str(tie.past.shape[axis])
        if tie.initial is None and symbol not in taken and symbol not in names:
            first = firsts.setdefault(subtract(tie.present.shape[axis], symbol), symbol)
            names[symbol] = first
            if first != symbol:
                symbols[first] = _both(symbols.get(first), symbols.pop(symbol, None))
    values = {
        value.id: replace(value, type=replace(value.type, shape=_renamed(value.shape, names)))
        for value in graph.values.values()
    }
    return replace(graph, values=values, symbols=symbols)


def _both(one: Bounds | None, other: Bounds | None) -> Bounds:
    """Return the bounds of two symbols that are one."""
    low, high = one or (0, None)
    least, most = other or (0, None)
    return max(low, least), min((n for n in (high, most) if n is not None), default=None)


def _renamed(shape: Sequence[Dim], names: Mapping[str, Dim]) -> tuple[Dim, ...]:
    return tuple(
        substituted(dim, names) if symbols_of(dim) & names.keys() else dim for dim in shape
    )


class _Rewrite:
    """Puts states into buffers, in a graph that is used up."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._values = dict(graph.values)
        self._symbols: dict[str, Bounds] = dict(graph.symbols)
        self._new_value = count(max(graph.values) + 1)
        self._new_node = count(max(node.id for node in graph.nodes) + 1)
        self._lengths: dict[str, Value] = {}

    def _append(self, operands: tuple[int, ...], after: int, axis: int) -> Node:
        """Return the node that writes rows into a buffer where it is."""
        attrs = {"axis": axis, "in_place": 1}
        return Node(next(self._new_node), "append_rows", operands, (after,), attrs)

    def on_buffers(self, ties: Sequence[tuple[Tie, Node]]) -> GrowingGraph:
        """Return the graph with these ties on buffers."""
        graph, past = self._graph, {tie.past.id for tie, _ in ties}
        fed: list[int] = []
        reads: list[Node] = []
        writes: dict[int, list[Node]] = {}
        buffers = []
        for tie, node in ties:
            one, value = self._buffer(tie)
            buffers.append(one)
            fed.append(value)
            length = self._lengths[one.rows].id
            attrs = {"axis": one.axis}
            if len(graph.users(tie.past.id)) > 1:
                before = Node(
                    next(self._new_node), "held_rows", (value, length, None), (tie.past.id,), attrs
                )
                reads.append(before)
            after = self._value(f"{tie.name}.after", self._values[value].type)
            rows = node.used[1]
            writes[node.id] = [
                self._append((value, length, rows), after, one.axis),
                replace(node, op="held_rows", inputs=(after, length, rows), attrs=attrs),
            ]
        present = {tie.present.id for tie, _ in ties}
        made = [new for node in graph.nodes for new in writes.get(node.id, [node])]
        used = {v for node in (*reads, *made) for v in (*node.used, *node.outputs)}
        values = {v: self._values[v] for v in self._values if v in used or v not in past}
        inputs = [v for v in graph.inputs if v not in past]
        lengths = [value.id for value in self._lengths.values()]
        rewritten = replace(
            graph,
            inputs=(*inputs, *fed, *lengths),
            outputs=tuple(v for v in graph.outputs if v not in present),
            nodes=(*reads, *made),
            values=values,
            symbols=self._symbols,
        )
        return GrowingGraph(check(rewritten), tuple(buffers))

    def _buffer(self, tie: Tie) -> tuple[StateBuffer, int]:
        """Return a state's buffer and the input that it is."""
        (axis,) = tie.grows
        past = self._values[tie.past.id]
        rows, room = str(past.shape[axis]), f"room_of_{past.shape[axis]}"
        if rows not in self._lengths:
            name = f"length of {rows}"
            value = self._value(name, TensorType((rows, 0), _LENGTH))
            self._lengths[rows] = self._values[value]
            self._symbols[room] = (0, None)
        shape = (*past.shape[:axis], room, *past.shape[axis + 1 :])
        value = self._value(tie.name, replace(past.type, shape=shape))
        grown = self._values[tie.present.id].shape[axis]
        if len(self._graph.users(past.id)) > 1:
            self._values[past.id] = replace(past, name=f"{tie.name}.before")
        return StateBuffer(tie, axis, rows, grown, room, self._lengths[rows].name), value

    def _value(self, name: str, type: TensorType) -> int:
        made = next(self._new_value)
        self._values[made] = Value(made, name, type)
        return made


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
