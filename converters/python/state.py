"""The variables of a program that is being captured: frames, their snapshots, and joins of these.

A variable holds a Python object that is known, a Traced, or a list, tuple, dict or deque of these.
After a branch or in a loop, a variable may differ by the path taken. `join` says what it is then.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from trireme.converters.python.scope import GraphScope, Recorder, Traced
from trireme.converters.python.source import Function, FunctionSource
from trireme.support.errors import ShapeError

Path = tuple[Any, ...]
NUMBERS = (bool, int, float, np.generic, np.ndarray)
"""Python values that can become tensors."""
MUTABLE = (list, dict, set, deque)
"""Containers that a program may change; after a branch or a turn, they are put back."""


@dataclass(eq=False)
class Frame:
    """The variables of one call of a function.

    own: the names that the function assigns
    outer: the frame of the function around a nested one
    kept: whether a nested function may still use the frame after the call
    """

    source: FunctionSource
    own: set[str]
    outer: Frame | None = None
    names: dict[str, Any] = field(default_factory=dict)
    kept: bool = False

    def holder(self, name: str) -> Frame | None:
        """Return the frame whose variable a name is; None for a name outside the functions."""
        frame: Frame | None = self
        while frame is not None and name not in frame.own:
            frame = frame.outer
        return frame


@dataclass(frozen=True, eq=False)
class Nested:
    """A function defined inside the captured one, with the defaults of its arguments."""

    source: FunctionSource
    tree: Function
    frame: Frame
    defaults: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Maybe:
    """A variable that only some of the paths so far have set."""

    value: Any


@dataclass(frozen=True, eq=False)
class Lost:
    """A variable that no graph can hold after a branch or a loop; `why` is the sentence."""

    why: str


@dataclass(eq=False)
class Growing:
    """A list to which every turn of a loop appends one item; it is read after the loop only.

    items: the items that one turn appends
    """

    name: str
    scope: GraphScope
    recorder: Recorder
    items: list[Any] = field(default_factory=list)

    def append(self, item: Any) -> None:
        """Append an item; raise ShapeError inside a branch or another loop."""
        if self.recorder.scope is not self.scope:
            raise ShapeError(
                f"{self.name} grows inside a branch or an inner loop; "
                "choose the item in the branch, and append it once after that"
            )
        self.items.append(item)

    def _read(self, *_: Any) -> NoReturn:
        raise ShapeError(
            f"a turn reads {self.name}, which grows; keep its last item and its length in "
            "variables, or write the items into np.zeros(n)"
        )

    __bool__ = __contains__ = __eq__ = __getitem__ = __iter__ = __len__ = __ne__ = _read
    __hash__ = object.__hash__


class Unset:
    """A variable that no path has set."""


UNSET = Unset()
Names = list[dict[str, Any]]
"""The variables of every frame, in the order of the frames."""


class Snapshot:
    """The variables of every frame at one moment, and what their containers held then.

    names: the variables
    leaves: all that the variables and their containers held, but containers
    """

    def __init__(self, names: Sequence[dict[str, Any]]) -> None:
        self.names: Names = [dict(frame) for frame in names]
        self.leaves: list[Any] = []
        self._held: dict[int, tuple[Any, dict[Any, Any]]] = {}
        for frame in self.names:
            for value in frame.values():
                self._hold(value)

    def _hold(self, value: Any) -> None:
        if isinstance(value, tuple):
            parts: dict[Any, Any] = dict(enumerate(value))
        elif not isinstance(value, MUTABLE):
            self.leaves.append(value)
            return
        elif id(value) in self._held:
            return
        else:
            parts = dict.fromkeys(value) if isinstance(value, set) else dict(parts_of(value))
            self._held[id(value)] = value, parts
        for part in () if isinstance(value, set) else parts.values():
            self._hold(part)

    def holds(self, container: Any) -> bool:
        """Whether a container that may change was among the variables."""
        return id(container) in self._held

    def parts(self, container: Any) -> dict[Any, Any]:
        """Return what a container held then, by positions or keys."""
        if self.holds(container):
            return self._held[id(container)][1]
        return dict(parts_of(container))

    def as_was(self, value: Any) -> Any:
        """Return a value as it was: of a container, a copy."""
        if not self.holds(value):
            return value
        return like(value, self.parts(value))

    def restore(self) -> None:
        """Put back what the containers held."""
        for container, parts in self._held.values():
            _refill(container, parts)


def changed(names: Names, change: Callable[[Path, Any], Any]) -> Names:
    """Return variables with their parts changed; the containers that hold them change themselves.

    change: called with the path of each part; a container that it gives back is looked into
    """
    seen: set[int] = set()

    def each(path: Path, value: Any) -> Any:
        made = change(path, value)
        if made is not value:
            return made
        if isinstance(value, tuple):
            return like_tuple(value, [each((*path, i), part) for i, part in enumerate(value)])
        if shape_of(value) is not None and id(value) not in seen:
            seen.add(id(value))
            _refill(value, {key: each((*path, key), part) for key, part in parts_of(value)})
        return value

    return [
        {name: each((i, name), value) for name, value in frame.items()}
        for i, frame in enumerate(names)
    ]


def like_tuple(model: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    """Return parts as a tuple of the model's class, which may be a named tuple."""
    return type(model)(*parts) if hasattr(model, "_fields") else tuple(parts)


