"""Lift dataflow primitives to structured control flow: the inverse of `lower`.

Merges of two branches become an `if`, a frame becomes a `loop` or a `scan`. Graphs that other tools
wrote lift too. Their loops have a condition and no trip count: it is computed before the loop, and
in the body for the next turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType, Value
from trireme.ops.repeats import GOING, TURN, Repeat
from trireme.runtime.dataflow.frames import Carried, Counted, FrameParts, widened
from trireme.runtime.dataflow.graph import DataflowGraph, Operand, Port, Primitive
from trireme.runtime.dataflow.places import Place, SwitchSide, irreducible, places_of
from trireme.runtime.dataflow.scope import Lifting, LiftScope, condition_of
from trireme.support.errors import GraphError


def lift(graph: DataflowGraph) -> Graph:
    """Return the structured form of a dataflow graph: same inputs, outputs and results.

    Errors: GraphError, if its control flow is not structured: no ifs and loops, inside one another,
    hold it
    """
    places = places_of(graph)
    for port in graph.outputs:
        if isinstance(port, Port) and places.of[port] != Place():
            maker = graph.primitives[port.primitive]
            raise irreducible(maker, "its token does not leave the branch or the loop it is in")
    lifting = Lifting(graph, places, add_branch, add_loop)
    builder = GraphBuilder(graph.name)
    builder.symbols.update(graph.symbols)
    root = LiftScope(lifting, builder, Place())
    for value, primitive in graph.inputs.items():
        given = graph.primitives[primitive].value
        if given is None:
            raise GraphError(f"input {value} of {graph.name} has no type")
        root.known[Port(primitive)] = builder.input(given.name, given.type)
    names = graph.names or [""] * len(graph.outputs)
    outputs = [
        builder.constant(name, operand)
        if isinstance(operand, np.ndarray)
        else root.named(operand, name)
        for operand, name in zip(graph.outputs, names, strict=True)
    ]
    root.finish()
    lifting.check_effects()
    return builder.finish(*outputs)


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


def add_loop(scope: LiftScope, exit: Primitive) -> None:
    """Add the loop of the frame that an exit leaves."""
    frame = scope.lifting.places.of[exit.waits[0]].frame
    parts = scope.lifting.frames.parts(frame)
    if parts.counted is None:
        _add_while(scope, parts)
    else:
        _add_counted(scope, parts, parts.counted)


def _add_while(scope: LiftScope, parts: FrameParts) -> None:
    """Add a loop whose condition is an op on what it carries."""
    starts = [scope.output(one.start) for one in parts.carried]
    fixed = [scope.output(one.operands[0]) for one in parts.fixed]
    going = _header(scope, parts, starts, fixed)
    types = [scope.builder.type(value) for value in starts]
    while True:
        body = _body(scope, parts)
        body.builder.input("turn", TURN)
        body.builder.input("going", GOING)
        states = [_carried(body, one, type) for one, type in zip(parts.carried, types, strict=True)]
        captures = [
            _fixed(body, one, scope.builder.values[value])
            for one, value in zip(parts.fixed, fixed, strict=True)
        ]
        after = [body.output(one.back) for one in parts.carried]
        body.finish()
        again = _header(body, parts, after, captures)
        made = [body.builder.type(value) for value in after]
        wider = [widened(old, new) for old, new in zip(types, made, strict=True)]
        if wider == types:
            break
        types = wider
    graph = body.builder.finish(again, *after)
    attrs = {"body": graph, "carried": len(states)}
    exits = [one.exit for one in parts.carried]
    scope.add("loop", [None, going, *starts, *fixed], attrs, exits)


def _header(
    around: LiftScope, parts: FrameParts, states: Sequence[int], fixed: Sequence[int]
) -> int:
    """Return the condition on these states, computed in this graph."""
    scope = LiftScope(around.lifting, around.builder, Place(parts.frame), around)
    merges = [one.merge for one in parts.carried]
    scope.known |= {Port(one.id): v for one, v in zip(merges, states, strict=True)}
    scope.known |= {Port(one.id): v for one, v in zip(parts.fixed, fixed, strict=True)}
    for one in around.lifting.effects:
        if around.lifting.places.of[Port(one.id)] == scope.place:
            raise irreducible(one, "it has an effect, and it runs once more than the loop turns")
    return scope.output(condition_of(around.lifting.primitives, parts.predicate))


def _body(scope: LiftScope, parts: FrameParts) -> LiftScope:
    turn = Place(parts.frame, (SwitchSide(parts.predicate, 1),))
    builder = GraphBuilder(f"{parts.frame}.body")
    return LiftScope(scope.lifting, builder, Place(parts.frame), scope, turn)


def _carried(body: LiftScope, one: Carried, type: TensorType) -> int:
    """Add the input of a body for a carried value."""
    switch = one.switch
    known = None if switch is None or not switch.values else switch.values[1]
    name, type = (one.merge.label, type) if known is None else (known.name, known.type)
    value = body.builder.input(name, type)
    body.known[Port(one.merge.id)] = value
    if switch is not None:
        body.known[Port(switch.id, 1)] = value
    return value


def _fixed(body: LiftScope, enter: Primitive, outer: Value) -> int:
    """Add the input of a body for a capture."""
    call = body.lifting.frames.capture_value(enter)
    known = outer if call is None or call.value is None else call.value
    value = body.known[Port(enter.id)] = body.builder.input(known.name, known.type)
    return value


def _add_counted(scope: LiftScope, parts: FrameParts, loop: Counted) -> None:
    """Add the loop or scan that `lower` made a frame of."""
    form, primitives = loop.form, scope.lifting.primitives
    head = [scope.value(loop.trips), scope.value(loop.condition)] if form.counts else []
    starts = [scope.output(one.start) for one in loop.states]
    cut = [scope.output(enter.operands[0]) for _, enter in loop.slices]
    outer = [scope.output(one.operands[0]) for one in loop.captures]
    body = _body(scope, parts)
    if form.counts:
        _carried(body, loop.turn, TURN)
        _carried(body, loop.going, GOING)
    for one, start in zip(loop.states, starts, strict=True):
        _carried(body, one, scope.builder.type(start))
    for (call, _), whole in zip(loop.slices, cut, strict=True):
        value = scope.builder.values[whole] if call.value is None else call.value
        body.known[Port(call.id)] = body.builder.input(value.name, value.type)
    for enter, capture in zip(loop.captures, outer, strict=True):
        _fixed(body, enter, scope.builder.values[capture])
    outs = [body.output(one.back) for one in loop.states]
    outs += [body.output(_pushed(primitives, one)) for one in loop.lists]
    if form.counts:
        outs.insert(0, body.output(condition_of(primitives, loop.going.back)))
    body.finish()
    attrs = {"body": body.builder.finish(*outs), "carried": form.carried}
    if not form.counts:
        attrs |= _ways(form)
    makers = [*(one.exit for one in loop.states), *loop.stacks]
    scope.add("loop" if form.counts else "scan", [*head, *starts, *cut, *outer], attrs, makers)


def _pushed(primitives: Sequence[Primitive], rows: Carried) -> Operand:
    """Return the row that a turn adds to a list."""
    if not isinstance(rows.back, Port):
        raise irreducible(rows.merge, "no turn adds a row")
    return primitives[rows.back.primitive].operands[1]


def _ways(form: Repeat) -> dict[str, object]:
    """Return the attributes of a scan that say which way it cuts and stacks."""

    def attrs(end: str, ways: Sequence[tuple[int, bool]]) -> dict[str, object]:
        axes, backward = [axis for axis, _ in ways], [int(turned) for _, turned in ways]
        return {
            f"scan_{end}_axes": tuple(axes) if any(axes) else None,
            f"scan_{end}_directions": tuple(backward) if any(backward) else None,
        }

    return {
        "num_scan_inputs": len(form.slices),
        **attrs("input", form.slices),
        **attrs("output", form.rows),
    }
