"""Control flow on arrays of any shape: branches are taken, and turns follow one another.

A session whose shapes are known when it is made plans its control flow ahead. Where shapes vary
(growing carried values, branches of unequal shapes, loops that end by their data), a dynamic
session calls `ControlFlow.run_control` for each control node of a run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from trireme.ir.graph import Node
from trireme.ops.control import Repeat, bodies_of, no_rows, repeat_of, row_types
from trireme.passes.bodies import body_of
from trireme.passes.turns import has_no_end
from trireme.runtime.control.bodies import Bodies, BodyUse
from trireme.runtime.control.body import Workshop
from trireme.runtime.control.operands import endless, timed_out
from trireme.support.cancel import check_cancelled
from trireme.support.dtypes import Array
from trireme.support.errors import RunError

Operands = Sequence[Array | None]


class ControlFlow:
    """Runs control nodes on arrays of any shape, on open devices."""

    def __init__(self, workshop: Workshop) -> None:
        self._timeout_s = workshop.options.timeout_s
        self._bodies = Bodies(workshop, self.run_control)

    @property
    def uses(self) -> list[BodyUse]:
        """What became of each body lately, the latest last."""
        return self._bodies.uses

    def run_control(self, node: Node, arrays: Operands) -> list[Array]:
        """Return the outputs of an `if`, a `loop` or a `scan`.

        arrays: the operands in the node's order, None where one is left out
        Errors: RunError, if a loop takes longer than it may; those of the bodies
        """
        form = repeat_of(node.attrs)
        made = self._branch(node, arrays) if form is None else self._repeat(node, form, arrays)
        return made[: len(node.outputs)]

    def _branch(self, node: Node, arrays: Operands) -> list[Array]:
        condition, *captures = _given(arrays)
        then, other = bodies_of(node).values()
        return self._bodies.run(then if _is_true(condition) else other, captures)

    def _repeat(self, node: Node, form: Repeat, arrays: Operands) -> list[Array]:
        trips, condition = (*arrays[: form.first], None, None)[:2]
        values = _given(arrays[form.first :])
        end = form.carried + len(form.slices)
        states, captures = values[: form.carried], values[end:]
        cut = [
            np.flip(np.moveaxis(x, axis, 0), 0) if backward else np.moveaxis(x, axis, 0)
            for x, (axis, backward) in zip(values[form.carried : end], form.slices, strict=True)
        ]
        most = turns_at_most(node, trips, cut)
        going = condition is None or _is_true(condition)
        kept: list[list[Array]] = [[] for _ in form.rows]
        if most is None and has_no_end(form):
            raise endless(node)
        given = [*states, *(x[0] for x in cut if len(x)), *captures]
        if going and most != 0 and (loop := self._bodies.loop(node, form, given, most)):
            turns, states, made = loop.run(states, cut, captures, most)
            ways = zip(made, form.rows, strict=True)
            return [*states, *(_laid(rows, axis, backward) for rows, (axis, backward) in ways)]
        deadline, turn = self._deadline(), 0
        while going and (most is None or turn < most):
            check_cancelled()
            first = [np.array(turn, np.int64), np.array(going)] if form.counts else []
            slices = [np.array(x[turn], order="C") for x in cut]
            made = self._bodies.run(form.body, [*first, *states, *slices, *captures])
            going = _is_true(made[0]) if form.counts else True
            rows = form.made + form.carried
            states = made[form.made : rows]
            for one, row in zip(kept, made[rows:], strict=True):
                one.append(row)
            turn += 1
            if deadline is not None and time.monotonic() > deadline:
                raise timed_out(node, turn, self._timeout_s or 0.0)
        if not turn:
            types = row_types(form, values, body_of)
            empty = [
                no_rows(*one) for one in zip(types, (axis for axis, _ in form.rows), strict=True)
            ]
            return [*states, *empty]
        return [
            *states,
            *(
                stacked(node, one[::-1] if backward else one, axis)
                for one, (axis, backward) in zip(kept, form.rows, strict=True)
            ),
        ]

    def _deadline(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s


def _laid(rows: Array, axis: int, backward: bool) -> Array:
    """Return rows in the order and along the axis that an output has them."""
    turned = np.flip(rows, 0) if backward else rows
    return np.ascontiguousarray(np.moveaxis(turned, 0, axis))


def _is_true(array: Array) -> bool:
    return bool(array.reshape(-1)[0])


def turns_at_most(node: Node, trips: Array | None, cut: Sequence[Array]) -> int | None:
    """Return the most turns of a loop: its trip count, or the length of what it cuts."""
    if trips is not None:
        return int(trips.reshape(-1)[0])
    lengths = {len(x) for x in cut}
    if len(lengths) > 1:
        raise RunError(f"{node.label}: the scanned inputs have lengths {sorted(lengths)}")
    return lengths.pop() if lengths else None


def _given(arrays: Operands) -> list[Array]:
    return [array for array in arrays if array is not None]


def stacked(node: Node, rows: Sequence[Array], axis: int) -> Array:
    """Return what the turns of a loop made, along a new axis.

    Errors: RunError, if the turns made arrays of several shapes
    """
    if len({row.shape for row in rows}) > 1:
        first, other = list(dict.fromkeys(row.shape for row in rows))[:2]
        raise RunError(
            f"{node.label}: a value to stack is {list(first)} in one turn and {list(other)} "
            "in another"
        )
    return np.stack(rows, axis)
