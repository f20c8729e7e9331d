"""What a captured loop runs over: ranges, enumerations and zips of what depends on tensors."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from trireme.converters.python.control import Refused
from trireme.converters.python.lifting import contains_traced
from trireme.converters.python.scope import Traced


@dataclass(frozen=True)
class Counts:
    """A range whose bounds depend on tensors."""

    start: Any
    stop: Any
    step: Any


@dataclass(frozen=True)
class Numbered:
    """enumerate() of what depends on tensors."""

    values: Any
    start: Any = 0


@dataclass(frozen=True)
class Zipped:
    """zip() of what depends on tensors."""

    parts: tuple[Any, ...]


def _range(*args: Any) -> Any:
    if not contains_traced(args):
        return range(*(operator.index(one) for one in args))
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    return Counts(start, stop, step)


def _enumerate(values: Any, start: Any = 0) -> Any:
    if is_open(values) or contains_traced(start):
        return Numbered(values, start)
    return list(enumerate(values, start))


def _zip(*parts: Any, strict: bool = False) -> Any:
    return Zipped(parts) if any(map(is_open, parts)) else list(zip(*parts, strict=strict))


def _reversed(values: Any) -> Any:
    if isinstance(values, Counts):
        raise Refused("a range that only a run knows is reversed")
    return values[::-1]


def is_open(values: Any) -> bool:
    """Whether the items of a value depend on a tensor, or their number does."""
    return isinstance(values, (Traced, Counts, Numbered, Zipped))


def parted(values: Any) -> tuple[Any, Any]:
    """Return the first item that a loop runs over, which exists, and what the others are."""
    if isinstance(values, Counts):
        return values.start, Counts(values.start + values.step, values.stop, values.step)
    if isinstance(values, Numbered):
        first, rest = parted(values.values)
        return (values.start, first), Numbered(rest, values.start + 1)
    if isinstance(values, Zipped):
        firsts, rests = zip(*map(parted, values.parts), strict=True)
        return firsts, Zipped(rests)
    return values[0], values[1:]


class Generated(list[Any]):
    """The items of a generator expression that no variable holds."""


class Functions(dict[Any, Any]):
    """Functions by identity; `in` is False for what has no hash."""

    def __contains__(self, key: object) -> bool:
        try:
            return super().__contains__(key)
        except TypeError:
            return False


ITERATORS = Functions({range: _range, enumerate: _enumerate, zip: _zip, reversed: _reversed})


_APART = frozenset(
    ["append", "appendleft", "clear", "copy", "extend", "extendleft", "items", "keys"]
    + ["popitem", "popleft", "reverse", "update", "values"]
)
"""Methods of containers that compare no elements, and take no place in them."""
_TAKE_A_PLACE = frozenset(["get", "insert", "move_to_end", "pop", "rotate", "setdefault"])
"""Methods of containers whose first argument is a place in them."""


def on_container(function: Any, own: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Call a method of a container that compares no elements."""
    name = function.__name__
    if isinstance(own, set) or name not in _APART | _TAKE_A_PLACE:
        raise Refused(f"{name} of a {kind_of(own)} compares tensors")
    if contains_traced(args[:1] if name in _TAKE_A_PLACE else []):
        raise Refused(f"a {kind_of(own)} is changed at a place that only a run knows")
    return function(*args, **named)


def kind_of(value: Any) -> str:
    """Return the kind of a value, for a message."""
    return "tensor" if isinstance(value, Traced) else type(value).__name__
