"""counted_loops: a loop whose condition compares counters with constants gets a trip count.

A WHILE of TensorFlow Lite has no trip count, but most of them count. With one, costs know the
number of turns, and a short loop becomes its turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from trireme.ir.contents import elements_of
from trireme.ir.dims import add, multiply, substituted, subtract
from trireme.ir.graph import UNKNOWN, Dim, Graph, Node, Value
from trireme.ir.op import OpDef, get_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.ops.repeats import GOING, repeat_of
from trireme.passes.turn_counts import TurnCounts
from trireme.support.dtypes import INTS, Array, numpy_dtype


def counted_loops(graph: Graph) -> Rewritten:
    """Give loops the trip counts that their conditions tell."""
    return apply(graph, rules_by_op((["loop"], counted)))


def counted(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """loop(-, go), body of (i + 1 < n and c) -> loop(n, go), body of (c); true where c is empty."""
    form, trips = repeat_of(root.attrs), (*root.inputs, None)[0]
    if form is None or (trips is not None and g.data(trips) is None):
        return None
    body, counts = form.body, TurnCounts(g, root, form)
    known, _ = counts.contents(body)
    ends = _last_turns(body, body.outputs[0], known, counts.turn)
    lasts = [one for one in (*ends, counts.last) if one is not None]
    decides = None not in ends and bool(ends)
    if not lasts or (min(lasts) == counts.last and not decides):
        return None
    inputs = [g.constant(np.array(min(lasts) + 1)), *root.inputs[1:]]
    quants = [g.type(out).quant for out in root.outputs]
    attrs = {**root.attrs, "body": _endless(body) if decides else body}
    return g.add_many(root.op, inputs, attrs, [root], quants)


def _endless(body: Graph) -> Graph:
    """Return a body whose condition is always true."""
    true = max(body.values) + 1
    values = {**body.values, true: Value(true, "going", GOING, np.array(True))}
    return replace(body, values=values, outputs=(true, *body.outputs[1:]))


def _last_turns(body: Graph, value: int, known: Mapping[int, Array], turn: str) -> list[int | None]:
    """Return the last turn by each comparison that a condition is made of; None where unknown.

    value: the condition at the end of a turn
    """
    node = body.producer(value)
    if value == body.inputs[1]:
        return []
    if node is None or not (node.op == "and" or get_op(node.op).compares):
        return [None]
    if node.op == "and":
        return [last for one in node.used for last in _last_turns(body, one, known, turn)]
    sides = [_counter(body.values[one], known) for one in node.used]
    last = _last_turn(_left(get_op(node.op), subtract(*sides)), turn)
    is_exact = last is not None and all(
        _is_within(substituted(one, {turn: at}), body.type(value).dtype)
        for one, value in zip(sides, node.used, strict=True)
        for at in (0, last)
    )
    return [last if is_exact else None]


def _counter(value: Value, known: Mapping[int, Array]) -> Dim:
    """Return the one element of a value, as a number or an expression; else "?"."""
    elements = elements_of(value, known)
    return UNKNOWN if elements is None or elements.size != 1 else elements.item()


def _left(op: OpDef, difference: Dim) -> Dim:
    """Return a number above 0 exactly where a comparison of integers holds; "?" for (un)equal.

    difference: the first operand minus the second
    """
    below, same, above = (bool(op.reference(np.array(k), np.array(0))) for k in (-1, 0, 1))
    if below == above:
        return UNKNOWN
    return add(difference if above else subtract(0, difference), int(same))


def _last_turn(left: Dim, turn: str) -> int | None:
    """Return the first turn after which `left` is no more above 0; None where it may stay so."""
    first, second = (substituted(left, {turn: k}) for k in (0, 1))
    if not isinstance(first, int) or not isinstance(second, int) or second >= first:
        return None
    step = first - second
    is_straight = left == subtract(first, multiply(step, turn))
    return max(-(-first // step), 0) if is_straight else None


def _is_within(number: Dim, dtype: str) -> bool:
    """Whether an integer of a dtype holds a number, so that a counter does not wrap around."""
    if not isinstance(number, int) or dtype not in INTS:
        return False
    limits = np.iinfo(numpy_dtype(dtype))
    return limits.min <= number <= limits.max
