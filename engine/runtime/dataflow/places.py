"""Where the tokens of a dataflow graph live: in which frame, and on which sides of switches.

Control flow that structured ops can hold gives every token one such place. `places_of` finds it, or
says why there is none.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trireme.runtime.dataflow.graph import DataflowGraph, Port, Primitive
from trireme.support.errors import GraphError


class SwitchSide(NamedTuple):
    """A side of the switches on one predicate: 1 where it is true."""

    predicate: Port
    taken: int


@dataclass(frozen=True)
class Place:
    """Where a token lives.

    frame: the name of its frame, "" outside any
    sides: the switches that it passed in this frame, outermost first
    """

    frame: str = ""
    sides: tuple[SwitchSide, ...] = ()

    def holds(self, other: Place) -> bool:
        """Whether a token of the other place lives here or deeper in, in the same frame."""
        return other.frame == self.frame and other.sides[: len(self.sides)] == self.sides


@dataclass
class Places:
    """The place of every token, and what control flow is made of.

    around: of each frame, where its enters read
    loops: the merges of each frame that a next_iteration comes back to
    joins: of a merge of two branches, the predicate and the operands of the sides 0 and 1
    levels: of a merge of branches or a switch, how many merges on its predicate come before it
    """

    of: dict[Port, Place] = field(default_factory=dict)
    around: dict[str, Place] = field(default_factory=dict)
    loops: dict[str, list[Primitive]] = field(default_factory=dict)
    joins: dict[int, tuple[Port, tuple[Port, Port]]] = field(default_factory=dict)
    levels: dict[int, int] = field(default_factory=dict)


def places_of(graph: DataflowGraph) -> Places:
    """Return where each token lives.

    Errors: GraphError, if no structured ops hold the control flow: a cycle without a
    next_iteration, tokens of two frames or of both sides of a switch in one primitive, a merge of
    anything but the two sides of a switch
    """
    finding = _Finding(graph)
    for primitive in finding.in_order():
        finding.add(primitive)
    return finding.found


def irreducible(primitive: Primitive, why: str, facts: Sequence[str] = ()) -> GraphError:
    """Return the error of control flow that no if and no loop holds."""
    return GraphError(
        f"{primitive.kind} '{primitive.label}' (%{primitive.id}) is not structured: {why}",
        facts=facts,
    )


class _Finding:
    def __init__(self, graph: DataflowGraph) -> None:
        self.graph, self.found = graph, Places()
        self.seen: dict[int, Mapping[Port, int]] = {}
        self.enters: dict[str, list[Primitive]] = {}
        for primitive in graph.primitives:
            if primitive.kind == "enter":
                self.enters.setdefault(primitive.frame, []).append(primitive)

    def in_order(self) -> Iterable[Primitive]:
        """Yield the primitives so that each stands after what it reads, by id where it may."""
        primitives = self.graph.primitives
        waits = {one.id: set(map(_source, self._forward(one))) for one in primitives}
        frames = self._frames_of_exits()
        for one in primitives:
            if one.kind == "exit":
                waits[one.id] |= {enter.id for enter in self.enters.get(frames[one.id], ())}
        readers: dict[int, list[int]] = {}
        for reader, sources in waits.items():
            for source in sources:
                readers.setdefault(source, []).append(reader)
        ready = [one for one, sources in waits.items() if not sources]
        heapq.heapify(ready)
        count = 0
        while ready:
            at = heapq.heappop(ready)
            count += 1
            yield primitives[at]
            for reader in readers.get(at, ()):
                waits[reader].discard(at)
                if not waits[reader]:
                    heapq.heappush(ready, reader)
        if count < len(primitives):
            left = next(one for one in primitives if waits[one.id])
            raise irreducible(left, "it waits for a cycle that passes no next_iteration")

    def _forward(self, primitive: Primitive) -> Iterable[Port]:
        """Yield what a primitive waits for in the same iteration."""
        for port in primitive.waits:
            came = self.graph.primitives[port.primitive]
            if primitive.kind != "merge" or came.kind != "next_iteration":
                yield port

    def _frames_of_exits(self) -> dict[int, str]:
        """Return the frame that each exit leaves: that of the loop whose switch it reads."""
        frames: dict[int, str] = {}
        for one in (one for one in self.graph.primitives if one.kind == "exit"):
            switch = self._operand(one, "switch")
            merge = None if switch is None else self._operand(switch, "merge")
            enter = None if merge is None else self._operand(merge, "enter")
            if enter is None:
                raise irreducible(one, "it does not read the switch of a value that a loop carries")
            frames[one.id] = enter.frame
        return frames

    def _operand(self, primitive: Primitive, kind: str) -> Primitive | None:
        """Return the first operand of a kind."""
        ports = [one for one in primitive.operands if isinstance(one, Port)]
        makers = (self.graph.primitives[port.primitive] for port in ports)
        return next((one for one in makers if one.kind == kind), None)

    def add(self, primitive: Primitive) -> None:
        """Find the places of the tokens that a primitive sends."""
        found, kind = self.found, primitive.kind
        before = [found.of[port] for port in self._forward(primitive)]
        levels: dict[Port, int] = {}
        for port in self._forward(primitive):
            for predicate, level in self.seen[port.primitive].items():
                levels[predicate] = max(levels.get(predicate, 0), level)
        self.seen[primitive.id] = levels
        place = self._deepest(primitive, before)
        if kind == "enter":
            self._enter(primitive, place)
            place = Place(primitive.frame)
        elif kind == "exit":
            place = self._exit(primitive, place)
        elif kind == "merge":
            place = self._merge(primitive, place)
        elif kind == "switch":
            self._switch(primitive, place)
            return
        for output in range(primitive.outputs):
            found.of[Port(primitive.id, output)] = place

    def _deepest(self, primitive: Primitive, places: Sequence[Place]) -> Place:
        """Return where a primitive runs that waits for tokens of these places."""
        deepest = max(places, key=lambda place: len(place.sides), default=Place())
        for place in places:
            if place.frame != deepest.frame:
                frames = sorted({place.frame or "the graph", deepest.frame or "the graph"})
                raise irreducible(primitive, f"it reads tokens of {' and of '.join(frames)}")
            if primitive.kind != "merge" and not place.holds(deepest):
                raise irreducible(primitive, "it reads tokens of both sides of a switch")
        return deepest

    def _enter(self, primitive: Primitive, place: Place) -> None:
        around = self.found.around.get(primitive.frame, place)
        if not (around.holds(place) or place.holds(around)):
            raise irreducible(primitive, "its frame is entered from two places")
        self.found.around[primitive.frame] = max(around, place, key=lambda one: len(one.sides))

    def _exit(self, primitive: Primitive, place: Place) -> Place:
        if place.frame not in self.found.around:
            raise irreducible(primitive, "it is in no frame")
        if len(place.sides) != 1 or place.sides[0].taken:
            raise irreducible(primitive, "it does not read the false side of its loop's switch")
        return self.found.around[place.frame]

    def _switch(self, primitive: Primitive, place: Place) -> None:
        predicate = primitive.operands[1]
        if not isinstance(predicate, Port) or not isinstance(primitive.operands[0], Port):
            raise irreducible(primitive, "its data and its predicate must be tokens")
        self.found.levels[primitive.id] = self.seen[primitive.id].get(predicate, 0)
        for taken in (0, 1):
            sides = (*place.sides, SwitchSide(predicate, taken))
            self.found.of[Port(primitive.id, taken)] = Place(place.frame, sides)

    def _merge(self, primitive: Primitive, place: Place) -> Place:
        ports = [one for one in primitive.operands if isinstance(one, Port)]
        if len(ports) != 2 or len(primitive.waits) != 2:
            raise irreducible(primitive, f"it has {len(primitive.waits)} inputs, not 2")
        kinds = [self.graph.primitives[port.primitive].kind for port in ports]
        if kinds.count("next_iteration") == 1:
            if "enter" not in kinds:
                raise irreducible(primitive, "a next_iteration meets what is no enter")
            self.found.loops.setdefault(place.frame, []).append(primitive)
            return place
        one, other = (self.found.of[port] for port in ports)
        ends = [place.sides[-1:] for place in (one, other)]
        outer = one.sides[:-1]
        facts = [f"its inputs: {_text(one)}, and {_text(other)}"]
        if not all(ends) or outer != other.sides[:-1] or ends[0][0][0] != ends[1][0][0]:
            raise irreducible(primitive, "its inputs are not the two sides of one switch", facts)
        first, second = ends[0][0], ends[1][0]
        if first.taken == second.taken:
            raise irreducible(primitive, "both its inputs are of one side of a switch", facts)
        predicate = first.predicate
        pair = (ports[1], ports[0]) if first.taken else (ports[0], ports[1])
        self.found.joins[primitive.id] = predicate, pair
        level = self.found.levels[primitive.id] = self.seen[primitive.id].get(predicate, 0)
        self.seen[primitive.id] = {**self.seen[primitive.id], predicate: level + 1}
        return Place(one.frame, outer)


def _source(port: Port) -> int:
    return port.primitive


def _text(place: Place) -> str:
    sides = [f"%{side.predicate.primitive} {bool(side.taken)}" for side in place.sides]
    where = f"in {place.frame}" if place.frame else "in the graph"
    return f"{where}, where {' and '.join(sides)}" if sides else f"{where}, on no side of a switch"
