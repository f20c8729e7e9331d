"""Memory of its own for the inputs and outputs of a call, where these are small.

To ask an array for its address takes a microsecond, and a copy of a few KiB less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from trireme.runtime.io_binding import IN_PLACE_BYTES
from trireme.support.dtypes import Array

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