def like(model: Any, parts: dict[Any, Any]) -> Any:
    """Return parts in a container of the model's class; of a set, its items are the keys."""
    if isinstance(model, tuple):
        return like_tuple(model, list(parts.values()))
    made = copy.copy(model)
    _refill(made, parts)
    return made


def shape_of(value: Any) -> Any:
    """Return a key that two containers share when their parts correspond; None for a leaf.

    A set is a leaf: its items are known.
    """
    if isinstance(value, (list, tuple, deque)):
        return type(value), len(value)
    return (dict, tuple(value)) if isinstance(value, dict) else None


def parts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the positions or keys of a container, with its parts."""
    yield from value.items() if isinstance(value, dict) else enumerate(value)


def is_same(a: Any, b: Any) -> bool:
    """Whether two leaves are one value on every path."""
    if a is b:
        return True
    if isinstance(a, Traced) and isinstance(b, Traced):
        return a.scope is b.scope and a.id == b.id
    if isinstance(a, Maybe) and isinstance(b, Maybe):
        return is_same(a.value, b.value)
    if type(a) is not type(b) or isinstance(a, (Traced, np.ndarray)):
        return False
    if isinstance(a, float):
        return bool(a.hex() == b.hex())
    if not isinstance(a, (bool, int, str, bytes, type(None))):
        return False
    return bool(a == b)


def is_numeric(value: Any) -> bool:
    """Whether a leaf can be a value of a graph."""
    return isinstance(known(value), (Traced, *NUMBERS))


def known(value: Any) -> Any:
    """Return a leaf without its mark of being set on some paths only."""
    return value.value if isinstance(value, Maybe) else value


def plain(value: Any) -> Any:
    """Return a value without its marks of being set on some paths only."""
    if shape_of(value) is None:
        return known(value)
    return like(value, {key: plain(part) for key, part in parts_of(value)})


def faults_in(value: Any) -> Iterator[Maybe | Lost]:
    """Yield what in a value cannot be read."""
    if isinstance(value, (Maybe, Lost)):
        yield value
    elif shape_of(value) is not None:
        for _, part in parts_of(value):
            yield from faults_in(part)


class Join:
    """The variables at two moments as one: equal parts stay, and `leaf` joins the others.

    before: the moment from which both paths began; a container of it that both have stays itself
    leaf: called with the path and the two versions of a part; UNSET stands for a missing one
    differ: called with the path and two containers that do not correspond
    """

    def __init__(
        self,
        before: Snapshot,
        first: Snapshot,
        second: Snapshot,
        leaf: Callable[[Path, Any, Any], Any],
        differ: Callable[[Path, Any, Any], Any],
    ) -> None:
        self._before, self._first, self._second = before, first, second
        self._leaf, self._differ = leaf, differ
        self._done: dict[tuple[int, int], Any] = {}
        self._in_place: list[tuple[Any, dict[Any, Any]]] = []
        self.names: Names = [
            {
                name: self._value((i, name), a.get(name, UNSET), b.get(name, UNSET))
                for name in dict.fromkeys((*a, *b))
            }
            for i, (a, b) in enumerate(zip(first.names, second.names, strict=True))
        ]

    def _value(self, path: Path, a: Any, b: Any) -> Any:
        """Return the joined version of one variable or part."""
        x, y = self._first.as_was(a), self._second.as_was(b)
        form = shape_of(y if a is UNSET else x)
        if form is None and shape_of(y) is None:
            if isinstance(x, set):
                same = type(x) is type(y) and x == y
                return self._kept(a, b, dict.fromkeys(x)) if same else self._leaf(path, x, y)
            return a if is_same(a, b) else self._leaf(path, x, y)
        if (a is not UNSET and b is not UNSET) and form != shape_of(y):
            return self._differ(path, a, b)
        if (id(a), id(b)) not in self._done:
            first, second = (
                {} if one is UNSET else moment.parts(one)
                for one, moment in ((a, self._first), (b, self._second))
            )
            made = {
                key: self._value((*path, key), first.get(key, UNSET), second.get(key, UNSET))
                for key in first or second
            }
            self._done[id(a), id(b)] = self._kept(a, b, made)
        return self._done[id(a), id(b)]

    def _kept(self, a: Any, b: Any, parts: dict[Any, Any]) -> Any:
        """Return a container with joined parts: the one of before, if both versions are it."""
        if a is not b or not self._before.holds(a):
            return like(b if a is UNSET else a, parts)
        self._in_place.append((a, parts))
        return a

    def finished(self, change: Callable[[Any], Any]) -> Names:
        """Return the joined variables with each part changed; containers of before become so."""
        for container, parts in self._in_place:
            _refill(container, parts)
        return changed(self.names, lambda _, value: change(value))


def _refill(container: Any, parts: dict[Any, Any]) -> None:
    container.clear()
    if isinstance(container, dict):
        for key, part in parts.items():  # a Counter's own update adds
            container[key] = part
    elif isinstance(container, set):
        container.update(parts)
    else:
        container.extend(parts.values())
