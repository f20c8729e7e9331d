"""A traced value that stands for an array of numpy behaves as one where Python can tell.

`x += v` changes the value that other names of it see, a number is hashed by its value, and
`isinstance(x, np.ndarray)` holds. `trace.record` sets the rules where no argument is an eager
tensor; `scope.Traced` asks them.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType

import numpy as np

from trireme.converters.python.array_like import ArrayRules
from trireme.converters.python.scope import Traced
from trireme.converters.python.sharing import arguments_of, roots_of
from trireme.runtime.operands import cast
from trireme.support.errors import GraphError

_LIBRARIES = ("trireme.", "numpy", "functools", "contextlib", "dataclasses", "copy", "weakref")
_PASSED = ("abc", "typing")
"""Modules that ask on behalf of their callers."""


def is_library(module: str) -> bool:
    """Whether code of a module is not the program's own."""
    return module.startswith(_LIBRARIES)


class LikeArrays(ArrayRules):
    """The rules of one recording, and the values of it that are alive.

    in_place: whether `x += v` changes the value; else it makes another one
    tensors: whether the program calls `trireme.eager`, whose tensors never change
    """

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place
        self.tensors = False
        self._alive: list[weakref.ref[Traced]] = []

    def note(self, value: Traced) -> None:
        """Note a new value."""
        if self.in_place and value.type.shape:
            self._alive.append(weakref.ref(value))

    def changed(self, old: Traced, made: Traced) -> Traced:
        """Return what `x += v` leaves in x, of what x + v makes.

        Errors: GraphError, if a caller or another variable would see the change, or numpy refuses
        """
        if not self.in_place or self.tensors or not old.type.shape:
            return made
        if made.shape != old.shape or not np.can_cast(made.dtype, old.dtype, "same_kind"):
            raise GraphError(f"{old.type} is changed in place to {made.type}")
        roots = roots_of(old)
        if not roots.isdisjoint(arguments_of(old)):
            raise GraphError("an argument is changed in place")
        self._alive = [one for one in self._alive if one() is not None]
        values = [one() for one in self._alive]
        others = [one for one in values if one is not None and one is not old and one is not made]
        if any(not roots.isdisjoint(roots_of(one)) for one in others):
            raise GraphError("an array that another value shows is changed in place")
        object.__setattr__(old, "id", cast(made, old.dtype).id)
        return old

    def hashed(self, value: Traced) -> int:
        """Return the hash of a value: of its number, as a scalar of numpy has it."""
        if not _asked_by_program(sys._getframe(2)):
            return object.__hash__(value)
        if value.type.shape:
            raise TypeError("unhashable type: 'numpy.ndarray'")
        return hash(value._elements("a key").item())

    def kind(self, value: Traced) -> type:
        """Return the class that `isinstance` compares with."""
        if not _asked_by_program(sys._getframe(2)):
            return type(value)
        return np.ndarray if value.type.shape else value.dtype.type


def _asked_by_program(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__", "") in _PASSED:
        frame = frame.f_back
    return frame is not None and not is_library(frame.f_globals.get("__name__", ""))
