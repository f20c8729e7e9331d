"""What the `call` primitives of a lowered loop compute: its count, its condition, slices and rows.

They are types, so that `lift` can tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.ir.graph import Node
from trireme.ops.repeats import Repeat, no_rows, row_types
from trireme.passes.bodies import body_of
from trireme.runtime.control.dynamic import stacked, turns_at_most
from trireme.support.dtypes import Array


def same(one: Any) -> Any:
    """Return a constant or a capture, as a token of a turn or a branch."""
    return one


def is_true(condition: Array) -> Array:
    """Return the condition as a scalar."""
    return np.array(bool(condition.reshape(-1)[0]))


def begins(condition: Array | None) -> Array:
    """Return whether a loop may have a first turn."""
    return np.array(True) if condition is None else is_true(condition)


def turn_0() -> Array:
    """Return the number of the first turn."""
    return np.array(0, np.int64)


def next_turn(turn: Array) -> Array:
    """Return the number of the turn after this one."""
    return np.array(int(turn) + 1, np.int64)


def goes_on(turn: Array, going: Array, most: Array) -> Array:
    """Return whether there is a turn of this number; `most` below 0 is no limit."""
    return np.array(bool(going) and (int(most) < 0 or int(turn) < int(most)))


def push(rows: tuple[Any, ...], row: Array) -> tuple[Any, ...]:
    """Return a list with one more row: a pair of the last row and the list before it."""
    return (row, rows)


def empty_list() -> tuple[Any, ...]:
    """Return the list of rows before the first turn."""
    return ()


@dataclass(frozen=True, eq=False)
class MostTurns:
    """The most turns: the trip count, or the length of what is cut; -1 without a limit."""

    node: Node
    form: Repeat

    def __call__(self, trips: Array | None, *cut: Array) -> Array:
        """Return the most turns, given the trip count and the arrays that are cut."""
        ways = zip(cut, self.form.slices, strict=True)
        moved = [np.moveaxis(x, axis, 0) for x, (axis, _) in ways]
        found = turns_at_most(self.node, trips, moved)
        return np.array(-1 if found is None else max(found, 0), np.int64)


@dataclass(frozen=True)
class TurnSlice:
    """The slice of a turn along an axis."""

    axis: int
    backward: bool

    def __call__(self, whole: Array, turn: Array, most: Array) -> Array:
        """Return the slice of a turn."""
        at = int(most) - 1 - int(turn) if self.backward else int(turn)
        return np.array(whole.take(at, self.axis), order="C")


@dataclass(frozen=True, eq=False)
class StackedRows:
    """One kind of rows, stacked."""

    node: Node
    form: Repeat
    kind: int

    def __call__(self, rows: tuple[Any, ...], *values: Array) -> Array:
        """Return the rows as one array, given what the loop was given too."""
        axis, backward = self.form.rows[self.kind]
        found: list[Array] = []
        while rows:
            row, rows = rows
            found.append(row)
        if not found:
            return no_rows(row_types(self.form, values, body_of)[self.kind], axis)
        return stacked(self.node, found if backward else found[::-1], axis)
