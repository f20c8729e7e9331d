"""Objects as long as they live.

Unlike those of weakref.WeakSet, an object that ends here runs no Python code. An interrupt that
came while a weak reference's callback ran Python code would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class LiveObjects(Generic[T]):
    """A set of hashable objects that others keep alive."""

    def __init__(self) -> None:
        self._references: set[ref[T]] = set()

    def add(self, one: T) -> None:
        """Hold an object until nothing else does."""
        self._references.add(ref(one, self._references.discard))

    def __iter__(self) -> Iterator[T]:
        for reference in list(self._references):
            one = reference()
            if one is not None:
                yield one
