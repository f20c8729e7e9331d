"""Keep entries as long as an object that others keep alive.

Unlike in weakref's WeakSet and dictionaries, an object that ends here runs no Python code. An
interrupt that came while a weak reference's callback ran Python code would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar
from weakref import ref

K = TypeVar("K")
T = TypeVar("T")


class LiveObjects(Generic[T]):
    """A set of hashable objects that others keep alive."""

    def __init__(self) -> None:
        self._references: set[ref[T]] = set()

    def add(self, one: T) -> None:
        """Hold an object until nothing else does."""
        self._references.add(ref(one, self._references.discard))

    def discard(self, one: T) -> None:
        """Hold an object no more, if it is held."""
        self._references.discard(ref(one))

    def __iter__(self) -> Iterator[T]:
        for reference in list(self._references):
            one = reference()
            if one is not None:
                yield one


class LiveValues(Generic[K, T]):
    """Objects by key, as long as others keep the objects alive."""

    def __init__(self) -> None:
        self._references: dict[K, ref[T]] = {}

    def get(self, key: K) -> T | None:
        """Return the object of a key; None where there is none any more."""
        reference = self._references.get(key)
        return None if reference is None else reference()

    def __setitem__(self, key: K, one: T) -> None:
        gone = [key for key, reference in list(self._references.items()) if reference() is None]
        for each in gone:
            self._references.pop(each, None)
        self._references[key] = ref(one)


class LiveKeys(Generic[K, T]):
    """Values of hashable objects, as long as others keep the objects alive."""

    def __init__(self) -> None:
        self._values: dict[ref[K], T] = {}
        self._forget: Any = self._values.pop

    def get(self, one: K) -> T | None:
        """Return the value of an object, None where it has none."""
        return self._values.get(ref(one))

    def __setitem__(self, one: K, value: T) -> None:
        self._values[ref(one, self._forget)] = value
