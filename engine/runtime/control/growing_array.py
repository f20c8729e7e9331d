"""A carried value that turns make longer: parts are written behind it, in memory with room."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.ir.graph import Node
from trireme.support.dtypes import Array
from trireme.support.errors import RunError

FIRST_ROOM = 16
"""The least size along the axis that memory has room for."""


class GrowingArray:
    """An array that grows along an axis; its memory doubles when it is full.

    whole: what is there now, a view. What it holds never changes, so older views stay right.
    """

    def __init__(self, node: Node, first: Array, axis: int) -> None:
        self._node, self._axis = node, axis
        self._before = (slice(None),) * axis
        self._others = first.shape[:axis] + first.shape[axis + 1 :]
        self._size = first.shape[axis]
        self._make_room(first, max(FIRST_ROOM, 2 * self._size))
        self.whole = self._table[(*self._before, slice(self._size))]

    def append(self, part: Array) -> Array:
        """Write a part behind what is there; return the whole.

        Errors: RunError, if it has another shape but for the axis
        """
        shape, axis = part.shape, self._axis
        if shape[:axis] + shape[axis + 1 :] != self._others or part.ndim != self._table.ndim:
            raise cannot_join(self._node, self.whole, part, axis)
        start = self._size
        self._size = end = start + shape[axis]
        if end > self._table.shape[axis]:
            self._make_room(self.whole, 2 * end)
        self._table[(*self._before, slice(start, end))] = part
        self.whole = self._table[(*self._before, slice(end))]
        return self.whole

    def _make_room(self, held: Array, room: int) -> None:
        axis = self._axis
        shape = (*held.shape[:axis], room, *held.shape[axis + 1 :])
        self._table = np.empty(shape, held.dtype)
        self._table[(*self._before, slice(held.shape[axis]))] = held


def joined(node: Node, first: Array, parts: Array | Sequence[Array], axis: int) -> Array:
    """Return an array with what the turns of a loop appended to it.

    parts: one after another along a new first axis, or each for itself
    Errors: RunError, if the shapes do not go together
    """
    if isinstance(parts, np.ndarray):
        shape = parts.shape[1:]
        size = len(parts) * shape[axis]
        laid = np.moveaxis(parts, 0, axis)
        parts = [laid.reshape((*shape[:axis], size, *shape[axis + 1 :]))]
    try:
        return np.concatenate((first, *parts), axis)
    except ValueError as error:
        last = next((one for one in parts if not _fits(first, one, axis)), parts[0])
        raise cannot_join(node, first, last, axis) from error


def cannot_join(node: Node, first: Array, part: Array, axis: int) -> RunError:
    """Return the error of a turn that appends what does not fit."""
    return RunError(
        f"{node.label}: a turn appends {list(part.shape)} to {list(first.shape)} along axis {axis}"
    )


def _fits(first: Array, part: Array, axis: int) -> bool:
    left = [size for k, size in enumerate(first.shape) if k != axis]
    return first.ndim == part.ndim and left == [n for k, n in enumerate(part.shape) if k != axis]
