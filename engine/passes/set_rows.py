"""set_rows: a turn that puts rows between two parts of a list scatters them into the list.

TensorFlow's converter writes `list[i] = row` as a concat of the list's first i rows, the row and
the rows after. The shapes of both slices depend on the turn, so no device compiles such a body.
Here the counters of a loop are expressions of the turn, and the turn has bounds. Where they prove
that a concat keeps the length of the list, it becomes a scatter_nd, which devices have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from trireme.ir.contents import elements_of, refined
from trireme.ir.dims import Bounds, add, multiply, range_of, substituted, subtract
from trireme.ir.graph import UNKNOWN, Dim, Graph, Node, TensorType
from trireme.ir.op import OpDef, get_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.ops.repeats import Repeat, body_types, repeat_of
from trireme.ops.shapes import axes_of, to_ints
from trireme.passes.bodies import body_of, settled
from trireme.support.dtypes import INTS, Array


def set_rows(graph: Graph) -> Rewritten:
    """Turn concats that set rows of a list in a loop into scatters."""
    return apply(graph, rules_by_op((["loop"], rows_of_lists)))


def rows_of_lists(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """loop, body(t, s) of concat(s[:t], row, s[t+1:]) -> loop, body of scatter_nd(s, t, row)."""
    form = repeat_of(root.attrs)
    if form is None or not any(_may_set_rows(form.body, node) for node in form.body.nodes):
        return None
    turns, fired = _Turns(g, root, form), False

    def scattered(body: Graph, types: Sequence[TensorType]) -> Graph:
        nonlocal fired
        made, fired = turns.scattered(body_of(body, types))
        return made

    operands = [g.type(value) for value in root.inputs[form.first :] if value is not None]
    made = settled(form, body_types(root.attrs, operands), scattered)
    if not fired:
        return None
    quants = [g.type(out).quant for out in root.outputs]
    return g.add_many(root.op, root.inputs, {**root.attrs, "body": made}, [root], quants)


def _may_set_rows(body: Graph, node: Node) -> bool:
    """Whether a node is a concat of three, the first and the last of them slices."""
    if node.op != "concat" or len(node.used) != 3:
        return False
    ends = [body.producer(node.used[k]) for k in (0, 2)]
    return all(one is not None and one.op == "slice" for one in ends)


class _Turns:
    """The turns of a loop: how many there may be, and what they decide in its body.

    name: the symbol that stands for the number of the turn
    counts: of each input of the body an expression of the turn; None where it is no counter
    """

    def __init__(self, g: GraphRewriter, root: Node, form: Repeat) -> None:
        body = form.body
        self.name = next(name for name in _names() if name not in body.symbols)
        starts = [g.data(value) for value in root.inputs[form.first :][: form.carried]]
        outs = body.outputs[form.made :][: form.carried]
        given = body.inputs[form.first :][: form.carried]
        counts = [self._count(body, *one) for one in zip(given, outs, starts, strict=True)]
        self.counts: list[Dim | None] = [self.name, 1, *counts]
        trips = g.data(root.inputs[0])
        self._most = None if trips is None else max(to_ints(trips)[0] - 1, 0)

    def _count(self, body: Graph, value: int, out: int, start: Array | None) -> Dim | None:
        """Return a carried value as an expression of the turn."""
        step = _step(body, value, out)
        if step is None or start is None:
            return None
        return add(to_ints(start)[0], multiply(step, self.name))

    def scattered(self, body: Graph) -> tuple[Graph, bool]:
        """Return a body whose types are known with scatters, and whether there is one."""
        made = {
            value: np.full(body.type(value).dims, count, object)
            for value, count in zip(body.inputs, self.counts, strict=False)
            if count is not None
        }
        _, known = refined(self._bounded(body, self._most), made)
        ends = _last_turns(body, body.outputs[0], known, self.name)
        limits = [*ends, *([] if self._most is None else [self._most])]
        bounded = self._bounded(body, min(limits, default=None))
        _, known = refined(bounded, made)

        def set_between(g: GraphRewriter, concat: Node) -> tuple[int] | None:
            return _set_between(g, concat, known, bounded.symbols)

        rewriter = GraphRewriter(body)
        rewriter.walk({"concat": [set_between]})
        return (rewriter.finish(), True) if rewriter.counts else (body, False)

    def _bounded(self, body: Graph, most: int | None) -> Graph:
        return replace(body, symbols={**body.symbols, self.name: (0, most)})


def _names() -> Iterator[str]:
    return (f"turn{'_' * k}" for k in count())


def _step(body: Graph, value: int, out: int) -> int | None:
    """Return what a turn adds to a carried integer; None where it does something else."""
    type, node = body.type(value), body.producer(out)
    if type.dtype not in INTS or not type.is_static or type.elements != 1:
        return None
    if out == value:
        return 0
    if node is None or node.op != "add" or node.attrs["activation"] or value not in node.used:
        return None
    more = body.values[node.used[1 - node.used.index(value)]].data
    return None if more is None or more.size != 1 else to_ints(more)[0]


def _last_turns(body: Graph, value: int, known: Mapping[int, Array], turn: str) -> list[int]:
    """Return turns that are surely the last, from the comparisons that a condition is made of.

    value: the condition at the end of a turn
    """
    node = body.producer(value)
    if node is not None and node.op == "and":
        return [last for one in node.used for last in _last_turns(body, one, known, turn)]
    if node is None or not get_op(node.op).compares:
        return []
    sides = [elements_of(body.values[value], known) for value in node.used]
    if any(one is None or one.size != 1 for one in sides):
        return []
    left = _left(get_op(node.op), subtract(*(one.item() for one in sides if one is not None)))
    first, second = (substituted(left, {turn: k}) for k in (0, 1))
    if not isinstance(first, int) or not isinstance(second, int) or second >= first:
        return []
    step = first - second
    if left != subtract(first, multiply(step, turn)):
        return []
    return [max(-(-first // step), 0)]


def _left(op: OpDef, difference: Dim) -> Dim:
    """Return a number above 0 exactly where a comparison of integers holds; "?" for (un)equal.

    difference: the first operand minus the second
    """
    below, same, above = (bool(op.reference(np.array(k), np.array(0))) for k in (-1, 0, 1))
    if below == above:
        return UNKNOWN
    return add(difference if above else subtract(0, difference), int(same))


def _set_between(
    g: GraphRewriter, root: Node, known: Mapping[int, Array], symbols: Mapping[str, Bounds]
) -> tuple[int] | None:
    """concat(x[:i], rows, x[i+n:]) -> scatter_nd(x, i + (0..n), rows), if i is surely within x."""
    rank = len(g.type(root.outputs[0]).shape)
    if len(root.used) != 3 or root.attrs["axis"] not in (0, -rank) or root.attrs["activation"]:
        return None
    before, after = (g.made_by(root.used[k], root, "slice") for k in (0, 2))
    if before is None or after is None or before.used[0] != after.used[0]:
        return None
    x, rows = before.used[0], root.used[1]
    if len({g.type(value).quant for value in (x, *root.used, *root.outputs)}) != 1:
        return None
    length, count = g.type(x).shape[0], g.type(rows).shape[0]
    first, last = (_ends(g, node, known) for node in (before, after))
    if not isinstance(length, int) or not isinstance(count, int) or first is None or last is None:
        return None
    (start, at), (again, end) = first, last
    least, most = range_of(at, symbols)
    is_between = start == 0 and subtract(again, at) == count and end == length
    if not is_between or least < 0 or most > length - count:
        return None
    index = next((value for value in _before(g) if _is_element(known.get(value), at)), None)
    return None if index is None else (_scatter(g, root, x, index, rows),)


def _ends(g: GraphRewriter, node: Node, known: Mapping[int, Array]) -> tuple[Dim, Dim] | None:
    """Return where a slice begins and ends on the first axis; None unless it has all of the others.

    An end beyond the axis is the length of the axis.
    """
    shape = g.type(node.used[0]).shape
    parts = [None if v is None else elements_of(g.values[v], known) for v in node.inputs[1:]]
    starts, ends, axes, steps = [*parts, None, None][:4]
    if starts is None or ends is None or (steps is not None and not np.all(steps == 1)):
        return None
    where = range(len(starts)) if axes is None else axes_of(axes.tolist(), len(shape))
    found: tuple[Dim, Dim] = (0, shape[0])
    for axis, start, end in zip(where, starts.tolist(), ends.tolist(), strict=True):
        size = shape[axis]
        end = size if isinstance(end, int) and isinstance(size, int) and end >= size else end
        if axis == 0:
            found = start, end
        elif (start, end) != (0, size):
            return None
    return found


def _before(g: GraphRewriter) -> Iterator[int]:
    """Yield the values that exist at this place of a walk."""
    yield from g.graph.inputs
    for node in g.nodes.values():
        yield from node.outputs


def _is_element(elements: Array | None, one: Dim) -> bool:
    return elements is not None and elements.size == 1 and elements.item() == one


def _scatter(g: GraphRewriter, root: Node, x: int, index: int, rows: int) -> int:
    """Add a scatter of rows into x from an index on; return its output."""
    place = g.add("reshape", [index, g.constant(np.array([1, 1]))], {}, [root])
    if g.type(place).dtype != "int64":
        place = g.add("cast", [place], {"to": "int64"}, [root])
    steps = np.arange(g.type(rows).dims[0])[:, None]
    if len(steps) != 1:
        place = g.add("add", [place, g.constant(steps)], {}, [root])
    return g.add("scatter_nd", [x, place, rows], {}, [root], g.type(x).quant)
