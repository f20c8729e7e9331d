"""Carried values that grow: how their shapes grow in each iteration, and memory with room."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from trireme.backend.device import host_alloc
from trireme.ir.bind_shapes import retyped
from trireme.ir.dims import add, subtract, symbols_of
from trireme.ir.graph import UNKNOWN, Dim, Graph, Node, TensorType
from trireme.ops.repeats import GOING, TURN, Repeat
from trireme.passes.appended import appended_states, rows_for
from trireme.passes.bodies import body_of
from trireme.passes.pipeline import optimise
from trireme.passes.turns import BodyTurn, turn_of
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import CompileError, RunError

FIRST_ROOM = 16
"""The least size along the axis that memory has room for."""


class GrowingArray:
    """An array that grows along an axis; its memory doubles when it is full.

    whole: what is there now, a view. What it holds never changes, so older views stay right.
    """

    def __init__(self, node: Node, first: Array, axis: int) -> None:
        self._node, self._axis = node, axis
        self._before = (slice(None),) * axis
        self._others = first.shape[:axis] + first.shape[axis + 1 :]
        self._size = first.shape[axis]
        self._make_room(first, max(FIRST_ROOM, 2 * self._size))
        self.whole = self._table[(*self._before, slice(self._size))]

    def append(self, part: Array) -> Array:
        """Write a part behind what is there; return the whole.

        Errors: RunError, if it has another shape but for the axis
        """
        shape, axis = part.shape, self._axis
        if shape[:axis] + shape[axis + 1 :] != self._others or part.ndim != self._table.ndim:
            raise cannot_join(self._node, self.whole, part, axis)
        start = self._size
        self._size = end = start + shape[axis]
        if end > self._table.shape[axis]:
            self._make_room(self.whole, 2 * end)
        self._table[(*self._before, slice(start, end))] = part
        self.whole = self._table[(*self._before, slice(end))]
        return self.whole

    def _make_room(self, held: Array, room: int) -> None:
        axis = self._axis
        shape = (*held.shape[:axis], room, *held.shape[axis + 1 :])
        self._table = np.empty(shape, held.dtype)
        self._table[(*self._before, slice(held.shape[axis]))] = held


def joined(node: Node, first: Array, parts: Array | Sequence[Array], axis: int) -> Array:
    """Return an array with what the turns of a loop appended to it.

    parts: one after another along a new first axis, or each for itself
    Errors: RunError, if the shapes do not go together
    """
    if isinstance(parts, np.ndarray):
        shape = parts.shape[1:]
        size = len(parts) * shape[axis]
        laid = np.moveaxis(parts, 0, axis)
        parts = [laid.reshape((*shape[:axis], size, *shape[axis + 1 :]))]
    try:
        return np.concatenate((first, *parts), axis)
    except ValueError as error:
        last = next((one for one in parts if not _fits(first, one, axis)), parts[0])
        raise cannot_join(node, first, last, axis) from error


def cannot_join(node: Node, first: Array, part: Array, axis: int) -> RunError:
    """Return the error of a turn that appends what does not fit."""
    return RunError(
        f"{node.label}: a turn appends {list(part.shape)} to {list(first.shape)} along axis {axis}"
    )


def _fits(first: Array, part: Array, axis: int) -> bool:
    left = [size for k, size in enumerate(first.shape) if k != axis]
    return first.ndim == part.ndim and left == [n for k, n in enumerate(part.shape) if k != axis]


Types = Sequence[TensorType]
Dims = tuple[Dim, ...]


@dataclass(frozen=True)
class GrowingForm:
    """A loop, and how the states are kept that a turn only makes longer.

    form: makes parts in place of such states; as_rows: those that no turn reads are rows, its last.
        The number in the loop as it was, and the axis
    in_rooms: the others, by their number in `form`
    """

    form: Repeat
    as_rows: Mapping[int, int]
    in_rooms: Mapping[int, int]


def growing_form(form: Repeat, whole: Container[int] = ()) -> GrowingForm:
    """Return how the states of a loop are kept.

    whole: states that are carried whole, if a turn reads them
    """
    parts, appended = appended_states(form)
    parts, unread = rows_for(parts, appended)
    read = {one.state for one in appended} - {one.state for one in unread}
    if any(state in whole for state in read):
        parts, appended = appended_states(form, [state for state in read if state in whole])
        parts, unread = rows_for(parts, appended)
    form = parts
    as_rows = {one.state: one.axis for one in unread}
    left = (one for one in appended if one.state not in as_rows)
    in_rooms = {one.state - sum(k < one.state for k in as_rows): one.axis for one in left}
    return GrowingForm(form, as_rows, in_rooms)


def in_pieces(form: Repeat, states: Sequence[Array]) -> frozenset[int]:
    """Return the appended states whose parts would not lie one after another in memory."""
    _, appended = appended_states(form)
    return frozenset(
        one.state for one in appended if prod(states[one.state].shape[: one.axis]) != 1
    )


@dataclass(frozen=True)
class GrowingTurn:
    """A turn of a loop whose states grow, for every size.

    turn: its graph has symbols, and inputs and outputs of unlike names
    growth: by how much a symbol is larger a turn later, of those that grow
    """

    turn: BodyTurn
    growth: Mapping[str, Dim]


def steps_of(form: Repeat, in_rooms: Mapping[int, int], given: Types) -> list[tuple[int, ...]]:
    """Return by how much a turn makes each axis of each state longer.

    in_rooms: the states of which a turn makes the part behind them, and the axis
    given: the types of states, slices and captures in one turn
    Errors: CompileError, if a shape in the body depends on values, or a state gets shorter
    """
    body = body_of(form.body, [*((TURN, GOING) if form.counts else ()), *given])
    steps = []
    for k, state in enumerate(given[: form.carried]):
        made = body.type(body.outputs[form.made + k])
        if not made.is_static or len(made.shape) != len(state.shape):
            raise CompileError("the shape of a carried value depends on values")
        axis = in_rooms.get(k)
        if axis is None:
            steps.append(tuple([m - n for m, n in zip(made.dims, state.dims, strict=True)]))
        else:
            rank = range(len(state.shape))
            steps.append(tuple([made.dims[axis] if j == axis else 0 for j in rank]))
        if min(steps[-1], default=0) < 0:
            raise CompileError("a turn makes a carried value shorter")
    return steps


def kinds_of_sizes(
    body: Graph, form: Repeat, given: Types, steps: Sequence[tuple[int, ...]]
) -> dict[tuple[int, int], Hashable]:
    """Return the kind of each open dimension, by input and axis; those of one kind stay equal.

    A kind is a size and by how much it grows. An axis of 1 that does not grow is broadcast in many
    bodies, so it is no open dimension.
    """
    kinds: dict[tuple[int, int], Hashable] = {}
    for k, type in enumerate(given):
        for axis, dim in enumerate(body.type(body.inputs[form.first + k]).shape):
            step = steps[k][axis] if k < len(steps) else 0
            if not isinstance(dim, int) and (type.dims[axis], step) != (1, 0):
                kinds[form.first + k, axis] = (type.dims[axis], step)
    return kinds


def likeness_of(kinds: Mapping[tuple[int, int], Hashable]) -> Hashable:
    """Return what is equal for open dimensions that one program serves: which are of one kind."""
    different = list(dict.fromkeys(kinds.values()))
    return tuple((place, different.index(kind)) for place, kind in kinds.items())


def growing_turn(form: Repeat, in_rooms: Mapping[int, int], given: Types) -> GrowingTurn:
    """Return a turn of a loop for every size; the arguments are those of `steps_of`.

    Errors: CompileError, if a turn does not make states longer by sizes that stay the same; those
        of optimising the body
    """
    steps = steps_of(form, in_rooms, given)
    kinds = kinds_of_sizes(form.body, form, given, steps)
    first = (TURN, GOING) if form.counts else ()
    body = optimise(_with_symbols(form.body, [*first, *given], kinds))
    turn = turn_of(replace(form, body=body))
    turn = replace(turn, graph=_named(turn.graph))
    growth = _growth(form, in_rooms, turn)
    grow = {name for name, step in growth.items() if step != 0}
    graph = turn.graph
    fixed = [*graph.inputs[form.first + form.carried :]]
    fixed += graph.outputs[int(turn.asks) + len(turn.changed) :]
    for value in fixed:
        if _names_in(graph.type(value).shape) & grow:
            raise CompileError(f"'{graph.values[value].name}' has a size of a state that grows")
    return GrowingTurn(turn, {name: growth[name] for name in grow})


def _growth(form: Repeat, in_rooms: Mapping[int, int], turn: BodyTurn) -> dict[str, Dim]:
    """Return by how much each symbol of a state is larger a turn later."""
    graph = turn.graph
    growth: dict[str, Dim] = {}
    made = iter(graph.outputs[int(turn.asks) :])
    for k, value in enumerate(graph.inputs[form.first :][: form.carried]):
        state = graph.type(value).shape
        then = graph.type(next(made)).shape if k in turn.changed else state
        if k in in_rooms:
            then = _appended(state, then, in_rooms[k])
        if len(then) != len(state):
            raise CompileError("a turn makes a carried value of another rank")
        for dim, later in zip(state, then, strict=True):
            step = subtract(later, dim)
            if isinstance(dim, int):
                if step != 0:
                    raise CompileError("a turn makes an axis longer whose size is known")
            elif symbols_of(dim) != {dim} or growth.setdefault(dim, step) != step:
                raise CompileError("states of one size grow by unlike sizes")
    names = {name for name, step in growth.items() if step != 0}
    if any(step == UNKNOWN or symbols_of(step) & names for step in growth.values()):
        raise CompileError("a state grows by another size in each turn")
    return growth


def _appended(state: Dims, part: Dims, axis: int) -> Dims:
    """Return the shape of a state with a part behind it."""
    if (*part[:axis], *part[axis + 1 :]) != (*state[:axis], *state[axis + 1 :]):
        raise CompileError("a part has other sizes than the state that it makes longer")
    return (*state[:axis], add(state[axis], part[axis]), *state[axis + 1 :])


def _names_in(shape: Dims) -> set[str]:
    return {name for dim in shape for name in symbols_of(dim)}


def _with_symbols(body: Graph, given: Types, kinds: Mapping[tuple[int, int], Hashable]) -> Graph:
    """Return a body with a symbol for the open dimensions of each kind, and its inputs named."""
    numbers = {kind: f"size{k}" for k, kind in enumerate(dict.fromkeys(kinds.values()))}
    names = {place: numbers[kind] for place, kind in kinds.items()}
    values, types = dict(body.values), []
    for k, value in enumerate(body.input_values()):
        dims = [(names.get((k, axis)), dim) for axis, dim in enumerate(given[k].shape)]
        types.append(replace(value.type, shape=tuple([name or dim for name, dim in dims])))
        unnamed = tuple([UNKNOWN if name else dim for name, dim in dims])
        values[value.id] = replace(
            value, name=f"{value.name}%{k}", type=replace(value.type, shape=unnamed)
        )
    bounds = dict.fromkeys(numbers.values(), (0, None))
    return retyped(replace(body, values=values, symbols=bounds), types)


def _named(graph: Graph) -> Graph:
    """Return a graph whose outputs have names of their own."""
    values = dict(graph.values)
    for k, value in enumerate(graph.outputs):
        values[value] = replace(values[value], name=f"out%{k}")
    return replace(graph, values=values)


class TurnMemory:
    """Memory for one operand, at one address until it needs more room.

    buffer: what there is now
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = numpy_dtype(dtype)
        self.buffer = host_alloc(0)

    @property
    def address(self) -> int:
        """Where it begins."""
        place: int = self.buffer.handle.ctypes.data
        return place

    @property
    def nbytes(self) -> int:
        """The bytes that there is room for."""
        return self.buffer.nbytes

    @property
    def item_bytes(self) -> int:
        """The bytes of an element."""
        return self._dtype.itemsize

    def bytes_of(self, shape: Sequence[int]) -> int:
        """Return the bytes of an array of a shape."""
        return prod(shape) * self._dtype.itemsize

    def reserve(self, nbytes: int) -> None:
        """Have room for so many bytes, with what is there; elsewhere if there is too little."""
        before = self.buffer
        if nbytes > before.nbytes or not before.nbytes:
            after = host_alloc(max(nbytes, 64, before.nbytes * 3 // 2))
            after.handle[: before.nbytes] = before.handle
            self.buffer = after  # an interrupt leaves the one or the other

    def view(self, shape: Sequence[int]) -> Array:
        """Return what lies here, as an array of a shape."""
        array: Array = self.buffer.handle[: self.bytes_of(shape)].view(self._dtype)
        return array.reshape(shape)
