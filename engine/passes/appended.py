"""Find the states that each iteration of a loop only extends by a part.

    body: t = concat(s, part)   ->   body: part

A caller that keeps such a state in memory with room writes the part behind what is there. A state
that the body does not even read need not be carried: its parts are rows of the loop.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from trireme.ir.bind_shapes import retyped
from trireme.ir.graph import UNKNOWN, Graph, Node, TensorType, Value
from trireme.ir.verify import check
from trireme.ops.repeats import Repeat


@dataclass(frozen=True)
class Appended:
    """A state that a turn makes longer: its number, and the axis along which it grows."""

    state: int
    axis: int


def appended_states(
    form: Repeat, whole: Container[int] = ()
) -> tuple[Repeat, tuple[Appended, ...]]:
    """Return a loop whose body makes parts in place of longer states, and these states.

    whole: states that are to stay as they are
    """
    states_left = (k for k in range(form.carried) if k not in whole)
    found = {k: join for k in states_left if (join := _join_of(form, k))}
    body, states = form.body, []
    for k, join in found.items():
        body = _with_part(body, form.made + k, join)
        rank = len(form.body.type(join.outputs[0]).shape)
        states.append(Appended(k, join.attrs["axis"] % rank))
    if not found:
        return form, ()
    types = [body.type(value) for value in body.inputs]
    return replace(form, body=retyped(body, types)), tuple(states)


def rows_for(form: Repeat, appended: Sequence[Appended]) -> tuple[Repeat, tuple[Appended, ...]]:
    """Return a loop with rows in place of those appended states that no turn reads, and these.

    form: makes parts (`appended_states`); the new rows are its last, in the order of the states
    """
    body = form.body
    unread = [one for one in appended if not _is_read(body, body.inputs[form.first + one.state])]
    if not unread:
        return form, ()
    states = {one.state for one in unread}
    inputs = [v for k, v in enumerate(body.inputs) if k - form.first not in states]
    outputs = [v for k, v in enumerate(body.outputs) if k - form.made not in states]
    outputs += [body.outputs[form.made + one.state] for one in unread]
    gone = {body.inputs[form.first + k] for k in states}
    values = {id: value for id, value in body.values.items() if id not in gone}
    smaller = check(replace(body, inputs=tuple(inputs), outputs=tuple(outputs), values=values))
    rows = (*form.rows, *((0, False) for _ in unread))
    carried = form.carried - len(unread)
    return replace(form, body=smaller, carried=carried, rows=rows), tuple(unread)


def _join_of(form: Repeat, state: int) -> Node | None:
    """Return the node that makes a state longer, if the state after a turn has no other reader."""
    body = form.body
    before, after = body.inputs[form.first + state], body.outputs[form.made + state]
    node = body.producer(after)
    if node is None or node.op != "concat" or node.attrs["activation"] or node.after:
        return None
    if node.used[0] != before or before in node.used[1:] or len(node.used) < 2:
        return None
    if body.users(after) or body.outputs.count(after) > 1:
        return None
    types = [body.type(value) for value in (*node.used, after)]
    return node if all(type.quant is None and type.dtype != "string" for type in types) else None


def _with_part(body: Graph, place: int, join: Node) -> Graph:
    """Return a body whose output at a place is what a node appends."""
    nodes = [node for node in body.nodes if node is not join]
    values = dict(body.values)
    whole = values.pop(join.outputs[0])
    part = join.used[1]
    if len(join.used) > 2:
        part = max(body.values) + 1
        open_type = TensorType((UNKNOWN,) * len(whole.shape), whole.dtype)
        values[part] = Value(part, whole.name, open_type)
        nodes.append(replace(join, inputs=join.inputs[1:], outputs=(part,)))
    outputs = [*body.outputs]
    outputs[place] = part
    return replace(body, nodes=tuple(nodes), values=values, outputs=tuple(outputs))


def _is_read(body: Graph, value: int) -> bool:
    return bool(body.users(value)) or body.is_output(value)
