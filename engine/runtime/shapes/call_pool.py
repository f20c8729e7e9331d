"""The calls of one program for every shape, each with memory of its own for scratch and I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np

from trireme.backend.capabilities import ResizableCall
from trireme.backend.device import Buffer
from trireme.runtime.program.io_binding import IN_PLACE_BYTES
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

Kinds = Sequence[tuple[tuple[int, ...], Any]]
"""Shapes and numpy's dtypes."""
_APART = 64
"""Arrays begin at multiples of so many bytes."""


def is_small(kinds: Kinds) -> bool:
    """Whether all arrays of these kinds are small enough to be copied."""
    return all(_nbytes(*kind) < IN_PLACE_BYTES for kind in kinds)


class SmallIO:
    """Memory for inputs and outputs of some kinds; places: their addresses."""

    def __init__(self, fed: Kinds, made: Kinds) -> None:
        kinds = (*fed, *made)
        rooms = (-(-_nbytes(*kind) // _APART) * _APART for kind in kinds)
        starts = list(accumulate(rooms, initial=0))
        memory = np.empty(starts[-1] + _APART, np.uint8)
        begin = -memory.ctypes.data % _APART
        views = [
            memory[begin + start :][: _nbytes(shape, dtype)].view(dtype).reshape(shape)
            for start, (shape, dtype) in zip(starts, kinds, strict=False)
        ]
        self.places = [view.ctypes.data for view in views]
        self._fed, self._copies = views[: len(fed)], [view.copy for view in views[len(fed) :]]

    def put(self, arrays: Sequence[Array]) -> None:
        """Copy the inputs."""
        for view, array in zip(self._fed, arrays, strict=True):
            view[...] = array

    def copied(self) -> list[Array]:
        """Return copies of the outputs."""
        return [copy() for copy in self._copies]


def _nbytes(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * int(np.dtype(dtype).itemsize)


_MOST_KEPT = 8
"""Calls that are made for shapes that come back; a decoder has a new shape for every token."""
_LOADS_TO_KEEP = 4
"""A shape whose tables were written so often gets a call of its own."""


@dataclass(eq=False)
class ReturningShape:
    """A shape that may run again.

    tables: what the device made of the shape
    fed, made: the arrays that kernels read and write
    loads: how often a call had to write the tables
    """

    tables: Any
    fed: Kinds
    made: Kinds
    loads: int = 0


class CallPool:
    """The calls of a graph, each with scratch memory of its own.

    There are as many as ever ran at once, and more for shapes that come back: a call writes its
    tables anew for another shape than the last one's, 0.2 ms in a small transformer.
    """

    def __init__(self, first: ResizableCall, alloc: Callable[[int], Buffer]) -> None:
        self._first, self._alloc = first, alloc
        self._free: list[_PooledCall] = [_PooledCall(first, alloc)]
        self._made = 1

    def run(self, tables: Any, places: Sequence[int], shape: ReturningShape | None = None) -> None:
        """Run tables on a call that is free; as `ResizableCall.run`.

        shape: whose tables they are; None where they do not come back
        """
        one = self._any_free(False) if shape is None else self._free_for(shape)
        try:
            one.run(tables, places)
        finally:
            self._free.append(one)

    def run_small(self, shape: ReturningShape, arrays: Sequence[Array]) -> list[Array]:
        """Run a shape on copies of arrays, and return what it makes."""
        one = self._free_for(shape)
        try:
            one.take(shape.tables)
            if one.small is None:
                one.small = SmallIO(shape.fed, shape.made)
            one.small.put(arrays)
            one.run(shape.tables, one.small.places)
            return one.small.copied()
        finally:
            self._free.append(one)

    def reserve(self, scratch_bytes: int) -> None:
        """Have scratch memory for the first call."""
        for one in self._free:
            one.scratch(scratch_bytes)

    def _free_for(self, shape: ReturningShape) -> _PooledCall:
        try:
            one = self._free.pop()
        except IndexError:
            return self._any_free(True)
        if one.tables is shape.tables:
            return one
        self._free.append(one)
        for one in reversed(self._free[:]):
            if one.tables is shape.tables:
                with suppress(ValueError):  # another caller was faster
                    self._free.remove(one)
                    return one
        shape.loads += 1
        return self._any_free(shape.loads > _LOADS_TO_KEEP and self._made < _MOST_KEPT)

    def _any_free(self, is_new: bool) -> _PooledCall:
        """Return the call that ran last, whose tables may need the fewest changes; or a new one."""
        if not is_new:
            with suppress(IndexError):
                return self._free.pop()
        self._made += 1
        return _PooledCall(self._first.beside(), self._alloc)


class _PooledCall:
    """A call, and scratch memory of its own.

    tables: of the shape that it ran last
    small: for inputs and outputs of this shape; None until a run wants it
    """

    def __init__(self, call: ResizableCall, alloc: Callable[[int], Buffer]) -> None:
        self._call, self._alloc = call, alloc
        self.tables: object = None
        self.small: SmallIO | None = None
        self._scratch: Buffer | None = None

    def take(self, tables: object) -> None:
        """Have the tables of a shape be those that ran last."""
        if tables is not self.tables:
            self.tables, self.small = tables, None

    def run(self, tables: Any, places: Sequence[int]) -> None:
        """Run tables; as `ResizableCall.run`."""
        self.take(tables)
        self._call.run(tables, self.scratch(tables.scratch_bytes), places)

    def scratch(self, needs: int) -> Buffer | None:
        """Return memory of at least so many bytes, None for none; it grows by half at least."""
        self._scratch = grown(self._scratch, needs, self._alloc)
        return self._scratch


def grown(before: Buffer | None, needs: int, alloc: Callable[[int], Buffer]) -> Buffer | None:
    """Return scratch memory of at least so many bytes; larger by half at least where it is new."""
    if needs and (before is None or before.nbytes < needs):
        return alloc(max(needs, 0 if before is None else before.nbytes * 3 // 2))
    return before
