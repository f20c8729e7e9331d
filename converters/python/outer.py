"""Values outside a function that a graph holds as constants, in a form that tells when they change.

A global, a variable of an enclosing function or an object among the arguments is a constant of the
graph. Arrays, lists, dicts and objects are compared by their contents, so a change in place counts
too.
"""

from __future__ import annotations

import datetime
import functools
import os
import random
import sys
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from trireme.converters.python.callables import bound_to
from trireme.converters.python.source import FunctionSource
from trireme.ir.graph import digest
from trireme.runtime.eager.operators import Operators
from trireme.support.errors import RunError

_SHOWN = 60
_NO_VALUE = object()
_LIBRARIES = frozenset(sys.stdlib_module_names) | {"trireme", "numpy", "ml_dtypes", "llvmlite"}
"""Packages whose objects are compared by identity: no value of a program changes inside them."""
_FRESH = ("random", "time", "numpy.random", "secrets", "uuid")
"""Modules whose functions return something else at every call."""
_ENVIRONMENT = frozenset(["environ", "environb", "getenv", "getenvb"])
"""The names of the module os that read variables of the environment."""
_READERS = tuple(getattr(os, name) for name in _ENVIRONMENT if hasattr(os, name))
_PLAIN = (bool, int, str, bytes, complex, np.generic, type(None), type(Ellipsis))


def frozen(value: Any) -> Hashable:
    """Return a key that is equal as long as a value is, with all that it holds.

    Of a function that is what its code reads outside it; of an object, its attributes.
    """
    return Freezer().key(value)


class Freezer:
    """Makes one key; what a value meets again on the way is a number in it.

    found: what the program may change of all that the key tells of
    iterators: those among it; nothing tells how far they were read
    """

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.iterators: list[Any] = []
        self._seen: dict[int, int] = {}

    def key(self, value: Any) -> Hashable:
        """Return the key of a value."""
        if isinstance(value, Operators) and (found := value._concrete()) is not None:
            value = found
        if isinstance(value, np.ndarray) and value.dtype != object:
            self.found.append(value)
            return value.dtype.str, value.shape, digest(value)
        if isinstance(value, float):
            return type(value).__name__, value.hex()
        if isinstance(value, _PLAIN):
            return type(value).__name__, value
        if id(value) in self._seen:
            return "seen", self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        return self._held(value)

    def _held(self, value: Any) -> Hashable:
        """Return the key of a value that holds others."""
        if is_iterator(value):
            self.iterators.append(value)
            return "iterator", id(value)
        if any(value is one for one in _READERS):
            self.found.append(os.environ)
            return "environment", frozenset(os.environ.items())
        if not isinstance(value, (tuple, frozenset, MethodType)):
            self.found.append(value)
        if isinstance(value, (list, tuple, deque)):
            return type(value).__name__, tuple(map(self.key, value))
        if isinstance(value, (set, frozenset)):
            return type(value).__name__, frozenset(map(self.key, value))
        if isinstance(value, dict):
            pairs = ((self.key(key), self.key(part)) for key, part in value.items())
            return type(value).__name__, tuple(pairs)
        if isinstance(value, MethodType):
            return "method", self.key(value.__func__), self.key(value.__self__)
        if isinstance(value, FunctionType) and not _is_of_library(value.__module__ or ""):
            return "function", id(value.__code__), self._names(_read_by(value))
        if isinstance(value, functools.partial):
            return "partial", self.key((value.func, value.args, value.keywords))
        if isinstance(getattr(value, "__wrapped__", None), FunctionType):  # as lru_cache keeps it
            return "wrapper", id(value), self.key(value.__wrapped__)
        if isinstance(value, np.random.Generator):
            return "generator", repr(value.bit_generator.state)
        if isinstance(value, random.Random):
            return "random", value.getstate()
        kind = value if isinstance(value, type) else type(value)
        if _is_of_library(kind.__module__):
            self.found.remove(value)
            return "object", id(value)
        return "object", id(value), self._names(_attributes(value))

    def _names(self, pairs: Iterator[tuple[str, Any]]) -> Hashable:
        return tuple((name, self.key(part)) for name, part in pairs)


def is_iterator(value: Any) -> bool:
    """Whether a value gives another item at every read, as a file does."""
    return hasattr(type(value), "__next__")


def is_fresh(function: Any) -> bool:
    """Whether a function returns something else at every call."""
    own = bound_to(function)
    module, owner = getattr(function, "__module__", "") or "", type(own).__module__ or ""
    is_clock = isinstance(own, type) and issubclass(own, datetime.date)
    clock = is_clock and function.__name__ in ("now", "today", "utcnow")
    return clock or function is os.urandom or module.startswith(_FRESH) or owner.startswith(_FRESH)


def _is_of_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def _is_of_program(part: Any) -> bool:
    """Whether a value is a function of no installed package."""
    if not isinstance(part, FunctionType) or _is_of_library(part.__module__ or ""):
        return False
    return f"{os.sep}site-packages{os.sep}" not in part.__code__.co_filename


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, and what its classes hold for all of theirs."""
    yield from getattr(value, "__dict__", {}).items() if not isinstance(value, type) else ()
    for kind in value.__mro__ if isinstance(value, type) else type(value).__mro__:
        if _is_of_library(kind.__module__):
            continue
        for name, part in vars(kind).items():
            if isinstance(part, property | classmethod | staticmethod):
                part = part.fget if isinstance(part, property) else part.__func__
            if name.startswith("__") and not _is_of_program(part):
                continue
            is_slot = type(part).__name__ == "member_descriptor"
            yield name, getattr(value, name, None) if is_slot else part


def _read_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what the code of a function reads outside it: names, and attributes of modules.

    A module that the function imports counts, and so does the environment.
    """
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield "", function.__defaults__
    names = dict.fromkeys(_names_in(code))
    for name in names:
        value = function.__globals__.get(name, sys.modules.get(name, _NO_VALUE))
        if value is _NO_VALUE:
            continue
        if not isinstance(value, ModuleType):
            yield name, value
        elif value is os and not _ENVIRONMENT.isdisjoint(names):
            yield "os.environ", os.environ
        elif not _is_of_library(value.__name__):
            yield from ((f"{name}.{x}", vars(value)[x]) for x in names if x in vars(value))


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in code, and in functions that it defines."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


@dataclass(frozen=True)
class OuterName:
    """A name outside the function that was read: its value then, and the line.

    module: the module whose part it is, where the function imports that
    """

    source: FunctionSource
    name: str
    value: Any
    place: str
    module: ModuleType | None = None
    key: Hashable = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", frozen(self.value))

    def check(self) -> None:
        """Raise RunError if the name has another value now."""
        try:
            if self.module is None:
                _, now = self.source.find(self.name)
            else:
                now = vars(self.module)[self.name.partition(".")[2]]
        except (KeyError, ValueError):
            now = None
        if frozen(now) == self.key:
            return
        text = repr(now) if isinstance(now, (*_PLAIN, float, list, tuple, dict, np.ndarray)) else ""
        what = text if 0 < len(text) < _SHOWN else f"a {type(now).__name__}"
        raise RunError(
            f"{self.name} changed since {self.source.name} was captured ({self.place})",
            facts=["its contents changed" if now is self.value and not text else f"now {what}"],
            fix="make it an argument, or capture the function again",
        )
