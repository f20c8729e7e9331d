"""Control flow on arrays of any shape: branches are taken, and turns follow one another.

A session whose shapes are known when it is made plans its control flow ahead. Where shapes vary
(growing carried values, branches of unequal shapes, loops that end by their data), a dynamic
session calls `ControlFlow.run_control` for each control node of a run.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trireme.ir.graph import Node
from trireme.ops.repeats import Repeat, bodies_of, no_rows, repeat_of, row_types
from trireme.passes.bodies import body_of
from trireme.passes.turns import has_no_end
from trireme.runtime.control.bodies import (
    MOST_BODIES,
    Bodies,
    BodyRun,
    BodyUse,
    MakeOpen,
    range_of,
)
from trireme.runtime.control.body import Workshop
from trireme.runtime.control.growing import (
    GrowingArray,
    GrowingForm,
    growing_form,
    in_pieces,
    joined,
)
from trireme.runtime.control.growing_loop import GrowingLoop, TurnsDone
from trireme.runtime.control.open_loop import Compile
from trireme.runtime.control.operands import endless, timed_out
from trireme.support.cancel import check_cancelled
from trireme.support.dtypes import Array
from trireme.support.errors import RunError

Operands = Sequence[Array | None]
Rows = Array | list[Array]
"""Rows of one kind: along a new first axis, or each for itself."""
_GOING = np.array(True)


@dataclass(frozen=True)
class Operated:
    """What the turns of a loop are given.

    states: before the first turn; cut: arrays whose first axis is cut, in the order of the turns
    most: the most turns, None for no end
    """

    states: Sequence[Array]
    cut: Sequence[Array]
    captures: Sequence[Array]
    most: int | None


class ControlFlow:
    """Runs control nodes on arrays of any shape, on open devices.

    open_body: compiles a body for every shape, or says why not; None where no device can
    compile_open: compiles a graph with symbols, or says why not; None where no device can
    """

    def __init__(
        self,
        workshop: Workshop,
        open_body: MakeOpen | None = None,
        compile_open: Compile | None = None,
    ) -> None:
        self._timeout_s = workshop.options.timeout_s
        self._bodies = Bodies(workshop, self.run_control, open_body, compile_open)
        self._forms: dict[tuple[Repeat, frozenset[int]], GrowingForm] = {}

    @property
    def uses(self) -> list[BodyUse]:
        """What became of each body lately, the latest last."""
        return self._bodies.uses

    def take_fallbacks(self) -> tuple[str, ...]:
        """Return what was not compiled in this thread since the last call, and why."""
        return self._bodies.take_fallbacks()

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
        states = values[: form.carried]
        cut = [
            np.flip(np.moveaxis(x, axis, 0), 0) if backward else np.moveaxis(x, axis, 0)
            for x, (axis, backward) in zip(values[form.carried : end], form.slices, strict=True)
        ]
        most = turns_at_most(node, trips, cut)
        if most is None and has_no_end(form):
            raise endless(node)
        going = condition is None or _is_true(condition)
        if not going or (most is not None and most <= 0):
            types = row_types(form, values, body_of)
            ways = zip(types, form.rows, strict=True)
            return [*states, *(no_rows(type, axis) for type, (axis, _) in ways)]
        grown = self._growing(form)
        native = self._growing(form, in_pieces(form, states)) if grown.in_rooms else grown
        plain = [state for k, state in enumerate(states) if k not in grown.as_rows]
        lasts, rows = self._turns(node, grown, native, Operated(plain, cut, values[end:], most))
        made = iter(lasts)
        parts = dict(zip(grown.as_rows, rows[len(form.rows) :], strict=True))
        return [
            *(
                joined(node, state, parts[k], grown.as_rows[k]) if k in parts else next(made)
                for k, state in enumerate(states)
            ),
            *(
                _laid(node, row, axis, backward)
                for row, (axis, backward) in zip(rows, form.rows, strict=False)
            ),
        ]

    def _growing(self, form: Repeat, whole: frozenset[int] = frozenset()) -> GrowingForm:
        found = self._forms.get((form, whole))
        if found is None:
            if len(self._forms) >= MOST_BODIES:
                self._forms.clear()
            found = self._forms[form, whole] = growing_form(form, whole)
        return found

    def _turns(
        self, node: Node, grown: GrowingForm, native: GrowingForm, given: Operated
    ) -> tuple[Sequence[Array], Sequence[Rows]]:
        """Run the turns of a loop, at least one; return the last states, and rows of each kind.

        native: how the states are kept in native code
        """
        first = [*given.states, *(x[0] for x in given.cut), *given.captures]
        growing = self._bodies.growing(node, native, first, given.most)
        if growing is not None:
            return self._grow(node, grown, given, growing)
        if not grown.in_rooms:
            loop = self._bodies.loop(node, grown.form, first, given.most)
            if loop is not None:
                return loop.run(given.states, given.cut, given.captures, given.most)[1:]
        done = self._by_host(node, grown, given)
        return done.states, done.rows

    def _grow(
        self, node: Node, grown: GrowingForm, given: Operated, loop: GrowingLoop
    ) -> tuple[Sequence[Array], Sequence[Rows]]:
        """Run the turns of a loop whose states grow, in native code as far as it goes.

        A first turn on a state without elements runs by itself.
        """
        cut, captures, most = given.cut, given.captures, given.most
        done: TurnsDone | None = None
        if any(0 in state.shape for state in given.states):
            done = self._by_host(node, grown, given, until=1)
        if done is None:
            done = loop.run(given.states, cut, captures, most)
        elif done.going and most != 1:
            after = loop.run(done.states, cut, captures, most, 1)
            rows = [
                np.concatenate((np.array(one), other))
                for one, other in zip(done.rows, after.rows, strict=True)
            ]
            done = replace(after, rows=rows)
        if done.going and done.turns != most:
            self._bodies.note(loop, loop.why)
            done = self._by_host(node, grown, given, done)
        return done.states, done.rows

    def _by_host(
        self,
        node: Node,
        grown: GrowingForm,
        given: Operated,
        before: TurnsDone | None = None,
        until: int | None = None,
    ) -> TurnsDone:
        """Run turn after turn of a body.

        before: turns that are done; until: the most turns to have done then, where less than all
        """
        form, cut, captures = grown.form, given.cut, given.captures
        most = given.most if until is None else until
        before = before or TurnsDone(0, [*given.states], [[] for _ in form.rows], True)
        states, turn, going = before.states, before.turns, before.going
        kept = [list(rows) for rows in before.rows]
        rooms = {k: GrowingArray(node, states[k], axis) for k, axis in grown.in_rooms.items()}
        states = [rooms[k].whole if k in rooms else x for k, x in enumerate(states)]
        end, deadline = form.made + form.carried, self._deadline()
        asks = form.counts and not has_no_end(form)
        run: BodyRun | None = None
        sizes: Hashable = None
        while going and (most is None or turn < most):
            check_cancelled()
            first = [np.array(turn, np.int64), _GOING] if form.counts else []
            slices = [np.array(x[turn], order="C") for x in cut]
            arrays = [*first, *states, *slices, *captures]
            now = range_of(states)
            if run is None or now != sizes or not run.takes(arrays):
                run, sizes = self._bodies.runner(form.body, arrays), now
            made = run(arrays)
            going = not asks or _is_true(made[0])
            states = made[form.made : end]
            for k, room in rooms.items():
                states[k] = room.append(states[k])
            for one, row in zip(kept, made[end:], strict=True):
                one.append(row)
            turn += 1
            if deadline is not None and time.monotonic() > deadline:
                raise timed_out(node, turn, self._timeout_s or 0.0)
        lasts = [x.copy() if k in rooms else x for k, x in enumerate(states)]
        return TurnsDone(turn, lasts, kept, going)

    def _deadline(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s


def _laid(node: Node, rows: Rows, axis: int, backward: bool) -> Array:
    """Return rows in the order and along the axis that an output has them."""
    if not isinstance(rows, np.ndarray):
        return stacked(node, rows[::-1] if backward else rows, axis)
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
