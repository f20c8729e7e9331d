"""Make a `loop` or a `scan` of a frame."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType, Value
from trireme.ops.repeats import GOING, TURN, Repeat
from trireme.runtime.dataflow.frames import Carried, Counted, FrameParts, widened
from trireme.runtime.dataflow.graph import Operand, Port, Primitive
from trireme.runtime.dataflow.places import Place, SwitchSide, irreducible
from trireme.runtime.dataflow.scope import LiftScope, condition_of


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
