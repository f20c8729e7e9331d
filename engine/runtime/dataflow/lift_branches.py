"""Make an `if` of the merges and switches on one predicate."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.ir.builder import GraphBuilder
from trireme.runtime.dataflow.graph import Port, Primitive
from trireme.runtime.dataflow.places import Place
from trireme.runtime.dataflow.scope import LiftScope, condition_of


def add_branch(scope: LiftScope, first: Primitive) -> None:
    """Add the `if` of a merge, and of those on the same predicate that can be made with it."""
    places, primitives = scope.lifting.places, scope.lifting.primitives
    predicate, _ = places.joins[first.id]
    merges = _alike(scope, first)
    switches = _switches(scope, first, predicate)
    condition = scope.output(condition_of(primitives, predicate))
    given = [scope.output(one.operands[0]) for one in switches]
    sides: list[LiftScope] = []
    ends: list[Sequence[int]] = []
    for taken in (1, 0):
        side = _side(scope, first, taken)
        for one, outer in zip(switches, given, strict=True):
            value = one.values[taken] if one.values else None
            known = scope.builder.values[outer] if value is None else value
            side.known[Port(one.id, taken)] = side.builder.input(known.name, known.type)
        for port in sides[0].inputs if sides else ():
            side.known[port] = side.captured(port)
        sides.append(side)
        ends.append([side.output(places.joins[one.id][1][taken]) for one in merges])
        side.finish()
    for port in sides[1].inputs[len(sides[0].inputs) :]:
        sides[0].known[port] = sides[0].captured(port)
    then, other = (one.builder.finish(*made) for one, made in zip(sides, ends, strict=True))
    read = [scope.output(port) for port in sides[1].inputs]
    attrs = {"then_branch": then, "else_branch": other}
    scope.add("if", [condition, *given, *read], attrs, merges)


def _alike(scope: LiftScope, first: Primitive) -> list[Primitive]:
    """Return the merges at the place of one, on its predicate, with as many of them before."""
    places = scope.lifting.places

    def key(merge: int) -> tuple[Port, Place, int]:
        return places.joins[merge][0], places.of[Port(merge)], places.levels[merge]

    wanted = key(first.id)
    return [scope.lifting.primitives[one] for one in sorted(places.joins) if key(one) == wanted]


def _switches(scope: LiftScope, merge: Primitive, predicate: Port) -> list[Primitive]:
    """Return the switches that bring something into the branches of a merge."""
    places, here = scope.lifting.places, scope.lifting.places.of[Port(merge.id)]
    found = []
    for one in scope.lifting.primitives:
        if one.kind != "switch" or one.operands[1] != predicate or one.operands[0] == predicate:
            continue
        after = places.of[Port(one.id, 1)]
        is_here = after.frame == here.frame and after.sides[:-1] == here.sides
        if is_here and places.levels[one.id] == places.levels[merge.id]:
            found.append(one)
    return found


def _side(scope: LiftScope, merge: Primitive, taken: int) -> LiftScope:
    port = scope.lifting.places.joins[merge.id][1][taken]
    name = f"{merge.label}.{'then' if taken else 'else'}"
    return LiftScope(scope.lifting, GraphBuilder(name), scope.lifting.places.of[port], scope)
