"""Type the operands of ops outside a graph: an eager tensor, or a value that a trace records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from trireme.ir.graph import Dim, TensorType
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError


class Operand(ABC):
    """A tensor that ops apply to: one that has elements, or one that a trace records."""

    type: TensorType

    @abstractmethod
    def _apply(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        """Return the outputs of an op: an operand, or a tuple where there are several.

        inputs: operands, arrays, or None for one that is left out
        """

    def _concrete(self) -> Array | None:
        """Return the elements where they are known, else None."""
        return None

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The dimensions: numbers, or the names of symbols in a trace."""
        return self.type.shape

    def __index__(self) -> int:
        """Return the one element of an integer tensor.

        Errors: GraphError, if there are several elements, or if they are no integers
        """
        value = self.item()
        if isinstance(value, bool) or not isinstance(value, int):
            raise GraphError(f"{self.type} is no index: its elements are no integers")
        return value

    def item(self) -> Any:
        """Return the one element as a Python number; raise GraphError where there are several."""
        elements = self._elements("a Python number")
        if elements.size != 1:
            raise GraphError(f"{self.type} has {elements.size} elements, a Python number is one")
        return elements.item()

    def _elements(self, wanted: str) -> Array:
        """Return the elements; raise GraphError if the tensor has none before a run."""
        found = self._concrete()
        if found is None:
            raise GraphError(f"{wanted} is made of {self.type}, which has no elements before a run")
        return found
