"""Find the counters in the body of a loop, and their bounds, from the number of the iteration.

A carried integer that each turn adds a constant to is an expression of the turn. The passes
counted_loops and set_rows follow these expressions through the body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

import numpy as np

from trireme.ir.contents import refined
from trireme.ir.dims import Bounds, add, multiply
from trireme.ir.graph import Dim, Graph, Node
from trireme.ir.rewriter import GraphRewriter
from trireme.ops.repeats import Repeat
from trireme.ops.shapes import to_ints
from trireme.support.dtypes import INTS, Array


class TurnCounts:
    """The counters of a loop.

    turn: the symbol that stands for the number of the turn
    last: the last turn that the trip count allows; None where only a run knows, -1 for no turn
    """

    def __init__(self, g: GraphRewriter, root: Node, form: Repeat) -> None:
        body = form.body
        self.turn = next(name for name in _names() if name not in body.symbols)
        trips = g.data((*root.inputs, None)[0])
        self.last = None if trips is None else max(to_ints(trips)[0], 0) - 1
        starts = [g.data(value) for value in root.inputs[form.first :][: form.carried]]
        outs = body.outputs[form.made :][: form.carried]
        given = body.inputs[form.first :][: form.carried]
        counts = [self._count(body, *one) for one in zip(given, outs, starts, strict=True)]
        self._counts: list[Dim | None] = [self.turn, 1, *counts]

    def _count(self, body: Graph, value: int, out: int, start: Array | None) -> Dim | None:
        """Return a carried value as an expression of the turn; None where it is no counter."""
        step = _step(body, value, out)
        if step is None or start is None:
            return None
        return add(to_ints(start)[0], multiply(step, self.turn))

    def contents(self, body: Graph) -> tuple[Mapping[int, Array], Mapping[str, Bounds]]:
        """Return the elements of values that follow from the turn, and the bounds of symbols.

        body: the body of the loop, perhaps with other types
        """
        given = {
            value: np.full(body.type(value).dims, number, object)
            for value, number in zip(body.inputs, self._counts, strict=False)
            if number is not None
        }
        last = None if self.last is None else max(self.last, 0)
        symbols = {**body.symbols, self.turn: (0, last)}
        return refined(replace(body, symbols=symbols), given)[1], symbols


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
