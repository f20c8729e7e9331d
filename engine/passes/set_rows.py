"""set_rows: a turn that puts rows between two parts of a list scatters them into the list.

TensorFlow's converter writes `list[i] = row` as a concat of the list's first i rows, the row and
the rows after. The shapes of both slices depend on the turn, so no device compiles such a body.
Where the counters of a loop and its trip count prove that a concat keeps the length of the list,
it becomes a scatter_nd, which devices have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trireme.ir.contents import elements_of
from trireme.ir.dims import Bounds, range_of, subtract
from trireme.ir.graph import Dim, Graph, Node, TensorType
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.ops.repeats import body_types, repeat_of
from trireme.ops.shapes import axes_of
from trireme.passes.bodies import body_of, settled
from trireme.passes.turn_counts import TurnCounts
from trireme.support.dtypes import Array


def set_rows(graph: Graph) -> Rewritten:
    """Turn concats that set rows of a list in a loop into scatters."""
    return apply(graph, rules_by_op((["loop"], rows_of_lists)))


def rows_of_lists(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """loop, body(t, s) of concat(s[:t], row, s[t+1:]) -> loop, body of scatter_nd(s, t, row)."""
    form = repeat_of(root.attrs)
    if form is None or not any(_may_set_rows(form.body, node) for node in form.body.nodes):
        return None
    counts, fired = TurnCounts(g, root, form), False

    def scattered(body: Graph, types: Sequence[TensorType]) -> Graph:
        nonlocal fired
        rewriter = _scattered(body_of(body, types), counts)
        fired = bool(rewriter.counts)
        return rewriter.finish() if fired else rewriter.graph

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


def _scattered(body: Graph, counts: TurnCounts) -> GraphRewriter:
    """Return a body of known types, rewritten."""
    known, symbols = counts.contents(body)

    def set_between(g: GraphRewriter, concat: Node) -> tuple[int] | None:
        return _set_between(g, concat, known, symbols)

    rewriter = GraphRewriter(body)
    rewriter.walk({"concat": [set_between]})
    return rewriter


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
