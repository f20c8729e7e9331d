"""Check the arguments of public functions against the functions' own annotations.

A mistyped argument raises an error at the call, before other code fails on it. A string does not
count as a sequence, nor a boolean as a number. numpy's numbers count as Python's. Arrays, type
variables and protocols are not checked.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union

import numpy as np

from trireme.support.errors import RunError, TriremeError

P = ParamSpec("P")
R = TypeVar("R")
_KINDS: dict[Any, tuple[type, ...]] = {
    int: (int, np.integer),
    float: (float, int, np.floating, np.integer),
    bool: (bool, np.bool_),
}
_WORDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "True or False"),
    str: ("a text", "texts"),
    bytes: ("bytes", "bytes"),
    type(None): ("None", "None"),
    os.PathLike: ("a path", "paths"),
    Path: ("a path", "paths"),
    np.ndarray: ("an array", "arrays"),
    Callable: ("a function", "functions"),
    Any: ("anything", "anything"),
}
"""Words for each type: for one value, and for several."""
_LONGEST = 60
"""The most characters of a value in a message."""


def checked(kind: type[TriremeError]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: the function raises `kind` for arguments against their annotations."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            given = signature.bind(*args, **named).arguments
            check_arguments(function, given, kind)
            return function(*args, **named)

        return call

    return decorate


def check_arguments(
    function: Callable[..., Any], given: Mapping[str, Any], kind: type[TriremeError], of: str = ""
) -> None:
    """Raise `kind` for an argument with an unknown name or a value that its annotation forbids.

    of: what the function makes, for the message
    """
    hints = _hints(function)
    before = f"{of}: " if of else ""
    unknown = [name for name in given if name not in hints]
    if unknown and not _takes_any(function):
        known = [name for name in hints if name != "return"]
        raise kind(
            f"{before}unknown option {', '.join(unknown)}", facts=[f"known: {', '.join(known)}"]
        )
    for name, value in given.items():
        hint = hints.get(name, Any)
        if not _fits(value, hint):
            raise kind(f"{before}{name} is {shown(value)}, expected {_described(hint)}")
        if isinstance(value, str | os.PathLike) and _takes_path(hint):
            _check_path(f"{before}{name}", value, kind)


def later_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module: it imports names that only annotations need.

    names: the module of each
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(names[name]), name)

    return get


class _Later(dict[str, Any]):
    """The names of a module that are not its globals: those of its `later_names`."""

    def __init__(self, module: str) -> None:
        self._module = sys.modules.get(module)

    def __missing__(self, name: str) -> Any:
        if self._module is None or name in vars(self._module):
            raise KeyError(name)
        try:
            return getattr(self._module, name)
        except AttributeError:
            raise KeyError(name) from None


def choice(name: str, given: Any, known: Any, kind: type[TriremeError] = RunError) -> Any:
    """Return an option of a Literal type; raise `kind` naming the choices for any other value."""
    if given not in typing.get_args(known):
        raise kind(f"{name}={given!r}", facts=[f"known: {', '.join(typing.get_args(known))}"])
    return given


def _takes_path(hint: Any) -> bool:
    kinds = {typing.get_origin(one) or one for one in typing.get_args(hint)}
    return os.PathLike in kinds or Path in kinds


def _check_path(name: str, path: str | os.PathLike[str], kind: type[TriremeError]) -> None:
    if "\0" in os.fspath(path):
        raise kind(f"{name} is {shown(path)}, which has a zero byte and so names no file")


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    names = inspect.signature(function).parameters
    found = typing.get_type_hints(function, localns=_Later(function.__module__))
    return {name: found.get(name, Any) for name in names}


def _takes_any(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)


def _fits(value: Any, hint: Any) -> bool:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inside)
    if origin is Literal:
        return isinstance(value, str)  # the function itself checks its choices
    if origin is None:
        return _is_kind(value, hint)
    if not _is_kind(value, origin):
        return False
    if issubclass(origin, Mapping) and inside:
        return all(_fits(k, inside[0]) and _fits(v, inside[1]) for k, v in value.items())
    if isinstance(value, tuple | list) and inside:  # an iterator can be read only once
        return all(_fits(one, inside[0]) for one in value)
    return True


def _is_kind(value: Any, kind: Any) -> bool:
    """Whether a value fits a type without parts; True for types that are not checked."""
    if kind is None or kind is type(None):
        return value is None
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if isinstance(value, bool) and kind in (int, float):
        return False
    if isinstance(value, str | bytes) and issubclass(kind, Iterable):
        return isinstance(value, kind) and kind in (str, bytes)
    return isinstance(value, _KINDS.get(kind, (kind,)))


def _described(hint: Any, many: bool = False) -> str:
    """Return the values that a hint allows, in words: one value, or the parts of a list."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_described(one, many) for one in inside))
    if origin is Literal:
        return " or ".join(map(repr, inside))
    kind = origin or hint
    if kind in _WORDS:
        return _WORDS[kind][many]
    if not isinstance(kind, type):
        return str(kind)
    if issubclass(kind, Mapping):
        parts = " to ".join(_described(one, many=True) for one in inside)
        return f"{'mappings' if many else 'a mapping'} of {parts}"
    if issubclass(kind, Iterable) and inside:
        return f"{'lists' if many else 'a list'} of {_described(inside[0], many=True)}"
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return f"{kind.__name__}s" if many else f"{article} {kind.__name__}"


def shown(value: Any) -> str:
    """Return a value for a message; the kind of a long one."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"a {type(value).__name__}"
