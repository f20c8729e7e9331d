"""Carried values in memory with room for more rows, for turns that make them longer by a concat.

    body: t = concat(s, new), and reads t   ->   body: writes new behind the rows that count

`s` or `t` is the part of the memory that counts. A kernel that walks strides reads it there, as
attention does with keys and values of several heads; others read a copy of the part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trireme.ir.graph import Graph, Node
from trireme.ops.repeats import Repeat
from trireme.passes.turns import BodyTurn
from trireme.runtime.control.growing import TurnMemory
from trireme.runtime.states.growth import concat_of, on_buffers
from trireme.runtime.states.rules import Tie
from trireme.support.dtypes import Array

LEAST_ROWS = 64
"""Rows that memory has room for at least."""

Shape = Sequence[int]


@dataclass(frozen=True)
class StateRoom:
    """A carried value in memory with room.

    state, axis: its number, and the axis along which it grows
    room: the symbol of the size of the memory along the axis
    length: the number of the turn's input whose first axis is as long as the rows that count
    """

    state: int
    axis: int
    room: str
    length: int

    def part(self, whole: Array, rows: int) -> Array:
        """Return the rows that count."""
        return whole[(slice(None),) * self.axis + (slice(rows),)]

    def shape(self, held: Shape, rows: int) -> tuple[int, ...]:
        """Return the shape of memory with room for rows, where a state has another number."""
        return (*held[: self.axis], room_for(rows), *held[self.axis + 1 :])

    def move(self, memory: TurnMemory, before: Shape, after: Shape, rows: int) -> None:
        """Lay the rows that count out for another room."""
        held = self.part(memory.view(before), rows).copy()
        memory.reserve(memory.bytes_of(after))
        self.part(memory.view(after), rows)[...] = held


def room_for(rows: int) -> int:
    """Return how many rows there is room for where so many are needed: a power of two."""
    return 1 << max(rows - 1, LEAST_ROWS - 1).bit_length()


def with_rooms(form: Repeat, turn: BodyTurn) -> tuple[BodyTurn, tuple[StateRoom, ...]]:
    """Return a turn in which states that a concat makes longer lie in memory with room, and these.

    Its inputs are those of `turn`, the memory in the place of the states, and then the lengths.
    """
    graph = turn.graph
    made = dict(zip(turn.changed, graph.outputs[int(turn.asks) :], strict=False))
    ties: dict[int, tuple[Tie, Node]] = {}
    for state, out in made.items():
        tie = Tie(graph.values[graph.inputs[form.first + state]], graph.values[out], None)
        node = _sole_reader(graph, tie)
        if node is not None:
            ties[state] = tie, node
    if len(ties) in (0, len(graph.outputs)):  # a program makes something
        return turn, ()
    grown = on_buffers(graph, list(ties.values()))
    ids = {value.name: value.id for value in grown.graph.input_values()}
    inputs = [ids[value.name] for value in graph.input_values()]
    inputs += [value for value in grown.graph.inputs if value not in inputs]
    rooms = tuple(
        StateRoom(state, one.axis, one.room, inputs.index(ids[one.length]))
        for state, one in zip(ties, grown.buffers, strict=True)
    )
    changed = tuple(state for state in turn.changed if state not in ties)
    smaller = replace(grown.graph, inputs=tuple(inputs))
    return replace(turn, graph=smaller, changed=changed), rooms


def _sole_reader(graph: Graph, tie: Tie) -> Node | None:
    """Return the concat that makes a state longer, if turns read one of the two states alone.

    Where they read both, two parts might be copied in place of one concat.
    """
    if len(tie.past.shape) != len(tie.present.shape):
        return None
    node = concat_of(graph, tie)
    if isinstance(node, str) or tie.past.type.quant is not None:
        return None
    reads_past = len(graph.users(tie.past.id)) > 1
    return None if reads_past and graph.users(tie.present.id) else node


def first_shapes(
    rooms: Sequence[StateRoom], first: int, shapes: Sequence[Shape], more: int
) -> list[Shape]:
    """Return the shapes of a turn's inputs.

    first: the number of the first state; shapes: of what the turn is given without rooms
    more: rows of a turn that memory has room for, beside those that a state has
    """
    made, lengths = list(shapes), dict[int, Shape]()
    for one in rooms:
        rows = shapes[first + one.state][one.axis]
        made[first + one.state] = one.shape(shapes[first + one.state], rows + more)
        lengths[one.length] = (rows, 0)
    return [*made, *(lengths[k] for k in sorted(lengths))]
