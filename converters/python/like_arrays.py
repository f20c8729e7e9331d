"""A traced value that stands for an array of numpy behaves as one where Python can tell.

`x += v` changes the value that other names of it see, a number is hashed by its value,
`isinstance(x, np.ndarray)` holds, and a text shows the elements. `trace.record` sets the rules;
`scope.Traced` asks them. Where an argument is an eager tensor the rules are `TensorRules`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from trireme.converters.python.array_like import TensorRules, asked_by_program
from trireme.converters.python.lifting import lifted
from trireme.converters.python.scope import Traced
from trireme.converters.python.sharing import arguments_of, roots_of
from trireme.runtime.eager.operands import cast
from trireme.support.errors import GraphError

_SILENT = frozenset(["ignore", "warn"])
"""What numpy may do at a floating-point error while a graph is made."""


class LikeArrays(TensorRules):
    """The rules of one recording, and the values of it that are alive.

    on_shared: called with a sentence where `x += v` changes an array that others see, and the value
        makes another one; None refuses to
    tensors: whether the program calls `trireme.eager`, whose tensors never change
    """

    def __init__(self, on_shared: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self.tensors = False
        self._on_shared = on_shared
        self._alive: list[weakref.ref[Traced]] = []

    def note(self, value: Traced) -> None:
        """Note a new value.

        Errors: GraphError, where numpy raises at floating-point errors, which a graph does not
        """
        if not _SILENT.issuperset(np.geterr().values()):
            raise GraphError("np.errstate raises or calls here, and a graph does not")
        if value.type.shape:
            self._alive.append(weakref.ref(value))

    def changed(self, old: Traced, made: Traced) -> Traced:
        """Return what `x += v` leaves in x, of what x + v makes.

        Errors: GraphError, if a caller or another variable would see the change, or numpy refuses
        """
        if self.tensors or not (old.type.shape or old.id in self.boxed):
            return made
        if made.shape != old.shape or not np.can_cast(made.dtype, old.dtype, "same_kind"):
            raise GraphError(f"{old.type} is changed in place to {made.type}")
        shared = self._shared(old, made)
        if shared and self._on_shared is None:
            raise GraphError(shared)
        if shared and self._on_shared is not None:
            self._on_shared(shared)
            return made
        object.__setattr__(old, "id", cast(made, old.dtype).id)
        return old

    def _shared(self, old: Traced, made: Traced) -> str:
        """Return who would see a change of an array; "" for nobody."""
        roots = roots_of(old)
        is_argument = old.id in self.boxed or not roots.isdisjoint(arguments_of(old))
        if is_argument and self._on_shared is None:
            return "an argument is changed in place"
        self._alive = [one for one in self._alive if one() is not None]
        values = [one() for one in self._alive]
        others = [one for one in values if one is not None and one is not old and one is not made]
        if any(not roots.isdisjoint(roots_of(one)) for one in others):
            return "an array that another value shows is changed in place"
        return ""

    def hashed(self, value: Traced) -> int:
        """Return the hash of a value: of its number, as a scalar of numpy has it."""
        if not asked_by_program(sys._getframe(2)):
            return object.__hash__(value)
        if value.type.shape or value.id in self.boxed:
            raise TypeError("unhashable type: 'numpy.ndarray'")
        return hash(value._elements("a key").item())

    def beside(self, value: Traced, other: Any) -> Any:
        """Return a list beside an array as an array; beside a number Python may repeat it."""
        return lifted(value.recorder, other) if value.type.shape else other

    def kind(self, value: Traced) -> type:
        """Return the class that `isinstance` compares with."""
        if not asked_by_program(sys._getframe(2)):
            return type(value)
        is_array = value.type.shape or value.id in self.boxed
        return np.ndarray if is_array else value.dtype.type

    def shown(self, value: Traced) -> Any:
        """Return what a text of the program shows; None for texts of others."""
        if not asked_by_program(sys._getframe(3)):
            return None
        found = value._elements("a text")
        return found if value.id in self.boxed else found[()]
