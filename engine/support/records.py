"""Dataclasses whose methods are written when they are first called.

`dataclasses.dataclass` compiles up to six methods of each class while its module is imported. A
plain run imports 290 such classes and makes instances of 110; few are ever compared or printed.
`dataclass` here makes the same class in an eighth of the time. The first call of `__init__`,
`__eq__` or `__hash__` compiles that method and replaces the stub. Threads that call at once may
each compile it; all get equal methods. Of the arguments, `_made` lists those that are taken.

Classes with slots or with a dataclass among their bases are left to the standard library.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

Method = Callable[..., Any]

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # a type checker knows what it does
else:

    def dataclass(cls=None, /, **options):
        """Make a class a dataclass, as `dataclasses.dataclass` does, with methods written later."""
        return _made(cls, **options) if cls else lambda one: _made(one, **options)


class _Absent:
    """The default of an argument whose value a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_ABSENT = _Absent()


def _made(
    cls: Any,
    frozen: bool = False,
    eq: bool = True,
    repr: bool = True,
    kw_only: bool = False,
    slots: bool = False,
) -> Any:
    if slots or hasattr(cls, "__dataclass_fields__"):
        how = dataclasses.dataclass(frozen=frozen, eq=eq, repr=repr, kw_only=kw_only, slots=slots)
        return how(cls)
    own = dict(cls.__dict__)
    has_hash = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    params = cls.__dataclass_params__
    params.init, params.repr, params.eq, params.frozen = True, repr, eq, frozen
    if "__init__" not in own:
        _write_later(cls, "__init__", lambda: _init_of(cls, frozen))
        cls.__signature__ = _Signature()
    if repr and "__repr__" not in own:
        cls.__repr__ = _repr
    if eq and "__eq__" not in own:
        _write_later(cls, "__eq__", lambda: _eq_of(cls))
    if eq and frozen and not has_hash:
        _write_later(cls, "__hash__", lambda: _hash_of(cls))
    elif eq and not has_hash:
        cls.__hash__ = None
    if frozen:
        cls.__setattr__, cls.__delattr__ = _refusals(cls)
    return cls


def _write_later(cls: Any, name: str, make: Callable[[], Method]) -> None:
    """Give the class a method that is replaced by make() when it is first called."""

    def write() -> Method:
        method = make()
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, method)
        return method

    def stub(*args: Any, **named: Any) -> Any:
        return write()(*args, **named)

    stub.write = write  # type: ignore[attr-defined]
    setattr(cls, name, stub)


def _init_of(cls: Any, frozen: bool) -> Method:
    known: dict[str, Any] = {"_absent": _ABSENT, "_set": object.__setattr__}
    given: dict[bool, list[str]] = {False: [], True: []}
    lines = []
    for one in fields(cls):
        value = one.name
        if one.default_factory is not MISSING:
            known[f"_make_{one.name}"] = one.default_factory
            value = f"_make_{one.name}()"
            if one.init:
                value += f" if {one.name} is _absent else {one.name}"
        if one.init:
            given[bool(one.kw_only)].append(f"{one.name}{_default(one, known)}")
        elif one.default_factory is MISSING:
            continue
        lines.append(
            f"_set(self, {one.name!r}, {value})" if frozen else f"self.{one.name} = {value}"
        )
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    keywords = ["*", *given[True]] if given[True] else []
    method = _compiled(
        cls, "__init__", ["self", *given[False], *keywords], lines or ["pass"], known
    )
    types = {one.name: one.type for one in fields(cls) if one.init}
    method.__annotations__ = {**types, "return": None}
    return method


def _default(one: Field[Any], known: dict[str, Any]) -> str:
    if one.default_factory is not MISSING:
        return "=_absent"
    if one.default is MISSING:
        return ""
    known[f"_default_{one.name}"] = one.default
    return f"=_default_{one.name}"


def _eq_of(cls: Any) -> Method:
    compared = [one.name for one in fields(cls) if one.compare]
    lines = [
        "if other.__class__ is self.__class__:",
        f" return {_tuple('self', compared)} == {_tuple('other', compared)}",
        "return NotImplemented",
    ]
    return _compiled(cls, "__eq__", ["self", "other"], lines, {})


def _hash_of(cls: Any) -> Method:
    hashed = [one.name for one in fields(cls) if (one.compare if one.hash is None else one.hash)]
    return _compiled(cls, "__hash__", ["self"], [f"return hash({_tuple('self', hashed)})"], {})


def _tuple(of: str, names: Iterable[str]) -> str:
    return f"({''.join(f'{of}.{name}, ' for name in names)})"


def _compiled(
    cls: Any, name: str, parameters: Iterable[str], lines: Iterable[str], known: Mapping[str, Any]
) -> Method:
    """Return a function of the class's module that sees some other names too."""
    body = "".join(f"\n  {line}" for line in lines)
    head = f"def make({', '.join(known)}):\n def {name}({', '.join(parameters)}):"
    made: dict[str, Any] = {}
    exec(f"{head}{body}\n return {name}", vars(sys.modules[cls.__module__]), made)
    method: Method = made["make"](**known)
    return method


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _refusals(cls: Any) -> tuple[Method, Method]:
    """Return `__setattr__` and `__delattr__` of a frozen class; a subclass may have more names."""

    def refuse_to_set(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def refuse_to_delete(self: Any, name: str) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return refuse_to_set, refuse_to_delete


class _Signature:
    """The `inspect.signature` of a class: that of `__init__`, without self."""

    def __get__(self, instance: Any, owner: Any) -> inspect.Signature:
        method = owner.__init__
        written = inspect.signature(getattr(method, "write", lambda: method)())
        return written.replace(parameters=list(written.parameters.values())[1:])
