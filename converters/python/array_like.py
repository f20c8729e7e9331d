"""What numpy's arrays do and tensors do not, for a traced value that stands for an array.

`x += v` may change the value in place, a number is hashed by its value, and the class is numpy's.
`like_arrays.py` has the rules; without rules a value behaves as a tensor.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import numpy as np

from trireme.runtime.eager.eager import Tensor, tensor
from trireme.runtime.eager.operators import Operators
from trireme.support.errors import GraphError

_LIBRARIES = frozenset(
    ["trireme", "numpy", "abc", "typing", "functools", "contextlib", "dataclasses", "copy"]
    + ["copyreg", "weakref"]
)
_PASSED = ("abc", "typing", "functools", "numpy._core.numeric")
"""Modules that ask on behalf of their callers, as np.isscalar does."""


def is_library(module: str) -> bool:
    """Whether code of a module is not the program's own."""
    return module.partition(".")[0] in _LIBRARIES


def asked_by_program(frame: FrameType | None) -> bool:
    """Whether code of the program asks, from the frame that calls this package."""
    while frame is not None and frame.f_globals.get("__name__", "") in _PASSED:
        frame = frame.f_back
    return frame is not None and not is_library(frame.f_globals.get("__name__", ""))


class TensorRules:
    """How the values of one recording behave: those that stand for eager tensors.

    tensors: whether the program calls `trireme.eager`, whose tensors never change
    boxed: the inputs that stand for arrays without axes, by id; other values without axes stand for
        scalars
    """

    def __init__(self) -> None:
        self.tensors = True
        self.boxed: set[int] = set()

    def note(self, value: Any) -> None:
        """Note a new value."""

    def changed(self, old: Any, made: Any) -> Any:
        """Return what `x += v` leaves in x, of what x + v makes: another tensor."""
        return made

    def hashed(self, value: Any) -> int:
        """Return the hash of a value: of its identity."""
        return object.__hash__(value)

    def beside(self, value: Any, other: Any) -> Any:
        """Return the other operand of a value, which is a list or tuple, as what it counts as."""
        return other

    def kind(self, value: Any) -> type:
        """Return the class that `isinstance` compares with."""
        return Tensor if asked_by_program(sys._getframe(2)) else type(value)

    def shown(self, value: Any) -> Any:
        """Return what a text of the program shows; None for texts of others."""
        return tensor(value._elements("a text")) if asked_by_program(sys._getframe(3)) else None


def _in_place(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the method of `x += v`, given that of `x + v`."""

    def method(self: ArrayLike, other: Any) -> Any:
        made, rules = function(self, other), self._rules()
        return made if rules is None else rules.changed(self, made)

    return method


class ArrayLike(Operators):
    """A tensor that behaves as an array where there are rules."""

    def _rules(self) -> TensorRules | None:
        raise NotImplementedError

    def __hash__(self) -> int:
        rules = self._rules()
        return object.__hash__(self) if rules is None else rules.hashed(self)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        rules = self._rules()
        return type(self) if rules is None else rules.kind(self)

    def __str__(self) -> str:
        shown = self._shown()
        return repr(self) if shown is None else str(shown)

    def __format__(self, spec: str) -> str:
        shown = self._shown()
        return super().__format__(spec) if shown is None else format(shown, spec)

    def _shown(self) -> Any:
        rules = self._rules()
        return None if rules is None else rules.shown(self)

    def _binary(
        self, rule: np.ufunc, op: str, other: Any, swap: bool = False, truth: str = "", **attrs: Any
    ) -> Self:
        rules = self._rules()
        if rules is not None and isinstance(other, (list, tuple)):
            other = rules.beside(self, other)
        return super()._binary(rule, op, other, swap, truth, **attrs)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self._expect_compared(super().__eq__(other), other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self._expect_compared(super().__ne__(other), other)

    def _expect_compared(self, made: Self, other: object) -> Self:
        """Return a comparison; raise GraphError where an array would compare each element."""
        rules = self._rules()
        if made is NotImplemented and rules is not None and not rules.tensors:
            raise GraphError(
                f"{self.type} is compared with a {type(other).__name__}, and no op does",
                fix="`x is None` asks for None; np.array makes an array of a list",
            )
        return made

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Self:
        return self.copy()

    def __sizeof__(self) -> int:
        raise GraphError(f"the bytes of {self.type} are counted; a traced value has none")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise GraphError(f"{self.type} is pickled; a traced value cannot be")

    def copy(self) -> Self:
        """Return a value that changes in place apart from this one."""
        rules = self._rules()
        if rules is None or rules.tensors:
            return self
        made: Self = self._apply("identity", self)
        return made

    def astype(self, dtype: Any, copy: bool = True) -> Self:
        """Return the elements in another dtype; a copy of the same one only if asked, as numpy."""
        made = super().astype(dtype)
        return self.copy() if made is self and copy else made

    def __contains__(self, item: Any) -> bool:
        return bool((self == item).any())

    def round(self, decimals: int = 0) -> Self:
        """Return the nearest numbers with some decimals, halves to even; a copy in any case."""
        made = super().round(decimals)
        return self.copy() if made is self else made

    def __pos__(self) -> Self:
        return self.copy()

    __iadd__ = _in_place(operator.add)
    __isub__ = _in_place(operator.sub)
    __imul__ = _in_place(operator.mul)
    __itruediv__ = _in_place(operator.truediv)
    __ifloordiv__ = _in_place(operator.floordiv)
    __imod__ = _in_place(operator.mod)
    __ipow__ = _in_place(operator.pow)
    __imatmul__ = _in_place(operator.matmul)
    __iand__ = _in_place(operator.and_)
    __ior__ = _in_place(operator.or_)
    __ixor__ = _in_place(operator.xor)
    __ilshift__ = _in_place(operator.lshift)
    __irshift__ = _in_place(operator.rshift)
