"""The variables of a program that is being captured: frames, their copies for branches, and joins.

A variable holds a Python object that is known, a Traced, or a list, tuple, dict or deque of these.
After a branch or in a loop, a variable may differ by the path taken. `join` says what it is then.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
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
"""Containers that a program may change; a branch or a loop works on copies of them."""


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


class Copies:
    """A copy of all variables whose containers are copies too, shared as the originals are.

    change: returns the copy of a leaf, given its path
    lost: the paths of variables whose copies are lost, with the sentences
    instead: what stands for some lists in the copy, by the identity of the lists
    """

    def __init__(
        self,
        names: Names,
        change: Callable[[Path, Any], Any] | None = None,
        lost: Mapping[Path, str] | None = None,
        instead: Mapping[int, Any] | None = None,
    ) -> None:
        self.originals: dict[int, Any] = {}
        self._lost = lost or {}
        self._copied: dict[int, Any] = dict(instead or {})
        self._change = change
        self.names: Names = [
            {name: self._copy((i, name), value) for name, value in frame.items()}
            for i, frame in enumerate(names)
        ]

    def _copy(self, path: Path, value: Any) -> Any:
        if path in self._lost:
            return Lost(self._lost[path])
        if not isinstance(value, (*MUTABLE, tuple)):
            return self._change(path, value) if self._change else value
        if isinstance(value, tuple):
            return like_tuple(value, [self._copy((*path, i), v) for i, v in enumerate(value)])
        if id(value) not in self._copied:
            made = copy.copy(value)
            self._copied[id(value)] = made
            self.originals[id(made)] = value
            if not isinstance(value, set):
                _refill(made, {key: self._copy((*path, key), v) for key, v in parts_of(value)})
        return self._copied[id(value)]


def like_tuple(model: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    """Return parts as a tuple of the model's class, which may be a named tuple."""
    return type(model)(*parts) if hasattr(model, "_fields") else tuple(parts)


def like(model: Any, parts: dict[Any, Any]) -> Any:
    """Return parts in a container of the model's class."""
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
    if isinstance(value, Maybe):
        value = value.value
    return isinstance(value, (Traced, *NUMBERS))


def plain(value: Any) -> Any:
    """Return a value without its marks of being set on some paths only."""
    if isinstance(value, Maybe):
        return value.value
    if shape_of(value) is None:
        return value
    return like(value, {key: plain(part) for key, part in parts_of(value)})


def faults_in(value: Any) -> Iterator[Maybe | Lost]:
    """Yield what in a value cannot be read."""
    if isinstance(value, (Maybe, Lost)):
        yield value
    elif shape_of(value) is not None:
        for _, part in parts_of(value):
            yield from faults_in(part)


class Join:
    """Two versions of all variables as one: equal parts stay, and `leaf` joins the others.

    leaf: called with the path and the two versions of a part; UNSET stands for a missing one
    differ: called with the path and two containers that do not correspond
    """

    def __init__(
        self,
        leaf: Callable[[Path, Any, Any], Any],
        differ: Callable[[Path, Any, Any], Any],
        originals: tuple[dict[int, Any], dict[int, Any]],
    ) -> None:
        self._leaf, self._differ = leaf, differ
        self._originals = originals
        self._done: dict[tuple[int, int], Any] = {}
        self._in_place: list[tuple[Any, Any]] = []

    def names(self, first: Names, second: Names) -> Names:
        """Return the joined variables of every frame."""
        return [
            {
                name: self.value((i, name), a.get(name, UNSET), b.get(name, UNSET))
                for name in dict.fromkeys((*a, *b))
            }
            for i, (a, b) in enumerate(zip(first, second, strict=True))
        ]

    def value(self, path: Path, a: Any, b: Any) -> Any:
        """Return the joined version of one variable or part."""
        form = shape_of(a) if a is not UNSET else shape_of(b)
        if form is None and shape_of(b) is None:
            if isinstance(a, set) and type(a) is type(b) and a == b:
                return self._as_before(a, b, a)
            return a if is_same(a, b) else self._leaf(path, a, b)
        if (a is not UNSET and b is not UNSET) and form != shape_of(b):
            return self._differ(path, a, b)
        if (id(a), id(b)) not in self._done:
            self._done[id(a), id(b)] = self._container(path, a, b)
        return self._done[id(a), id(b)]

    def _container(self, path: Path, a: Any, b: Any) -> Any:
        model = b if a is UNSET else a
        first = dict(parts_of(model)) if a is UNSET else dict(parts_of(a))
        made = {
            key: self.value(
                (*path, key),
                UNSET if a is UNSET else first[key],
                UNSET if b is UNSET else dict(parts_of(b))[key],
            )
            for key in first
        }
        joined = like(model, made)
        return joined if isinstance(model, tuple) else self._as_before(a, b, joined)

    def _as_before(self, a: Any, b: Any, joined: Any) -> Any:
        """Return the container of before that two copies stand for; it becomes as `joined`."""
        old = self._originals[0].get(id(a))
        if old is not None and old is self._originals[1].get(id(b)):
            self._in_place.append((old, joined))
            return old
        return joined

    def fill(self, finished: Callable[[Any], Any], names: Names) -> Names:
        """Return joined variables with each leaf finished; containers of before change in place."""
        seen: dict[int, Any] = {}

        def fill(value: Any) -> Any:
            if isinstance(value, tuple):
                return like_tuple(value, [fill(each) for each in value])
            if isinstance(value, set) or not isinstance(value, MUTABLE):
                return finished(value)
            if id(value) not in seen:
                seen[id(value)] = value
                _refill(value, {key: fill(part) for key, part in parts_of(value)})
            return value

        for old, joined in self._in_place:
            _refill(old, dict.fromkeys(joined) if isinstance(old, set) else dict(parts_of(joined)))
        return [{name: fill(value) for name, value in frame.items()} for frame in names]


def _refill(container: Any, parts: dict[Any, Any]) -> None:
    container.clear()
    if isinstance(container, dict):
        for key, part in parts.items():  # a Counter's own update adds
            container[key] = part
    elif isinstance(container, set):
        container.update(parts)
    else:
        container.extend(parts.values())
