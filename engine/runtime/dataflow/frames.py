"""The parts of a frame: what its loop carries, decides by, cuts, captures and stacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trireme.ir.graph import UNKNOWN, TensorType
from trireme.ops.repeats import Repeat
from trireme.runtime.dataflow import calls
from trireme.runtime.dataflow.graph import DataflowGraph, Operand, Port, Primitive
from trireme.runtime.dataflow.places import Places, irreducible
from trireme.support.errors import GraphError


@dataclass(frozen=True)
class Carried:
    """One value that a frame carries.

    enter: where it begins; back: the token that the next turn gets
    switch, exit: None where nothing reads the value in a turn, or after the last
    """

    merge: Primitive
    enter: Primitive
    back: Operand
    switch: Primitive | None
    exit: Primitive | None

    @property
    def start(self) -> Operand:
        """The token that turn 0 gets."""
        return self.enter.operands[0]


@dataclass(frozen=True)
class Counted:
    """The loop or scan that `lower` made a frame of.

    trips, condition: the operands of the loop; goes: the token of the condition of the next turn
    turn, going: what counts the turns and what says whether there is another
    lists: rows so far; stacks: the calls that join them
    slices: calls that cut the slice of a turn, each with the enter of the whole
    """

    form: Repeat
    trips: Operand
    condition: Operand
    turn: Carried
    going: Carried
    states: tuple[Carried, ...]
    lists: tuple[Carried, ...]
    stacks: tuple[Primitive, ...]
    slices: tuple[tuple[Primitive, Primitive], ...]
    captures: tuple[Primitive, ...]


@dataclass(frozen=True)
class FrameParts:
    """A frame.

    predicate: the token that says whether there is another turn
    fixed: the enters whose token every turn gets; counted: None for any other loop than `lower`'s
    """

    frame: str
    predicate: Port
    carried: tuple[Carried, ...]
    fixed: tuple[Primitive, ...]
    counted: Counted | None


class FrameReader:
    """Reads the frames of a graph.

    Errors: GraphError, where a frame has no single condition, or its parts do not fit each other
    """

    def __init__(self, graph: DataflowGraph, places: Places) -> None:
        self._graph, self._places = graph, places

    def parts(self, frame: str) -> FrameParts:
        """Return the parts of a frame."""
        merges = self._places.loops.get(frame, [])
        carried = tuple(self._carried(one) for one in sorted(merges, key=lambda one: one.id))
        switches = [one.switch for one in carried if one.switch is not None]
        predicates = dict.fromkeys(one.operands[1] for one in switches)
        enters = [
            one for one in self._graph.primitives if one.kind == "enter" and one.frame == frame
        ]
        predicate = next(iter(predicates), None)
        if len(predicates) != 1 or not isinstance(predicate, Port):
            why = f"its frame {frame!r} has {len(predicates)} conditions, not 1"
            raise irreducible(enters[0], why)
        for one in carried:
            self._check_back(one, predicate)
        starts = {one.enter.id for one in carried}
        fixed = tuple(one for one in enters if one.id not in starts)
        for enter in fixed:
            if not enter.is_constant:
                raise irreducible(enter, "only turn 0 gets its token, and no merge")
        counted = self._counted(predicate, carried, fixed)
        return FrameParts(frame, predicate, carried, fixed, counted)

    def _readers(self, port: Port, kind: str) -> Iterable[Primitive]:
        for reader in self._graph.readers.get(port, ()):
            if self._graph.primitives[reader].kind == kind:
                yield self._graph.primitives[reader]

    def _maker(self, operand: Operand) -> Primitive | None:
        return self._graph.primitives[operand.primitive] if isinstance(operand, Port) else None

    def _carried(self, merge: Primitive) -> Carried:
        makers = [self._graph.primitives[port.primitive] for port in merge.waits]
        (enter,) = (one for one in makers if one.kind == "enter")
        (back,) = (one for one in makers if one.kind == "next_iteration")
        if enter.is_constant:
            raise irreducible(enter, "every turn gets its token, and so does a merge")
        switches = list(dict.fromkeys(self._readers(Port(merge.id), "switch")))
        mine = [one for one in switches if one.operands[0] == Port(merge.id)]
        if len(mine) > 1:
            raise irreducible(merge, "several switches read it")
        switch = mine[0] if mine else None
        exits = [] if switch is None else list(self._readers(Port(switch.id, 0), "exit"))
        return Carried(merge, enter, back.operands[0], switch, exits[0] if exits else None)

    def _check_back(self, one: Carried, predicate: Port) -> None:
        if isinstance(one.back, Port):
            sides = self._places.of[one.back].sides
            if [(side.predicate, side.taken) for side in sides] == [(predicate, 1)]:
                return
        raise irreducible(one.merge, "what comes back is not made in every turn")

    def _counted(
        self, predicate: Port, carried: tuple[Carried, ...], fixed: tuple[Primitive, ...]
    ) -> Counted | None:
        """Return the parts of a frame that `lower` made."""
        goes = self._graph.primitives[predicate.primitive]
        if goes.kind != "call" or goes.function is not calls.goes_on:
            return None
        by_merge = {one.merge.id: one for one in carried}
        turn, going, limit = (port.primitive for port in goes.waits)
        most = self._maker(self._graph.primitives[limit].operands[0])
        begins = self._maker(by_merge[going].start)
        if most is None or begins is None or not isinstance(most.function, calls.MostTurns):
            raise irreducible(goes, "it counts turns, and nothing says up to which")
        rest = [one for one in carried if one.merge.id not in (turn, going)]
        makers = {one.merge.id: self._maker(one.start) for one in rest}
        lists = tuple(
            one
            for one in rest
            if (maker := makers[one.merge.id]) and maker.function is calls.empty_list
        )
        enters = {one.id: one for one in fixed}
        slices = tuple(
            (one, enters[one.waits[0].primitive])
            for one in self._graph.primitives
            if isinstance(one.function, calls.TurnSlice) and one.waits[0].primitive in enters
        )
        cut = {limit, *(enter.id for _, enter in slices)}
        return Counted(
            form=most.function.form,
            trips=most.operands[0],
            condition=begins.operands[0],
            turn=by_merge[turn],
            going=by_merge[going],
            states=tuple(one for one in rest if one not in lists),
            lists=lists,
            stacks=tuple(stack for one in lists if one.exit for stack in self._stacks(one.exit)),
            slices=slices,
            captures=tuple(one for one in fixed if one.id not in cut),
        )

    def _stacks(self, exit: Primitive) -> Iterable[Primitive]:
        for one in self._readers(Port(exit.id), "call"):
            if isinstance(one.function, calls.StackedRows):
                yield one

    def capture_value(self, enter: Primitive) -> Primitive | None:
        """Return the call that brings a capture into a turn."""
        return next(
            (one for one in self._readers(Port(enter.id), "call") if one.function is calls.same),
            None,
        )


def widened(old: TensorType, new: TensorType) -> TensorType:
    """Return the type that holds values of both.

    Errors: GraphError, if their dtypes or ranks differ
    """
    if old.dtype != new.dtype or len(old.shape) != len(new.shape):
        raise GraphError(f"a loop carries {old} into a turn, and {new} out of it")
    dims = (a if a == b else UNKNOWN for a, b in zip(old.shape, new.shape, strict=True))
    return TensorType(tuple(dims), old.dtype, old.quant)
